"""Brier scores: mean squared distance of confidences from accuracies or from single answers."""

import torch
from torch import Tensor

from probes.metrics.functional.inputs import mean, prepare


def debiased_brier(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Unbiased estimate of the capability Brier score, mean (f − p)².

    .. math:: \frac1N \sum_i f_i^2 - 2 f_i \hat p_i + \frac{c_i (c_i-1)}{n_i (n_i-1)}

    The plain mean of (f − p̂)² is too large by mean p(1−p)/n. Requires n ≥ 2. Can be slightly negative; not clipped.
    """
    preds, right, known, weights = prepare(preds, right, known, weights, least_known=2, probabilities=True)
    terms = preds**2 - 2 * preds * right / known + right * (right - 1) / (known * (known - 1))
    return mean(terms, weights)


def response_brier(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Unbiased Brier score against single answers: the capability Brier plus mean p(1−p). Mean of `brier_terms`."""
    weights = torch.ones_like(preds, dtype=torch.float64) if weights is None else weights.double()
    return mean(brier_terms(preds, right, known), weights)


def brier_terms(preds: Tensor, right: Tensor, known: Tensor) -> Tensor:
    """Brier score of each question against its single answers, f² − 2fp̂ + p̂: [question] float64.

    The terms of `debiased_brier` differ from these by a value that does not depend on the confidence f. Two methods
    therefore have the same differences in both. `probes.metrics.significance.sign_flip` tests these differences.
    """
    preds, right, known, _ = prepare(preds, right, known, None, probabilities=True)
    return preds**2 - 2 * preds * right / known + right / known


def brier_skill(
    preds: Tensor, right: Tensor, known: Tensor, reference: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """Brier skill score 1 − Brier / Brier of `reference`, both debiased.

    `reference` is the mean accuracy of the training split, or [question] of each question's training folds. The value
    is NaN if the Brier score of the reference is not positive.
    """
    base = torch.as_tensor(reference, dtype=torch.float64, device=preds.device).expand(preds.shape)
    worst = debiased_brier(base, right, known, weights)
    return torch.where(worst > 0, 1 - debiased_brier(preds, right, known, weights) / worst, torch.nan)
