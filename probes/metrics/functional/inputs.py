"""Shared helpers of the metrics: input checks, weighted means, sums by group, ranks."""

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
    """Check shapes and values; return `preds`, `right`, `known` and `weights` (ones by default) as float64.

    Raises:
        ValueError: If shapes differ, `preds` are not finite or not in [0, 1] (`probabilities`), or counts are invalid.
    """
    if not preds.shape == right.shape == known.shape or preds.dim() != 1:
        shapes = f"{tuple(preds.shape)}, {tuple(right.shape)} and {tuple(known.shape)}"
        raise ValueError(f"Expected `preds`, `right` and `known` to have the same shape [question], but got {shapes}.")
    preds, right, known = preds.double(), right.double(), known.double()
    if n := int((~preds.isfinite()).sum()):
        raise ValueError(f"Expected finite `preds`, but {n} are NaN or infinite. Remove these questions.")
    if (known < least_known).any():
        raise ValueError(
            f"Expected `known` of at least {least_known} for every question, but the smallest is {int(known.min())}. "
            "Remove these questions and report their number."
        )
    if ((right < 0) | (right > known)).any():
        raise ValueError("Expected `right` between 0 and `known` for every question.")
    if probabilities and ((preds < 0) | (preds > 1)).any():
        values = f"from {preds.min():.3g} to {preds.max():.3g}"
        raise ValueError(f"Expected `preds` to be confidences in [0, 1], but got {values}. Calibrate the score first.")
    return preds, right, known, torch.ones_like(preds) if weights is None else weights.double()


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted means [...] of values [..., question]."""
    return (values * weights).sum(-1) / weights.sum(-1)


def by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sums [..., group] of values [..., question]."""
    return values.new_zeros(*values.shape[:-1], n_groups).index_add_(-1, group, values)


def midranks(values: Tensor, weights: Tensor) -> Tensor:
    """Ranks [..., question] of values [question]: the weight of smaller values plus half the weight of equal ones."""
    distinct, group = values.unique(sorted=True, return_inverse=True)
    mass = by_group(weights, group, len(distinct))
    return (mass.cumsum(-1) - mass / 2)[..., group]
