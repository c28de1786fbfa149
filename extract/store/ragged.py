"""Ragged tensors, whose rows can differ in length."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Ragged(NamedTuple):
    """Rows with different numbers of tokens, concatenated without padding.

    Attributes:
        values: Values of all rows, [sum of lengths, …].
        offsets: Row boundaries, [row + 1] int64. Row i is `values[offsets[i] : offsets[i + 1]]`.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Self:
        """Concatenate one or more rows. Each row is a tensor [token, …].

        >>> Ragged.of([torch.tensor([1.0, 2.0]), torch.tensor([])]).offsets
        tensor([0, 2, 2])
        """
        return cls(torch.cat(list(rows)), torch.tensor([0, *map(len, rows)]).cumsum(0))

    def to(self, dtype: torch.dtype) -> Self:
        """Convert the values to a dtype."""
        return self._replace(values=self.values.to(dtype))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Number of tokens in each row, [row] int64."""
        return self.offsets.diff()

    def rows(self) -> list[Tensor]:
        """Return one tensor [token, …] per row. The tensors share memory with `values`."""
        return list(self.values.split(self.lengths.tolist()))

    def padded(self, fill: float = torch.nan) -> Tensor:
        """Return a tensor [row, token, …], padded on the right with `fill`. The width is at least one token."""
        lengths = self.lengths
        width = max(1, int(lengths.max())) if len(lengths) else 1
        out = self.values.new_full((self.n_rows, width, *self.values.shape[1:]), fill)
        out[torch.arange(width) < lengths[:, None]] = self.values
        return out
