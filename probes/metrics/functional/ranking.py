"""Metrics of the order of scores: AUROC, rank correlation, and the risk at each coverage."""

from __future__ import annotations

import torch
from torch import Tensor

from probes.metrics.functional.inputs import by_group, mean, midranks, prepare


def capability_auroc(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, strata: Tensor | None = None
) -> Tensor:
    r"""Probability that of two answers to different questions, one right and one wrong, the right one has the higher score.

    .. math:: A = \sum_{i \ne j} \hat p_i (1-\hat p_j) [1(f_i>f_j) + \tfrac12 1(f_i=f_j)] \Big/ \sum_{i \ne j} \hat p_i (1-\hat p_j)

    The expected accuracy p̂ = c/n is a soft label: question i brings mass p̂ of right and 1 − p̂ of wrong answers. Pairs
    of a question with itself, and with copies of itself in a resample, are left out: they are ties by construction.
    O(N log N): sort, group ties, accumulate. The best possible value is below 1, see `auroc_ceiling`.

    Args:
        preds: [question] scores.
        right: [question] right answers c.
        known: [question] graded answers n.
        weights: [..., question] how often each question counts.
        strata: [question] int64; where given, only pairs of one stratum count, in numerator and denominator. Scores of
            different folds come from different probes: a fold with many right answers leaves few to train on, so that
            even constants would rank questions of different folds, and the wrong way round.

    Returns:
        [...] AUROC; NaN without both right and wrong answers.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, 1)
    accuracy = right / known
    stratum, group, stratum_of_group = _tie_groups(preds, strata)
    n_groups, n_strata = len(stratum_of_group), int(stratum.max()) + 1
    positive, negative = weights * accuracy, weights * (1 - accuracy)
    group_positive, group_negative = by_group(positive, group, n_groups), by_group(negative, group, n_groups)
    below = group_negative.cumsum(-1) - group_negative
    first = torch.searchsorted(stratum_of_group, torch.arange(n_strata, device=preds.device))
    below = below - below[..., first[stratum_of_group]]  # what lies in strata before one's own
    same_question = (weights**2 * accuracy * (1 - accuracy)).sum(-1)
    won = (group_positive * (below + group_negative / 2)).sum(-1) - same_question / 2
    all_pairs = by_group(positive, stratum, n_strata) * by_group(negative, stratum, n_strata)
    pairs = all_pairs.sum(-1) - same_question  # a constant gives ½ exactly
    return torch.where(pairs > 1e-12, won / pairs, torch.nan)


def _tie_groups(preds: Tensor, strata: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Stratum and group of each question, both [question] counted from 0, and the stratum of each group [group].

    A group holds the equal scores of one stratum. Groups are in the order of strata, then of scores.

    Raises:
        ValueError: `strata` of another shape.
    """
    if strata is not None and strata.shape != preds.shape:
        raise ValueError(
            f"Expected `strata` to have the shape {tuple(preds.shape)} of `preds`, but got {tuple(strata.shape)}."
        )
    distinct, value = preds.unique(sorted=True, return_inverse=True)
    stratum = torch.zeros_like(value) if strata is None else strata.unique(sorted=True, return_inverse=True)[1]
    keys, group = (stratum * len(distinct) + value).unique(sorted=True, return_inverse=True)
    return stratum, group, keys // len(distinct)


def hard_auroc(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, strata: Tensor | None = None
) -> Tensor:
    """Ordinary AUROC for the label p̂ ≥ ½; equals torchmetrics' BinaryAUROC. [...], NaN with one class.

    `strata` as in `capability_auroc`.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, 1)
    return capability_auroc(preds, (right / known >= 0.5).double(), torch.ones_like(known), weights, strata)


def spearman(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Rank correlation of the score with p̂, ties at their mean rank. [...], NaN where either is constant."""
    preds, right, known, weights = prepare(preds, right, known, weights, 1)
    x, y = midranks(preds, weights), midranks(right / known, weights)
    x, y = x - mean(x, weights)[..., None], y - mean(y, weights)[..., None]
    scale = (mean(x * x, weights) * mean(y * y, weights)).sqrt()
    return torch.where(scale > 1e-12, mean(x * y, weights) / scale, torch.nan)


def aurc(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Area under the risk–coverage curve: mean over k = 1 … N of the share of wrong answers among the k most confident.

    Lower is better. What a user meets who has only the k most confident questions answered, with every k as likely
    (Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, 2017; here with 1 − p̂ as the risk). A score
    without information has the mean share of wrong answers; nobody reaches 0 where some answers are wrong.

    Tied scores count in expectation over their orders. A tie of m questions with mean risk ē, after W questions with the
    summed risk E, adds

    .. math:: \sum_{t=1}^m \frac{E + t \bar e}{W + t} = m \bar e + (E - W \bar e) [\psi(W+m+1) - \psi(W+1)]

    with ψ the digamma function, which also gives the sum a derivative by the weights.

    Returns:
        [...] area in [0, 1].
    """
    preds, right, known, weights = prepare(preds, right, known, weights, 1)
    distinct, group = (-preds).unique(sorted=True, return_inverse=True)
    mass = by_group(weights, group, len(distinct))
    risk = by_group(weights * (1 - right / known), group, len(distinct))
    covered, risked = mass.cumsum(-1), risk.cumsum(-1) - risk
    before = covered - mass
    tie_mean = risk / torch.where(mass > 0, mass, 1.0)
    harmonic = torch.digamma(covered + 1) - torch.digamma(before + 1)
    return (risk + (risked - before * tie_mean) * harmonic).sum(-1) / weights.sum(-1)
