"""Brier scores: mean squared differences between confidences and accuracies or grades."""

import torch
from torch import Tensor

from probes.metrics.functional.inputs import mean, prepare


def debiased_brier(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Compute an unbiased estimate of the mean of (f − p)² over questions.

    .. math:: \frac1N \sum_i \Big(f_i^2 - 2 f_i \hat p_i + \frac{c_i (c_i-1)}{n_i (n_i-1)}\Big)

    where question i of N has confidence f_i and true accuracy p_i. Of its n_i ≥ 2 graded answers, c_i are
    right, and p̂_i = c_i / n_i. The mean of (f − p̂)² would be too large by the mean of p(1 − p)/n.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, least_known=2, probabilities=True)
    terms = preds**2 - 2 * preds * right / known + right * (right - 1) / (known * (known - 1))
    return mean(terms, weights)


def response_brier(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the Brier score against individual answers. The score is the mean of `brier_terms`."""
    weights = torch.ones_like(preds, dtype=torch.float64) if weights is None else weights.double()
    return mean(brier_terms(preds, right, known), weights)


def brier_terms(preds: Tensor, right: Tensor, known: Tensor) -> Tensor:
    """Compute the Brier score of each question against its individual answers, [question] float64.

    The score of a question is f² − 2fp̂ + p̂, where f is the confidence and p̂ is the measured accuracy. These scores
    differ from the terms of `debiased_brier` by amounts that do not depend on f. Therefore, both give the same mean
    difference between two methods.
    """
    preds, right, known, _ = prepare(preds, right, known, None, probabilities=True)
    return preds**2 - 2 * preds * right / known + right / known


def brier_skill(
    preds: Tensor, right: Tensor, known: Tensor, reference: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """Compute the Brier skill score 1 − B / B₀. B and B₀ are the debiased Brier scores of `preds` and `reference`.

    `reference` is a tensor [question] or a single confidence, such as the mean accuracy of the training split. The
    result is NaN if B₀ is not positive.
    """
    base = torch.as_tensor(reference, dtype=torch.float64, device=preds.device).expand(preds.shape)
    worst = debiased_brier(base, right, known, weights)
    return torch.where(worst > 0, 1 - debiased_brier(preds, right, known, weights) / worst, torch.nan)
