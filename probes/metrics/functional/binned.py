"""Calibration errors over bins of confidences, in three forms (docs/statistics.md says what each is for)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from probes.metrics.functional.inputs import check_probability, midranks, prepare


def bin_index(preds: Tensor, n_bins: int, by: str, weights: Tensor | None = None) -> Tensor:
    """Bin of each confidence, int64 in [0, n_bins), the last bin closed.

    Args:
        preds: [question] confidences.
        n_bins: Number of bins.
        by: "width" cuts [0, 1] evenly; "mass" cuts the ranks evenly, ties staying together.
        weights: [..., question]; only "mass" looks at them.

    Returns:
        [question] for "width", [..., question] for "mass".
    """
    if by == "width":
        return (preds * n_bins).long().clamp_max(n_bins - 1)
    if by == "mass":
        weights = torch.ones_like(preds) if weights is None else weights
        return (midranks(preds, weights) / weights.sum(-1, keepdim=True) * n_bins).long().clamp_max(n_bins - 1)
    raise ValueError(f"Expected `by` to be 'width' or 'mass', but got {by!r}.")


def expected_calibration_error(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10, by: str = "width"
) -> Tensor:
    """Expected calibration error: bins' |mean confidence − mean accuracy|, weighted by their questions.

    Noise in p̂ makes it too large, the more so the fewer questions a bin holds; `rmsce` subtracts that noise.
    Pass probabilities only. See `bin_index` for `by`.

    With answers as rows (known 1) it is the error against single answers. Where the answers to a question share its
    confidence, and all questions have as many, that is the same number as over questions: in each bin the mean of the
    single answers is the mean of p̂. The two differ where answers have confidences of their own.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, 1)
    check_probability(preds)
    bins = bin_index(preds, n_bins, by, weights).expand(weights.shape)
    gaps = weights.new_zeros(*weights.shape[:-1], n_bins).scatter_add_(-1, bins, weights * (preds - right / known))
    return gaps.abs().sum(-1) / weights.sum(-1)


def squared_calibration_error(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10
) -> Tensor:
    r"""Unbiased estimate of the mean over bins of equal mass of (mean confidence − mean accuracy)². Never clipped.

    .. math:: \sum_b w_b \Big[\bar d_b^2 - \frac{s_b^2}{n_b}\Big], \qquad d_i = f_i - \hat p_i

    s² is the sample variance of d in a bin: it holds the noise of p̂ and what true accuracies differ by, so that the
    estimand is that of the population which the questions were drawn from, not of these questions alone. A bin of a
    single question is merged with its neighbour. Rows have to be independent: with several answers of a question as
    rows, too little is subtracted.

    Returns:
        [...] error, 0 on average for a confidence that is calibrated; NaN for a single question.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, 1)
    check_probability(preds)
    bins = bin_index(preds, n_bins, "mass", weights).expand(weights.shape)
    gap = preds - right / known
    empty = weights.new_zeros(*weights.shape[:-1], n_bins)
    per_question = (weights, weights * gap, weights * gap**2)
    mass, total, squares = _merged(torch.stack([empty.scatter_add(-1, bins, values) for values in per_question]))
    mean_gap = total / mass.clamp_min(0.5)  # what is bounded is empty, and counts nothing
    noise = (squares - mass * mean_gap**2) / (mass - 1).clamp_min(0.5) / mass.clamp_min(0.5)
    error = (mass * (mean_gap**2 - noise)).sum(-1) / weights.sum(-1)
    return torch.where(weights.sum(-1) > 1, error, torch.nan)


def _merged(sums: Tensor) -> Tensor:
    """Sums [3, ..., bin] with those of bins of less than two questions (the first row) moved to the next bin that has more."""
    bins = list(sums.unbind(-1))
    order = list(range(len(bins)))
    for path in (order, order[::-1]):  # upwards, then what is left at the top downwards
        for here, there in pairwise(path):
            moved = bins[here] * (bins[here][0] < 1.5)  # between one and two, which rounding cannot mix up
            bins[here], bins[there] = bins[here] - moved, bins[there] + moved
    return torch.stack(bins, dim=-1)


def rmsce(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10) -> Tensor:
    """Root of `squared_calibration_error`, 0 where that is negative: a calibration error from which the noise is subtracted.

    On the scale of the ECE, but squared gaps weigh large ones more. The root of an unbiased estimate is not unbiased:
    average `squared_calibration_error` over splits, not this.

    Returns:
        [...] error in [0, 1]; NaN for a single question.
    """
    squared = squared_calibration_error(preds, right, known, weights, n_bins)
    root = squared.clamp_min(1e-300).sqrt()  # so that a root of 0 has a derivative
    return torch.where(squared <= 0, 0.0, root)
