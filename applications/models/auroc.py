"""Intervals and tests for AUROCs, after DeLong et al. (Biometrics 44, 1988) and Obuchowski (Biometrics 53, 1997).

Obuchowski's test extends DeLong's to several answers per question. With one answer per question, the two are identical.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit
from torch import Tensor

from probes.metrics.functional.inputs import by_group
from probes.training_free.clustered_auroc import LEAST_OF_A_CLASS, logit_interval, placements


class Auroc(NamedTuple):
    """AUROC of a score over all pairs of a right and a wrong answer.

    Attributes:
        value: The AUROC.
        parts: Contributions of each question to the sampling error of the AUROC, [2, question] float64. Row 0 is for
            right answers, and row 1 for wrong answers. Each row sums to 0.
        n_questions: Numbers of questions with right answers and with wrong answers, [2] int64.
    """

    value: float
    parts: Tensor
    n_questions: Tensor


def auroc_of(score: Tensor, right: Tensor, question: Tensor, n_questions: int) -> Auroc | None:
    """Compute an AUROC. Returns None if fewer than 5 questions have right answers, or fewer than 5 have wrong answers.

    Args:
        score: Scores, [answer] float64; higher means more likely to be right.
        right: Whether each answer is right, [answer] bool.
        question: Index of each answer's question, [answer] int64.
    """
    counts = torch.stack([by_group(members.double(), question, n_questions) for members in (right, ~right)])
    n_of_class = (counts > 0).sum(1)
    if int(n_of_class.min()) < LEAST_OF_A_CLASS:
        return None
    of_right = placements(score[None, right], score[None, ~right])[0]
    of_wrong = placements(-score[None, ~right], -score[None, right])[0]
    value = of_right.mean()
    parts = [
        by_group((placed - value) / len(placed), question[members], n_questions)
        for placed, members in ((of_right, right), (of_wrong, ~right))
    ]
    return Auroc(float(value), torch.stack(parts), n_of_class)


def auroc_of_counts(
    confidence: NDArray[np.float64], right: NDArray[np.int64], known: NDArray[np.int64]
) -> Auroc | None:
    """Compute the `Auroc` of confidences [question] on all graded answers.

    Returns None in the same cases as `auroc_of`.
    """
    counts = np.stack([right, known - right], axis=1).ravel()  # right answers, then wrong answers, of each question
    is_right = torch.from_numpy(np.repeat(np.tile([True, False], len(right)), counts))
    question = torch.from_numpy(np.repeat(np.arange(len(right)), known))
    return auroc_of(torch.from_numpy(confidence)[question], is_right, question, len(right))


def covariance(a: Auroc, b: Auroc) -> float:
    r"""Estimate the covariance of two AUROCs on the same questions. If `a` is `b`, the result is the variance.

    .. math::
        \sum_{x,y} F_{xy} \sum_i a_{xi} b_{yi}, \quad F_{xx} = \frac{I_x}{I_x - 1}, \quad F_{xy} = \frac{I}{I - 1}

    where a_xi and b_xi are the `parts` of the AUROCs, and x and y each stand for "right" or "wrong". I_x is the number
    of questions with answers of kind x, and I is the total number of questions. If I_x differs between `a` and `b`,
    F_xx is the geometric mean of the two factors.
    """
    n = a.parts.shape[1]
    n_a, n_b = a.n_questions.double(), b.n_questions.double()
    own = (n_a / (n_a - 1) * n_b / (n_b - 1)).sqrt()
    factors = torch.diag(own) + n / (n - 1) * (1 - torch.eye(2, dtype=torch.float64))
    return float((factors * (a.parts @ b.parts.T)).sum())


def auroc_estimate(auroc: Auroc | None) -> dict[str, Any] | None:
    """Return a dict with the AUROC (`value`) and its 95 % interval (`low` and `high`).

    The interval is symmetric on the log-odds scale. `low` and `high` are None if all confidences are equal, or if they
    separate right and wrong answers perfectly.
    """
    if auroc is None:
        return None
    error = covariance(auroc, auroc) ** 0.5
    if error < 1e-10:
        return {"value": auroc.value, "low": None, "high": None}
    value, errors = torch.tensor([[auroc.value], [error]], dtype=torch.float64)
    low, high = logit_interval(value, errors, torch.tensor([auroc.parts.shape[1]]))
    return {"value": auroc.value, "low": float(low), "high": float(high)}


def auroc_difference(a: Auroc | None, b: Auroc | None) -> dict[str, Any] | None:
    """Compute the difference a − b of two AUROCs on the same N questions, its 95 % interval and its p-value.

    The interval and the p-value are based on Student's t with N − 1 degrees of freedom. Returns None if an AUROC is
    undefined.
    """
    if a is None or b is None:
        return None
    value, n = a.value - b.value, a.parts.shape[1]
    error = max(0.0, covariance(a, a) + covariance(b, b) - 2 * covariance(a, b)) ** 0.5
    if error < 1e-10:
        return {"value": value, "low": None, "high": None, "p": None}
    reach, p = float(stdtrit(n - 1, 0.975)) * error, float(2 * stdtr(n - 1, -abs(value) / error))
    return {"value": value, "low": value - reach, "high": value + reach, "p": p}
