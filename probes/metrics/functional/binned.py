"""Calibration errors over bins of confidences. docs/statistics.md compares them."""

from itertools import pairwise

import torch
from torch import Tensor

from probes.metrics.functional.inputs import midranks, prepare


def bin_index(preds: Tensor, n_bins: int, by: str, weights: Tensor | None = None) -> Tensor:
    """Bin index of each confidence, int64 in [0, n_bins): [question] for "width", [..., question] for "mass".

    Bins have equal width in [0, 1], or equal weight ("mass"); equal confidences share a bin.
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
    """Expected calibration error: |mean confidence − mean accuracy| of a bin, averaged over bins weighted by size.

    In [0, 1]. Noise in p̂ biases it upwards, more so with fewer questions per bin; `rmsce` subtracts that noise. For
    `by` see `bin_index`. With one row per answer (`known` = 1) it is the error against single answers.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, probabilities=True)
    bins = bin_index(preds, n_bins, by, weights).expand(weights.shape)
    gaps = weights.new_zeros(*weights.shape[:-1], n_bins).scatter_add_(-1, bins, weights * (preds - right / known))
    return gaps.abs().sum(-1) / weights.sum(-1)


def squared_calibration_error(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10
) -> Tensor:
    r"""Unbiased estimate of (mean confidence − mean accuracy)², averaged over bins of equal mass. Not clipped at 0.

    .. math:: \sum_b w_b \Big[\bar d_b^2 - \frac{s_b^2}{n_b}\Big], \qquad d_i = f_i - \hat p_i

    s² is the sample variance of d in a bin. It includes the noise of p̂ and the spread of the true accuracies, so the
    estimand is the error over the population of questions. A bin of a single question is merged with its neighbour.

    Rows must be independent. If several rows are answers to one question, the estimate is too large.
    The mean is 0 for a calibrated confidence; the value is NaN for a single question.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, probabilities=True)
    bins = bin_index(preds, n_bins, "mass", weights).expand(weights.shape)
    gap = preds - right / known
    empty = weights.new_zeros(*weights.shape[:-1], n_bins)
    per_question = (weights, weights * gap, weights * gap**2)
    mass, total, squares = _merged(torch.stack([empty.scatter_add(-1, bins, values) for values in per_question]))
    mean_gap = total / mass.clamp_min(0.5)  # the bound only affects empty bins, whose weight is 0
    noise = (squares - mass * mean_gap**2) / (mass - 1).clamp_min(0.5) / mass.clamp_min(0.5)
    error = (mass * (mean_gap**2 - noise)).sum(-1) / weights.sum(-1)
    return torch.where(weights.sum(-1) > 1, error, torch.nan)


def _merged(sums: Tensor) -> Tensor:
    """Merge bins of fewer than two questions into the next higher bin. Takes and returns sums [3, ..., bin]."""
    bins = list(sums.unbind(-1))
    order = list(range(len(bins)))
    for path in (order, order[::-1]):  # upwards, then downwards for a remainder at the top
        for here, there in pairwise(path):
            moved = bins[here] * (bins[here][0] < 1.5)  # 1.5 is safe from rounding
            bins[here], bins[there] = bins[here] - moved, bins[there] + moved
    return torch.stack(bins, dim=-1)


def rmsce(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10) -> Tensor:
    """Root mean squared calibration error, corrected for the noise of p̂: the root of `squared_calibration_error`.

    It is 0 if the squared error is negative, and NaN for a single question. In [0, 1] like the ECE, but large gaps
    weigh more. The root is biased: to average over splits, average `squared_calibration_error`.
    """
    squared = squared_calibration_error(preds, right, known, weights, n_bins)
    root = squared.clamp_min(1e-300).sqrt()  # the root has a derivative at 0
    return torch.where(squared <= 0, 0.0, root)
