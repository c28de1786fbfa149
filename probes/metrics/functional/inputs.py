"""Helpers for metrics: input checks, weighted means, weighted ranks, and sums over groups."""

from functools import lru_cache

import torch
from torch import Tensor


def prepare(
    preds: Tensor,
    right: Tensor,
    known: Tensor,
    weights: Tensor | None,
    least_known: int = 1,
    probabilities: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Check the arguments of a metric, and return them as float64. The default weights are 1.

    Raises:
        ValueError: If the shapes differ, if `preds` are not finite, if a count is invalid, or if `probabilities` is
            true and `preds` are not in [0, 1].
    """
    if not preds.shape == right.shape == known.shape or preds.dim() != 1:
        shapes = f"{tuple(preds.shape)}, {tuple(right.shape)} and {tuple(known.shape)}"
        raise ValueError(f"Expected `preds`, `right` and `known` to have the same shape [question], but got {shapes}.")
    preds, right, known = preds.double(), right.double(), known.double()
    if n := int((~preds.isfinite()).sum()):
        raise ValueError(
            f"Expected `preds` to be finite, but got {n} NaN or infinite values. Remove the corresponding questions."
        )
    if (known < least_known).any():
        raise ValueError(
            f"Expected `known` to be at least {least_known} for every question, but got {int(known.min())}. Remove "
            "questions with fewer graded answers, and report how many you removed."
        )
    if n := int(((right < 0) | (right > known)).sum()):
        raise ValueError(f"Expected `right` to be between 0 and `known`, but got {n} values outside this range.")
    if probabilities and ((preds < 0) | (preds > 1)).any():
        values = f"values from {preds.min():.3g} to {preds.max():.3g}"
        raise ValueError(f"Expected `preds` to be confidences in [0, 1], but got {values}. Calibrate the score first.")
    return preds, right, known, torch.ones_like(preds) if weights is None else weights.double()


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted means [...] of values [..., question]."""
    return (values * weights).sum(-1) / weights.sum(-1)


def by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sum values [..., question] over each group in `group` [question], and return [..., group]."""
    return values.new_zeros(*values.shape[:-1], n_groups).index_add_(-1, group, values)


@lru_cache(maxsize=4)  # a bootstrap passes the same tensors with every chunk of resamples
def ties(values: Tensor, strata: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Group the rows that have the same value and stratum. Groups are sorted by stratum, then by value.

    Returns the group of each row, [row] int64, and the stratum of each group, [group] int64, both numbered from 0.
    Results are cached, so do not modify the arguments or the results in place.
    """
    distinct, group = values.unique(sorted=True, return_inverse=True)
    if strata is None:
        return group, torch.zeros_like(distinct, dtype=torch.int64)
    stratum = strata.unique(sorted=True, return_inverse=True)[1]
    keys, group = (stratum * len(distinct) + group).unique(sorted=True, return_inverse=True)
    return group, keys // len(distinct)


def midranks(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted rank of each value, [..., question].

    The rank of a value is the total weight of smaller values, plus half the total weight of equal values (including
    itself).
    """
    group, of_group = ties(values)
    mass = by_group(weights, group, len(of_group))
    return (mass.cumsum(-1) - mass / 2)[..., group]
