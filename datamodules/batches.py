"""Batches of questions or answers, sliced from tensors in memory."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from datamodules.token_states import TokenStates


class Batch(NamedTuple):
    """A batch of rows, one per question or answer.

    Attributes:
        features: [row, feature, d_model] float32, or `TokenStates` of the signal `hidden_tokens`.
        target: [row] float32 target of the probe in [0, 1]. Higher means more likely right.
        right: [row] float32 number of right answers.
        known: [row] float32 number of answers with a known grade.
        row: [row] int64 index in the question table or answer table.
        question: [row] int64 index in the question table.
        fraction: [row] float32 fraction of the answer that the features cover; 1 for questions and whole answers.
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
        cat = TokenStates.cat if isinstance(features[0], TokenStates) else torch.cat
        return cls(cat(features), *map(torch.cat, columns))

    def take(self, rows: Tensor) -> "Batch":
        """Select rows by index or mask."""
        return Batch._make(tensor[rows] for tensor in self)


class TensorBatches:
    """Iterable over slices of a batch. Slice sizes differ by at most one, so all rows have about the same weight.

    Args:
        batch: All rows, on the training device.
        batch_size: Maximum number of rows in a slice.
        shuffle: Whether to shuffle the rows in each pass, using torch's global random generator.
    """

    def __init__(self, batch: Batch, batch_size: int, shuffle: bool = False) -> None:
        self.batch, self.batch_size, self.shuffle = batch, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.batch.row) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.batch.row)
        if n <= self.batch_size:  # the order of the rows in a single batch does not matter
            yield self.batch
            return
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for rows in order.to(self.batch.row.device).tensor_split(len(self)):
            yield self.batch.take(rows)
