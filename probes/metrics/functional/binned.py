"""Calibration errors computed over bins of confidences. docs/statistics.md compares them."""

from itertools import pairwise

import torch
from torch import Tensor

from probes.metrics.functional.inputs import midranks, prepare


def bin_index(preds: Tensor, n_bins: int, by: str, weights: Tensor | None = None) -> Tensor:
    """Return the bin of each confidence, int64 from 0 to n_bins − 1. Identical confidences share a bin.

    If `by` is "width", bins have equal width in [0, 1], and the result has shape [question]. If `by` is "mass", bins
    have about equal total weight, and the result has shape [..., question].
    """
    if by not in ("width", "mass"):
        raise ValueError(f"Expected `by` to be 'width' or 'mass', but got {by!r}.")
    if by == "mass":
        weights = torch.ones_like(preds) if weights is None else weights
        preds = midranks(preds, weights) / weights.sum(-1, keepdim=True)
    return (preds * n_bins).long().clamp_max(n_bins - 1)


def expected_calibration_error(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10, by: str = "width"
) -> Tensor:
    """Compute the expected calibration error, which is in [0, 1].

    The error of a bin is |mean confidence − mean accuracy|. The errors are averaged over bins with weights proportional
    to bin size. See `bin_index` for `by`. Noise in the measured accuracies biases the error upwards. `rmsce` corrects
    for this noise.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, probabilities=True)
    bins = bin_index(preds, n_bins, by, weights).expand(weights.shape)
    gaps = weights.new_zeros(*weights.shape[:-1], n_bins).scatter_add_(-1, bins, weights * (preds - right / known))
    return gaps.abs().sum(-1) / weights.sum(-1)


def squared_calibration_error(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10
) -> Tensor:
    r"""Compute an unbiased estimate of (mean confidence − mean accuracy)², averaged over bins of equal mass.

    .. math:: \sum_b w_b \Big[\bar d_b^2 - \frac{s_b^2}{n_b}\Big], \qquad d_i = f_i - \hat p_i

    where question i has confidence f_i and measured accuracy p̂_i. Bin b contains n_b questions, a fraction w_b of all
    questions. d̄_b and s_b² are the mean and sample variance of d in the bin. The estimate is for the population from
    which the questions were drawn.

    A bin with a single question is merged with a neighbouring bin. The result can be negative, and is 0 on average for
    calibrated confidences. It is NaN for a single question. If several entries of `preds` belong to the
    same question, it is biased upwards.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, probabilities=True)
    bins = bin_index(preds, n_bins, "mass", weights).expand(weights.shape)
    gap = preds - right / known
    empty = weights.new_zeros(*weights.shape[:-1], n_bins)
    per_question = (weights, weights * gap, weights * gap**2)
    mass, total, squares = _merged(torch.stack([empty.scatter_add(-1, bins, values) for values in per_question]))
    mean_gap = total / mass.clamp_min(0.5)  # the bound affects only empty bins
    noise = (squares - mass * mean_gap**2) / (mass - 1).clamp_min(0.5) / mass.clamp_min(0.5)
    error = (mass * (mean_gap**2 - noise)).sum(-1) / weights.sum(-1)
    return torch.where(weights.sum(-1) > 1, error, torch.nan)


def _merged(sums: Tensor) -> Tensor:
    """Merge each bin with fewer than two questions into a neighbour. `sums` has shape [3, ..., bin]."""
    bins = list(sums.unbind(-1))
    order = list(range(len(bins)))
    for path in (order, order[::-1]):  # merge upwards, then downwards if the top bin is still too small
        for here, there in pairwise(path):
            moved = bins[here] * (bins[here][0] < 1.5)  # 1.5 allows for rounding errors
            bins[here], bins[there] = bins[here] - moved, bins[there] + moved
    return torch.stack(bins, dim=-1)


def rmsce(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10) -> Tensor:
    """Compute the root mean squared calibration error, the square root of `squared_calibration_error`.

    If the estimate of the squared error is negative, the result is 0. Do not average the result over splits, because it
    is biased. Average `squared_calibration_error` instead.
    """
    squared = squared_calibration_error(preds, right, known, weights, n_bins)
    root = squared.clamp_min(1e-300).sqrt()  # so that the root has a derivative at 0
    return torch.where(squared <= 0, 0.0, root)
