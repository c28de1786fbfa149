"""Batches of questions or answers, sliced from tensors in memory."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Rows, which are questions or answers.

    Attributes:
        features: [row, feature, d_model] float32.
        target: [row] float32 in [0, 1], what a probe learns; higher = more likely right.
        right: [row] float32, right answers.
        known: [row] float32, answers graded right or wrong.
        row: [row] int64, row of the question table or of the answer table.
        question: [row] int64, row of the question table.
    """

    features: Tensor
    target: Tensor
    right: Tensor
    known: Tensor
    row: Tensor
    question: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return Batch._make(tensor.to(device) for tensor in self)

    def take(self, rows: Tensor) -> "Batch":
        """A subset of the rows, by index or mask."""
        return Batch._make(tensor[rows] for tensor in self)


class TensorBatches:
    """Iterates over slices of a batch. Sizes differ by at most one: a short last slice would weigh its rows more.

    Args:
        batch: All rows, on the device where they are used.
        batch_size: Largest number of rows in a slice.
        shuffle: Whether to shuffle in every pass, with torch's global generator.
    """

    def __init__(self, batch: Batch, batch_size: int, shuffle: bool = False) -> None:
        self.batch, self.batch_size, self.shuffle = batch, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.batch.row) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.batch.row)
        if n <= self.batch_size:  # the order of a single batch does not matter
            yield self.batch
            return
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for rows in order.to(self.batch.row.device).tensor_split(len(self)):
            yield self.batch.take(rows)
