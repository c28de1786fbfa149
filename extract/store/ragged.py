"""Ragged tensors: rows of different lengths without padding, such as values of every token of every answer."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Ragged(NamedTuple):
    """Values of the tokens of several rows, concatenated.

    Attributes:
        values: [total tokens, …].
        offsets: [row + 1] int64; row i is `values[offsets[i] : offsets[i + 1]]`.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Self:
        """Concatenate one tensor [token, …] per row; needs at least one row.

        >>> Ragged.of([torch.tensor([1.0, 2.0]), torch.tensor([])]).offsets
        tensor([0, 2, 2])
        """
        return cls(torch.cat(list(rows)), torch.tensor([0, *map(len, rows)]).cumsum(0))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """[row] int64 number of tokens of each row."""
        return self.offsets.diff()

    def rows(self) -> list[Tensor]:
        """One tensor [token, …] per row, sharing memory."""
        return list(self.values.split(self.lengths.tolist()))

    def padded(self, fill: float = torch.nan) -> Tensor:
        """[row, token, …], padded on the right with `fill` to the longest row, at least to one token."""
        lengths = self.lengths
        width = max(1, int(lengths.max())) if len(lengths) else 1
        out = self.values.new_full((self.n_rows, width, *self.values.shape[1:]), fill)
        out[torch.arange(width) < lengths[:, None]] = self.values
        return out
