"""Batches: some questions or answers with their features, and slices of tensors that are in memory already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Some rows, which are questions or answers.

    Attributes:
        features: [row, feature, d_model] float32.
        target: [row] float32 in [0, 1], what a probe is trained to predict; higher = more likely right.
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

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device) for tensor in self))

    def take(self, places: Tensor) -> Batch:
        """Some of the rows."""
        return Batch(*(tensor[places] for tensor in self))


class TensorBatches:
    """Slices of tensors that are in memory already; shuffled anew in every pass where asked for.

    The batches of a pass are of equal size, give or take one: a short last batch would give its rows more weight.

    Args:
        batch: All rows, on the device where they are used.
        batch_size: Most rows in a batch.
        shuffle: Whether to shuffle, with torch's global generator.
    """

    def __init__(self, batch: Batch, batch_size: int, shuffle: bool = False) -> None:
        self.batch, self.batch_size, self.shuffle = batch, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.batch.row) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.batch.row)
        if n <= self.batch_size:  # one batch, whose order says nothing: no copy
            yield self.batch
            return
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for places in order.to(self.batch.row.device).tensor_split(len(self)):
            yield self.batch.take(places)
