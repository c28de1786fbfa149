"""Ranking metrics: AUROC and its ceiling, and rank correlation."""

import math

import torch
from torch import Tensor

from probes.metrics.functional.inputs import by_group, mean, midranks, prepare, ties

#: Number of random half-splits for the lower bound of `auroc_ceiling`.
_HALF_SPLITS = 20


def capability_auroc(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, strata: Tensor | None = None
) -> Tensor:
    r"""Compute the probability that a right answer scores higher than a wrong answer to a different question.

    .. math::
        A = \sum_{i \ne j} \hat p_i (1-\hat p_j) [1(f_i>f_j) + \tfrac12 1(f_i=f_j)]
            \Big/ \sum_{i \ne j} \hat p_i (1-\hat p_j)

    where question i has score f_i and measured accuracy p̂_i. Ties count ½. A question is never compared with itself or
    with its copies in a resample. If the accuracies are not all 0 or 1, even perfect scores have an AUROC below 1 (see
    `auroc_ceiling`). The result is NaN unless there are both right and wrong answers.

    If `strata` [question] int64 is passed, only pairs within a stratum count. For out-of-fold scores, pass the folds,
    because scores from different probes are not comparable.
    """
    preds, right, known, weights = prepare(preds, right, known, weights)
    accuracy = right / known
    group, stratum_of_group = ties(preds, strata)
    n_groups, n_strata = len(stratum_of_group), int(stratum_of_group[-1]) + 1
    positive, negative = weights * accuracy, weights * (1 - accuracy)
    group_positive, group_negative = by_group(positive, group, n_groups), by_group(negative, group, n_groups)
    below = group_negative.cumsum(-1) - group_negative
    first = torch.searchsorted(stratum_of_group, torch.arange(n_strata, device=preds.device))
    below = below - below[..., first[stratum_of_group]]  # exclude lower strata
    same_question = (weights**2 * accuracy * (1 - accuracy)).sum(-1)
    won = (group_positive * (below + group_negative / 2)).sum(-1) - same_question / 2
    of_strata = [by_group(values, stratum_of_group, n_strata) for values in (group_positive, group_negative)]
    all_pairs = of_strata[0] * of_strata[1]
    pairs = all_pairs.sum(-1) - same_question  # so that a constant score gives exactly ½
    return torch.where(pairs > 1e-12, won / pairs, torch.nan)


def hard_auroc(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, strata: Tensor | None = None
) -> Tensor:
    """Compute the AUROC for the binary label "accuracy at least ½".

    Without `weights` and `strata`, it equals torchmetrics' `BinaryAUROC` for this label.
    """
    preds, right, known, weights = prepare(preds, right, known, weights)
    return capability_auroc(preds, (right / known >= 0.5).double(), torch.ones_like(known), weights, strata)


def auroc_ceiling(right: Tensor, known: Tensor) -> tuple[float, float, float]:
    r"""Estimate and bound the `capability_auroc` of an oracle that knows all true accuracies.

    .. math:: \tfrac12 + \frac{E|p-p'|}{4 m (1-m)}, \qquad m = E[p]

    where p and p' are the true accuracies of two random questions. They are assumed to follow a Beta distribution. The
    distribution is fitted by the method of moments after subtracting the sampling noise. Every question needs at least
    two graded answers.

    Both bounds come from ranking the questions by measured accuracy. The upper bound is optimistic: it evaluates the
    ranking on the same answers. The lower bound is pessimistic: it ranks by a random half of each question's answers
    and evaluates on the other half. It is averaged over 20 random half-splits.

    Returns:
        The estimate, the lower bound and the upper bound. All are NaN if no Beta distribution can be fitted.
    """
    preds = right.double() / known.double()
    _, right, known, _ = prepare(preds, right, known, None, 2)
    m = float(preds.mean())
    spread = float(preds.var() - (preds * (1 - preds) / (known - 1)).mean()) if len(preds) > 1 else 0.0
    if not 0 < m < 1 or spread <= 0 or spread >= m * (1 - m):
        return math.nan, math.nan, math.nan
    total = m * (1 - m) / spread - 1
    a, b = m * total, (1 - m) * total
    # a saved probe must load without scipy
    log_beta = [2 * math.lgamma(x) - math.lgamma(2 * x) for x in (total, a, b)]
    log_difference = math.log(4 / total) + log_beta[0] - log_beta[1] - log_beta[2]
    value = 0.5 + math.exp(log_difference) / (4 * m * (1 - m))
    high = float(capability_auroc(preds, right, known))
    generator, first, halves = torch.Generator().manual_seed(0), (known / 2).floor(), []
    for _ in range(_HALF_SPLITS):
        # hypergeometric draw: shuffle the answers and rank by the first half
        noise = torch.rand(len(known), int(known.max()), generator=generator, dtype=torch.float64)
        index = torch.arange(int(known.max()))[None]
        noise = noise.masked_fill(index >= known[:, None], 2.0)
        chosen = noise.argsort(-1).argsort(-1) < first[:, None]
        in_first = (chosen & (index < right[:, None])).sum(-1).double()
        halves.append(capability_auroc(in_first / first, right - in_first, known - first))
    low = float(torch.stack(halves).nanmean())  # NaN if a half has no right or no wrong answer
    return min(max(value, low), high), low, high


def spearman(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute Spearman's rank correlation between scores and measured accuracies.

    The result is NaN if all scores or all accuracies are equal.
    """
    preds, right, known, weights = prepare(preds, right, known, weights)
    x, y = midranks(preds, weights), midranks(right / known, weights)
    x, y = x - mean(x, weights)[..., None], y - mean(y, weights)[..., None]
    scale = (mean(x * x, weights) * mean(y * y, weights)).sqrt()
    return torch.where(scale > 1e-12, mean(x * y, weights) / scale, torch.nan)
