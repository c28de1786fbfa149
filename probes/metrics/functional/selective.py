"""Metrics for selective prediction (rejecting the least confident answers) and for detecting wrong answers."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from probes.metrics.functional.inputs import by_group, mean, prepare, ties


def aurc(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Compute the area under the risk–coverage curve. Lower is better.

    The risk of a question is 1 − p̂, where p̂ is its measured accuracy. The area is the mean risk of the k most
    confident questions, averaged over all k (Geifman and El-Yaniv, Selective Classification for Deep Neural Networks,
    2017). For an uninformative score, the expected area is the mean risk of all questions.

    For tied scores, the area is averaged over all orders of the tied questions. Suppose that W questions with total
    risk E precede a tie of m questions with mean risk ē. The tie then contributes this amount to the sum over k:

    .. math:: \sum_{t=1}^m \frac{E + t \bar e}{W + t} = m \bar e + (E - W \bar e) [\psi(W+m+1) - \psi(W+1)]

    where ψ is the digamma function.
    """
    preds, right, known, weights = prepare(preds, right, known, weights)
    return _mean_risk(preds, 1 - right / known, weights)


def e_aurc(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the excess AURC, which is `aurc` minus the AURC of an oracle. Lower is better, and the minimum is 0.

    The oracle ranks the questions by their measured accuracies (Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty
    Estimation for Deep Neural Classifiers, 2019). Unlike in the paper, the AURC of the oracle is computed exactly.
    """
    preds, right, known, weights = prepare(preds, right, known, weights)
    accuracy = right / known
    return _mean_risk(preds, 1 - accuracy, weights) - _mean_risk(accuracy, 1 - accuracy, weights)


def prediction_rejection_ratio(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, max_rejection: float = 1.0
) -> Tensor:
    """Compute the prediction–rejection ratio, which is 1 for the best possible order and 0 for a random order.

    The rejection curve shows the mean accuracy after the r least confident questions are rejected. The ratio is the
    area between this curve and that of a random order, divided by the same area for an oracle. The oracle ranks the
    questions by their measured accuracies. With N questions, the areas cover r from 0 to `max_rejection` · N − 1. Ties
    are treated as in `aurc`. The result is NaN if all accuracies are equal.

    The definition follows LM-Polygraph (Vashurin et al., Benchmarking Uncertainty Quantification Methods for Large
    Language Models with LM-Polygraph, 2025). Unlike in LM-Polygraph, the area is interpolated if `max_rejection` · N is
    not an integer.
    """
    preds, right, known, weights = prepare(preds, right, known, weights)
    risk = 1 - right / known
    gain, best = (mean(risk, weights) - _mean_risk(order, risk, weights, max_rejection) for order in (preds, -risk))
    return torch.where(best > 1e-12, gain / best, torch.nan)


def _mean_risk(scores: Tensor, risk: Tensor, weights: Tensor, max_rejection: float = 1.0) -> Tensor:
    """Return the mean risk of the remaining questions, averaged over rejection rates up to `max_rejection`.

    See `aurc` for the formula.
    """
    group, of_group = ties(scores)
    group = len(of_group) - 1 - group  # from the highest score to the lowest
    mass, tie_risk = (by_group(values, group, len(of_group)) for values in (weights, weights * risk))
    covered, total = mass.cumsum(-1), weights.sum(-1, keepdim=True)
    tie_mean = tie_risk / torch.where(mass > 0, mass, 1.0)
    excess = tie_risk.cumsum(-1) - covered * tie_mean  # E − W ē
    ends = torch.maximum(pad(covered, (1, 0)), (1 - max_rejection) * total)
    areas = tie_mean * ends.diff() + excess * torch.digamma(ends + 1).diff()
    return areas.sum(-1) / (max_rejection * total[..., 0])


def auprc(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the area under the precision–recall curve for detecting wrong answers from their low scores.

    Wrong answers are the positive class. Each question contributes p̂ right answers and 1 − p̂ wrong answers with the
    same score, where p̂ is its measured accuracy. The area is the average precision, as in scikit-learn's
    `average_precision_score`. For an uninformative score, the area is about the fraction of wrong answers. The result
    is NaN if there are no wrong answers.
    """
    wrong, right = _by_score(*prepare(preds, right, known, weights))
    detected, flagged = wrong.cumsum(-1), (wrong + right).cumsum(-1)
    precision = detected / torch.where(flagged > 0, flagged, 1.0)
    total = detected[..., -1]
    return torch.where(total > 1e-12, (wrong * precision).sum(-1) / total, torch.nan)


def recall_at_fpr(
    preds: Tensor, right: Tensor, known: Tensor, weights: Tensor | None = None, max_fpr: float = 0.05
) -> Tensor:
    """Compute the fraction of wrong answers detected by low scores at the false positive rate `max_fpr`.

    Wrong answers are the positive class. The false positive rate is the fraction of right answers flagged as wrong.
    Each question contributes p̂ right answers and 1 − p̂ wrong answers, where p̂ is its measured accuracy. The ROC
    curve is interpolated linearly. The result is NaN unless there are both right and wrong answers.
    """
    wrong, right = _by_score(*prepare(preds, right, known, weights))
    n_wrong, n_right = wrong.sum(-1), right.sum(-1)
    left = (max_fpr * n_right)[..., None] - (right.cumsum(-1) - right)
    flagged = (left / torch.where(right > 0, right, 1.0)).clamp(0, 1)
    flagged = torch.where(right > 0, flagged, (left > -1e-9).double())
    defined = (n_wrong > 1e-12) & (n_right > 1e-12)
    return torch.where(defined, (wrong * flagged).sum(-1) / n_wrong, torch.nan)


def _by_score(preds: Tensor, right: Tensor, known: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the total weights of wrong and right answers at each distinct score, both [..., score].

    The scores are in ascending order.
    """
    group, of_group = ties(preds)
    accuracy = right / known
    wrong, right = (by_group(weights * share, group, len(of_group)) for share in (1 - accuracy, accuracy))
    return wrong, right
