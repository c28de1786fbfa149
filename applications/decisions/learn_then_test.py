r"""Thresholds with a guaranteed risk: Learn then Test (Angelopoulos et al., arXiv 2110.01052), clustered by question.

The unit is a question with the loss ℓ = 1 − c/n, where c of its n graded answers are right. Its n answers are one
observation in [0, 1]. A threshold λ keeps the questions whose confidence f is at least λ. Its risk is
E[ℓ | f ≥ λ], which is the expected fraction of wrong answers among the answers that are given.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from applications.decisions.betting import betting_p_values, hoeffding_p_values

Array = NDArray[np.float64]
#: Candidate thresholds from strict to loose. They do not depend on any data: log-odds from 7 to −7, and 0.
THRESHOLDS: Array = np.append(expit(np.arange(140, -141, -1) / 20), 0.0)
#: The first tested threshold keeps this fraction of the questions, or twice as many as `n_needed`.
_LEAST_FRACTION = 0.05


class Certified(NamedTuple):
    """Loosest threshold whose risk is at most the requested one at the requested level.

    Attributes:
        threshold: Smallest confidence of an answer that is given; None if no threshold is certified.
        n_kept: Number of questions at or above the threshold.
        p_value: P-value of the threshold; that of the first tested threshold if none is certified.
        first: The first tested threshold, and the strictest one that could be certified.
    """

    threshold: float | None
    n_kept: int
    p_value: float
    first: float


def n_needed(risk: float, level: float) -> int:
    r"""Return the number of questions for which a loss of 0 on all of them certifies the risk.

    It is the smallest n with (1 − risk)ⁿ ≤ 1 − level.

    >>> n_needed(0.2, 0.9), n_needed(0.05, 0.9)
    (11, 45)
    """
    return int(np.ceil(np.log(1 - level) / np.log(1 - risk) - 1e-9))


def necessary_abstention(base_risk: float, risk: float) -> float:
    r"""Return the least fraction of questions that any rule with this risk leaves unanswered, (μ − α) / (1 − α).

    μ is the mean loss of all questions and α is `risk`. A loss is at most 1, so that a fraction a of unanswered
    questions implies μ ≤ (1 − a) α + a.
    """
    return max(0.0, (base_risk - risk) / (1 - risk))


def oracle_coverage(losses: Array, risk: float) -> float:
    """Return the largest fraction of questions with at most this mean loss. `losses` [question] are known to it."""
    return float((np.sort(losses).cumsum() <= risk * np.arange(1, len(losses) + 1) + 1e-9).mean())


def certify(
    confidence: Array, losses: Array, risk: float, level: float = 0.9, seed: int = 0, test: str = "betting"
) -> Certified:
    """Find the loosest threshold with E[ℓ | f ≥ λ] ≤ `risk` that is certified at `level`.

    `THRESHOLDS` are tested from strict to loose, each at the level 1 − `level`, until the first one that is not
    rejected (fixed-sequence testing). The probability that the returned threshold has a larger risk is therefore at
    most 1 − `level`. The sequence starts where the confidences keep enough questions for a rejection to be possible.

    Args:
        confidence: [question] confidences f. A question with the confidence NaN is never answered.
        losses: [question] losses ℓ in [0, 1].
        risk: Requested risk, between 0 and 1.
        level: Requested probability, between 0 and 1.
        seed: Seed of the order in which the questions are tested.
        test: ``betting``, or ``hoeffding`` as a baseline.
    """
    order = np.random.default_rng(seed).permutation(len(confidence))
    confidence, losses = confidence[order], losses[order]
    kept = np.array([(confidence >= threshold).sum() for threshold in THRESHOLDS])
    least = min(max(2 * n_needed(risk, level), _LEAST_FRACTION * len(losses)), np.isfinite(confidence).sum())
    tested = np.flatnonzero((kept >= least) & np.append(True, kept[1:] > kept[:-1]))  # distinct sets of questions
    if not len(tested):
        tested = np.array([kept.argmax()])
    of_thresholds = np.where(confidence[:, None] >= THRESHOLDS[tested], losses[:, None], np.nan)
    if test == "hoeffding":
        p_values = hoeffding_p_values(of_thresholds, risk)
    else:
        p_values = betting_p_values(of_thresholds, risk, level)
    n_rejected = n_certified(p_values, level)
    first = float(THRESHOLDS[tested[0]])
    if n_rejected == 0:
        return Certified(None, 0, float(p_values[0]), first)
    last = tested[n_rejected - 1]
    return Certified(float(THRESHOLDS[last]), int(kept[last]), float(p_values[n_rejected - 1]), first)


def n_certified(p_values: Array, level: float) -> int:
    """Return how many hypotheses fixed-sequence testing rejects: those before the first p-value above 1 − `level`."""
    return int(np.cumprod(p_values <= (1 - level) * (1 + 1e-9)).sum())
