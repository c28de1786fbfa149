"""Batches of questions or answers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from datamodules.streamed_features import StreamedFeatures

#: Size in bytes of a shuffle buffer, and number of runs of consecutive rows that are drawn at random to fill it.
BUFFER_BYTES, RUNS = 2**28, 64


class Batch(NamedTuple):
    """A batch of rows, one per question or answer.

    Attributes:
        features: Tensor [row, feature, d_model] float32, `TokenStates` or `StreamedFeatures`.
        target: Target of the probe, from 0 to 1, [row] float32. Higher means more likely to be right.
        right: Number of right answers, [row] float32.
        known: Number of answers with a known grade, [row] float32.
        row: Index in the question table or answer table, [row] int64.
        question: Index in the question table, [row] int64.
        fraction: Fraction of the answer that the features cover, [row] float32; 1 for questions and whole answers.
    """

    features: Any
    target: Tensor
    right: Tensor
    known: Tensor
    row: Tensor
    question: Tensor
    fraction: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Move the batch to a device."""
        return Batch._make(tensor.to(device) for tensor in self)

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate the rows of several batches."""
        features, *columns = zip(*batches, strict=True)
        cat = torch.cat if isinstance(features[0], Tensor) else type(features[0]).cat
        return cls(cat(features), *map(torch.cat, columns))

    def take(self, rows: Tensor) -> "Batch":
        """Select rows by index or mask."""
        return Batch._make(tensor[rows] for tensor in self)


class Batches:
    """Iterable over slices of a batch. The sizes of the slices differ by at most one.

    Args:
        batch: All rows, on the training device.
        batch_size: Maximum number of rows in a slice.
        shuffle: Whether to shuffle the rows in each pass, with torch's global random generator.
        read: Whether to read the streamed features of each slice into a tensor.
    """

    def __init__(self, batch: Batch, batch_size: int, shuffle: bool = False, read: bool = False) -> None:
        self.batch, self.batch_size, self.shuffle = batch, batch_size, shuffle
        self.read = read and isinstance(batch.features, StreamedFeatures)

    def __len__(self) -> int:
        return -(-len(self.batch.row) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        _, n_features, width = self.batch.features.shape
        n_slices = max(1, BUFFER_BYTES // (4 * n_features * width * self.batch_size))  # per buffer
        order = torch.arange(len(self.batch.row))
        if self.shuffle and len(self) > n_slices:
            runs = order.split(max(1, n_slices * self.batch_size // RUNS))
            order = torch.cat([runs[i] for i in torch.randperm(len(runs)).tolist()])
        slices = order.to(self.batch.row.device).tensor_split(len(self))
        for buffer in (slices[i : i + n_slices] for i in range(0, len(slices), n_slices)):
            batch, rows = self.batch, torch.cat(buffer)
            if self.shuffle and len(self) > 1:  # with a single batch, order does not matter
                rows = rows[torch.randperm(len(rows)).to(rows.device)]
            if self.read:
                batch, rows = batch.take(rows), torch.arange(len(rows), device=rows.device)
                batch = batch._replace(features=batch.features.read())
            for places in rows.split([len(one) for one in buffer]):
                yield batch.take(places)
