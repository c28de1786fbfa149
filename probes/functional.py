"""Metrics of a confidence against measured accuracy, as pure tensor functions.

All take `preds` [question], the confidence or score, higher = more likely right; `right` and `known` [question], the
right answers c and the graded answers n ≥ 1; and `weights` [..., question], how often each question counts (all once
when left out). Extra leading axes of `weights` are resamples: a metric comes back for each of them. Computed in
float64. The estimators are unbiased for the true accuracies p when preds don't depend on the samples that gave c.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _prepare(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None, least_known: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Check shapes and values, and return float64 preds, right, known and weights."""
    if not preds.shape == right.shape == known.shape or preds.dim() != 1:
        raise ValueError(
            f"Expected `preds`, `right` and `known` to have one shape [question], but got {tuple(preds.shape)}, {tuple(right.shape)} and {tuple(known.shape)}."
        )
    preds, right, known = preds.double(), right.double(), known.double()
    if not preds.isfinite().all():
        raise ValueError(
            f"Expected finite `preds`, but {int((~preds.isfinite()).sum())} are NaN or infinite. Leave those questions out and count them."
        )
    if (known < least_known).any():
        raise ValueError(
            f"Expected `known` of at least {least_known} for every question, but the least is {int(known.min())}. Leave those questions out and count them."
        )
    if ((right < 0) | (right > known)).any():
        raise ValueError("Expected `right` between 0 and `known` for every question.")
    return preds, right, known, torch.ones_like(preds) if weights is None else weights.double()


def _check_probability(preds: Tensor) -> None:
    if ((preds < 0) | (preds > 1)).any():
        raise ValueError(
            f"Expected `preds` to be confidences in [0, 1], but they reach from {float(preds.min()):.3g} to {float(preds.max()):.3g}. Calibrate the score first."
        )


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum(-1) / weights.sum(-1)


def _by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sums [..., group] of values [..., question]."""
    shape = (*values.shape[:-1], n_groups)
    return values.new_zeros(shape).index_add_(-1, group, values)


def capability_auroc(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Probability that of two answers to different questions, one right and one wrong, the right one has the higher score.

    .. math:: A = \sum_{i \ne j} \hat p_i (1-\hat p_j) [1(f_i>f_j) + \tfrac12 1(f_i=f_j)] \Big/ \sum_{i \ne j} \hat p_i (1-\hat p_j)

    The expected accuracy p̂ = c/n is a soft label: question i brings mass p̂ of right and 1 − p̂ of wrong answers. Pairs
    of a question with itself, and with copies of itself in a resample, are left out: they are ties by construction.
    O(N log N): sort, group ties, accumulate. The best possible value is below 1, see `auroc_ceiling`.

    Returns:
        [...] AUROC; NaN without both right and wrong answers.
    """
    preds, right, known, weights = _prepare(preds, right, known, weights, 1)
    accuracy = right / known
    values, group = preds.unique(sorted=True, return_inverse=True)
    positive, negative = weights * accuracy, weights * (1 - accuracy)
    group_positive, group_negative = _by_group(positive, group, len(values)), _by_group(negative, group, len(values))
    below = group_negative.cumsum(-1) - group_negative
    same_question = (weights**2 * accuracy * (1 - accuracy)).sum(-1)
    won = (group_positive * (below + group_negative / 2)).sum(-1) - same_question / 2
    pairs = group_positive.sum(-1) * group_negative.sum(-1) - same_question  # a single group gives ½ exactly
    return torch.where(pairs > 1e-12, won / pairs, torch.nan)


def hard_auroc(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Ordinary AUROC for the label p̂ ≥ ½; equals torchmetrics' BinaryAUROC. [...], NaN with one class."""
    preds, right, known, weights = _prepare(preds, right, known, weights, 1)
    return capability_auroc(preds, (right / known >= 0.5).double(), torch.ones_like(known), weights)


def auroc_ceiling(right: Tensor, known: Tensor) -> tuple[float, float, float]:
    r"""The capability AUROC of someone who knows every p, with a bracket: (value, low, high).

    The value takes p as Beta distributed, fitted by moments from which the sampling noise is subtracted:
    ½ + E|p−p′| / (4 m(1−m)), with the closed form of the Beta's mean difference. `high` ranks by p̂ and scores on the same samples
    (optimistic), `low` ranks by one half of each question's answers and scores on the other (pessimistic).

    Returns:
        Three floats; all NaN where the accuracies vary no more than noise would.
    """
    preds = right.double() / known.double()
    _, right, known, _ = _prepare(preds, right, known, None, 2)
    mean = float(preds.mean())
    spread = float(preds.var() - (preds * (1 - preds) / (known - 1)).mean()) if len(preds) > 1 else 0.0
    if not 0 < mean < 1 or spread <= 0 or spread >= mean * (1 - mean):
        return math.nan, math.nan, math.nan
    total = mean * (1 - mean) / spread - 1
    a, b = mean * total, (1 - mean) * total
    log_difference = math.log(4 / total) + _log_beta(total, total) - _log_beta(a, a) - _log_beta(b, b)
    value = 0.5 + math.exp(log_difference) / (4 * mean * (1 - mean))
    high = float(capability_auroc(preds, right, known))
    low = _half_ceiling(right, known)
    return min(max(value, low), high), low, high


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _half_ceiling(right: Tensor, known: Tensor) -> float:
    """AUROC of one half of the answers on the other, in expectation over the halvings (a seeded draw of 20)."""
    generator = torch.Generator().manual_seed(0)
    first = (known / 2).floor()
    values = []
    for _ in range(20):
        # a hypergeometric draw: the order of the answers is random, the first half ranks
        noise = torch.rand(len(known), int(known.max()), generator=generator, dtype=torch.float64)
        index = torch.arange(int(known.max()))[None]
        noise = noise.masked_fill(index >= known[:, None], 2.0)
        chosen = noise.argsort(-1).argsort(-1) < first[:, None]
        in_first = (chosen & (index < right[:, None])).sum(-1).double()
        values.append(capability_auroc(in_first / first, right - in_first, known - first))
    return float(torch.stack(values).nanmean())  # a halving can leave one half without a right answer


def debiased_brier(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Unbiased estimate of the capability Brier score, mean (f − p)².

    .. math:: \frac1N \sum_i f_i^2 - 2 f_i \hat p_i + \frac{c_i (c_i-1)}{n_i (n_i-1)}

    The plain mean of (f − p̂)² is too large by mean p(1−p)/n. May be slightly negative; never clipped. Needs n ≥ 2.
    """
    preds, right, known, weights = _prepare(preds, right, known, weights, 2)
    _check_probability(preds)
    terms = preds**2 - 2 * preds * right / known + right * (right - 1) / (known * (known - 1))
    return _mean(terms, weights)


def response_brier(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Unbiased Brier score against single answers, mean f² − 2fp̂ + p̂: the capability Brier plus mean p(1−p)."""
    preds, right, known, weights = _prepare(preds, right, known, weights, 1)
    _check_probability(preds)
    return _mean(preds**2 - 2 * preds * right / known + right / known, weights)


def brier_skill(preds: Tensor, right: Tensor, known: Tensor, reference: float, weights: Tensor | None = None) -> Tensor:
    """1 − Brier / Brier of the constant `reference` (the training split's mean accuracy), both debiased.

    Returns:
        [...] skill, 1 at best, 0 for the reference; NaN where the reference's debiased Brier is not positive.
    """
    constant = torch.full_like(preds, reference, dtype=torch.float64)
    worst = debiased_brier(constant, right, known, weights)
    return torch.where(worst > 0, 1 - debiased_brier(preds, right, known, weights) / worst, torch.nan)


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


def midranks(values: Tensor, weights: Tensor) -> Tensor:
    """Weight of smaller values plus half the weight of equal ones: [..., question] from values [question] and weights [..., question]."""
    distinct, group = values.unique(sorted=True, return_inverse=True)
    mass = _by_group(weights, group, len(distinct))
    return (mass.cumsum(-1) - mass / 2)[..., group]


def expected_calibration_error(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, n_bins: int = 10, by: str = "width"
) -> Tensor:
    """Expected calibration error: bins' |mean confidence − mean accuracy|, weighted by their questions.

    Noise in p̂ makes it too large, the more so the fewer questions a bin holds; read it beside the Brier score.
    Pass probabilities only. See `bin_index` for `by`.
    """
    preds, right, known, weights = _prepare(preds, right, known, weights, 1)
    _check_probability(preds)
    bins = bin_index(preds, n_bins, by, weights).expand(weights.shape)
    gaps = weights.new_zeros(*weights.shape[:-1], n_bins).scatter_add_(-1, bins, weights * (preds - right / known))
    return gaps.abs().sum(-1) / weights.sum(-1)


def spearman(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Rank correlation of the score with p̂, ties at their mean rank. [...], NaN where either is constant."""
    preds, right, known, weights = _prepare(preds, right, known, weights, 1)
    x, y = midranks(preds, weights), midranks(right / known, weights)
    x, y = x - _mean(x, weights)[..., None], y - _mean(y, weights)[..., None]
    scale = (_mean(x * x, weights) * _mean(y * y, weights)).sqrt()
    return torch.where(scale > 1e-12, _mean(x * y, weights) / scale, torch.nan)
