"""Rows of a ragged tensor padded side by side, in float64, so that quantiles do not depend on rounding."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from extract.errors import InputError
from extract.store.ragged import Ragged

_CELLS = 2**18  # values that are padded together; more would not fit into the cache


class Padded:
    """Some rows side by side, each of at least one token.

    Args:
        u: [..., row, token] float64 values, 0 behind a row's tokens.
        w: [..., row, token] weights likewise, with leading axes that broadcast with those of `u`; None for none.
        n: [row] int64 tokens of each row.
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
        """Values in ascending order, and their indices; padding last."""
        return self.u.masked_fill(~self.there, torch.inf).sort(dim=-1)

    @cached_property
    def by_weight(self) -> tuple[Tensor, Tensor]:
        """Weights in descending order, of equal ones the earlier token first, and the values of these tokens."""
        order = self.w.masked_fill(~self.there, -1.0).sort(dim=-1, descending=True, stable=True)
        return order.values, self.u.expand(self._shape).gather(-1, order.indices.expand(self._shape))

    @cached_property
    def total(self) -> Tensor:
        """[..., row] sum of the weights."""
        return self.w.sum(-1)

    @cached_property
    def weights_ascending(self) -> Tensor:
        """Cumulative weights c of the tokens in ascending order of their values."""
        return self.w.expand(self._shape).gather(-1, self.ascending[1].expand(self._shape)).cumsum(-1)

    @cached_property
    def mean(self) -> Tensor:
        """[..., row] Σ u / n."""
        return self.u.sum(-1) / self.n

    @cached_property
    def weighted_mean(self) -> Tensor:
        """[..., row] Σ w u / Σ w; NaN where Σ w is 0."""
        return (self.w * self.u).sum(-1) / self.total

    def at(self, place: Tensor) -> Tensor:
        """[..., row] value at a place in ascending order, [..., row] from 0."""
        values = self.ascending[0]
        shape = torch.broadcast_shapes(values.shape[:-1], place.shape)
        return values.expand(*shape, -1).gather(-1, place.expand(shape)[..., None])[..., 0]


def over_rows(
    values: Ragged,
    names: Sequence[str],
    compute: Callable[[Padded], dict[str, Tensor]],
    weights: Ragged | None = None,
) -> dict[str, Tensor]:
    """Apply a function to rows side by side, rows of similar length together: [row, …] float32 by name, NaN as `pool`.

    `compute` is from some rows to [..., row] by one of the `names` each; values and weights are as for `pool`.

    Raises:
        InputError: If weights are negative or of other tokens.
    """
    axes = values.values.shape[1:]
    if weights is not None:
        if not torch.equal(values.offsets, weights.offsets):
            raise InputError(
                "Expected `weights` of the same tokens as the values, but rows have other lengths. Read both together."
            )
        if len(negative := weights.values[weights.values < 0]):
            raise InputError(f"Expected `weights` to be at least 0, but got {negative[0]:g}. Use other weights.")
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
    """Rows of at least one token, together where padding costs little."""
    rows = lengths.nonzero()[:, 0]
    if not len(rows):
        return
    if len(rows) * int(lengths.max()) * n_columns <= _CELLS:
        yield rows
        return
    rows = rows[lengths[rows].argsort(stable=True)]
    doubling = (lengths[rows] - 1).clamp_min(1).log2().floor()  # lengths up to 2, 4, 8, … go together
    for alike in rows.split(doubling.unique_consecutive(return_counts=True)[1].tolist()):
        yield from alike.split(max(1, _CELLS // (int(lengths[alike[-1]]) * n_columns)))


def _side_by_side(ragged: Ragged, rows: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """[..., row, token] float64 of some rows, 0 for padding and what is not finite; [..., row] if all is finite."""
    step = torch.arange(int(n.max()))
    there = step < n[:, None]
    index = (ragged.offsets[rows][:, None] + step).where(there, 0)
    padded = ragged.values.movedim(0, -1)[..., index].double().where(there, 0.0)
    return padded.nan_to_num(0.0, 0.0, 0.0), padded.isfinite().all(-1)
