"""Helpers that all metrics share: input checks, weighted means, sums by group, ranks."""

from __future__ import annotations

import torch
from torch import Tensor


def prepare(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None, least_known: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Check shapes and values; return `preds`, `right`, `known` and `weights` as float64."""
    if not preds.shape == right.shape == known.shape or preds.dim() != 1:
        shapes = f"{tuple(preds.shape)}, {tuple(right.shape)} and {tuple(known.shape)}"
        raise ValueError(f"Expected `preds`, `right` and `known` to have one shape [question], but got {shapes}.")
    preds, right, known = preds.double(), right.double(), known.double()
    if not preds.isfinite().all():
        n = int((~preds.isfinite()).sum())
        raise ValueError(
            f"Expected finite `preds`, but {n} are NaN or infinite. Leave those questions out and count them."
        )
    if (known < least_known).any():
        raise ValueError(
            f"Expected `known` of at least {least_known} for every question, but the smallest is {int(known.min())}. "
            "Leave those questions out and count them."
        )
    if ((right < 0) | (right > known)).any():
        raise ValueError("Expected `right` between 0 and `known` for every question.")
    return preds, right, known, torch.ones_like(preds) if weights is None else weights.double()


def check_probability(preds: Tensor) -> None:
    """Raise ValueError if `preds` are not probabilities."""
    if ((preds < 0) | (preds > 1)).any():
        low, high = float(preds.min()), float(preds.max())
        raise ValueError(
            f"Expected `preds` to be confidences in [0, 1], but got values from {low:.3g} to {high:.3g}. "
            "Calibrate the score first."
        )


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted means [...] of values [..., question]."""
    return (values * weights).sum(-1) / weights.sum(-1)


def by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sums [..., group] of values [..., question]."""
    return values.new_zeros(*values.shape[:-1], n_groups).index_add_(-1, group, values)


def midranks(values: Tensor, weights: Tensor) -> Tensor:
    """Weight of smaller values plus half the weight of equal ones.

    Args:
        values: [question].
        weights: [..., question].

    Returns:
        [..., question] ranks.
    """
    distinct, group = values.unique(sorted=True, return_inverse=True)
    mass = by_group(weights, group, len(distinct))
    return (mass.cumsum(-1) - mass / 2)[..., group]
