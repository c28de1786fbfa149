"""Ragged rows as padded float64 tensors. Float64 prevents rounding errors in quantiles."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from extract.errors import InputError
from extract.store.ragged import Ragged

#: Number of values to pad at a time.
CELLS_AT_ONCE = 2**18


class Padded:
    """Batch of padded rows with at least one token each.

    Args:
        u: Values, [..., row, token] float64, padded with 0.
        w: Weights in the same format, or None. Their leading axes broadcast with those of `u`.
        n: Number of tokens in each row, [row] int64.
    """

    def __init__(self, u: Tensor, w: Tensor | None, n: Tensor) -> None:
        self.u, self.n = u, n
        self.step = torch.arange(u.shape[-1])
        self.there = self.step < n[:, None]
        self.has_weights = w is not None
        if w is not None:
            self.w = w
            self._shape = torch.broadcast_shapes(u.shape, w.shape)

    @cached_property
    def ascending(self) -> tuple[Tensor, Tensor]:
        """Sorted values and their token indices, both [..., row, token]. Padding comes last."""
        return self.u.masked_fill(~self.there, torch.inf).sort(dim=-1)

    @cached_property
    def by_weight(self) -> tuple[Tensor, Tensor]:
        """Weights in descending order (stable sort), and the values reordered to match, both [..., row, token]."""
        order = self.w.masked_fill(~self.there, -1.0).sort(dim=-1, descending=True, stable=True)
        return order.values, self.u.expand(self._shape).gather(-1, order.indices.expand(self._shape))

    @cached_property
    def total(self) -> Tensor:
        """Sum of the weights, [..., row]."""
        return self.w.sum(-1)

    @cached_property
    def weights_ascending(self) -> Tensor:
        """Cumulative weights of the tokens sorted by ascending value, [..., row, token]."""
        return self.w.expand(self._shape).gather(-1, self.ascending[1].expand(self._shape)).cumsum(-1)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each row's values, [..., row]."""
        return self.u.sum(-1) / self.n

    @cached_property
    def weighted_mean(self) -> Tensor:
        """Weighted mean, [..., row]; NaN if the weights sum to 0."""
        return (self.w * self.u).sum(-1) / self.total

    def at(self, place: Tensor) -> Tensor:
        """Return, for each row, the value at index `place` after sorting the row's values.

        `place` and the result have the shape [..., row].
        """
        values = self.ascending[0]
        shape = torch.broadcast_shapes(values.shape[:-1], place.shape)
        return values.expand(*shape, -1).gather(-1, place.expand(shape)[..., None])[..., 0]


def over_rows(
    values: Ragged,
    names: Sequence[str],
    compute: Callable[[Padded], dict[str, Tensor]],
    weights: Ragged | None = None,
) -> dict[str, Tensor]:
    """Apply a function to padded batches of rows with similar lengths.

    Args:
        values: Values of the tokens, [sum of lengths, …].
        weights: Non-negative weights of the same tokens.
        names: Keys of the dict that `compute` returns.
        compute: Function to apply. It returns a dict of tensors [..., row].

    Returns:
        Dict of float32 tensors [row, …]. A row is NaN if it has no tokens, or if one of its values or weights is not
        finite.

    Raises:
        InputError: If a weight is negative, or there are not as many weights as values.
    """
    axes = values.values.shape[1:]
    if weights is not None:
        if not torch.equal(values.offsets, weights.offsets):
            raise InputError(
                "Expected `weights` to have as many tokens per row as the values, but the numbers differ. "
                "Read both signals with the same command."
            )
        if len(negative := weights.values[weights.values < 0]):
            raise InputError(f"Expected `weights` to be at least 0, but got {negative[0]:g}. Pass different weights.")
        axes = torch.broadcast_shapes(axes, weights.values.shape[1:])
    out = {name: torch.full((*axes, values.n_rows), torch.nan) for name in names}
    for rows in _similar(values.lengths, max(1, axes.numel())):
        n = values.lengths[rows]
        u, finite = _side_by_side(values, rows, n)
        w = None
        if weights is not None:
            w, finite_weights = _side_by_side(weights, rows, n)
            finite = finite & finite_weights
        for name, result in compute(Padded(u, w, n)).items():
            out[name][..., rows] = result.where(finite, torch.nan).float()
    return {name: result.movedim(-1, 0) for name, result in out.items()}


def _similar(lengths: Tensor, n_columns: int) -> Iterator[Tensor]:
    """Yield the indices of the non-empty rows, in groups of rows with similar lengths."""
    rows = lengths.nonzero()[:, 0]
    if not len(rows):
        return
    if len(rows) * int(lengths.max()) * n_columns <= CELLS_AT_ONCE:
        yield rows
        return
    rows = rows[lengths[rows].argsort(stable=True)]
    doubling = (lengths[rows] - 1).clamp_min(1).log2().floor()  # lengths up to 2, 4, 8, …
    for alike in rows.split(doubling.unique_consecutive(return_counts=True)[1].tolist()):
        yield from alike.split(max(1, CELLS_AT_ONCE // (int(lengths[alike[-1]]) * n_columns)))


def _side_by_side(ragged: Ragged, rows: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the padded rows [..., row, token] float64, and a mask of the rows whose values are all finite.

    Non-finite values are replaced with 0.
    """
    step = torch.arange(int(n.max()))
    there = step < n[:, None]
    index = (ragged.offsets[rows][:, None] + step).where(there, 0)
    padded = ragged.values.movedim(0, -1)[..., index].double().where(there, 0.0)
    return padded.nan_to_num(0.0, 0.0, 0.0), padded.isfinite().all(-1)
