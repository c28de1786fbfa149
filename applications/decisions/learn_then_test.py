r"""Thresholds with a guaranteed risk: Learn then Test (Angelopoulos et al., arXiv 2110.01052), clustered by question.

The unit is a question with the loss ℓ = 1 − c/n, where c of its n graded answers are right. Its n answers are one
observation in [0, 1]. A threshold λ keeps the questions whose confidence f is at least λ. Its risk is
E[ℓ | f ≥ λ], which is the expected fraction of wrong answers among the answers that are given.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from applications.decisions.betting import betting_p_values, hoeffding_p_values

Array = NDArray[np.float64]
#: Candidate thresholds from strict to loose. They do not depend on any data: log-odds from 7 to −7, and 0.
THRESHOLDS: Array = np.append(expit(np.arange(140, -141, -1) / 20), 0.0)
#: Starts of the sequences of thresholds: the fraction of the questions that the first threshold keeps, and the
#: fraction of the error probability 1 − level that is spent on the sequence. The last one only tests whether all
#: questions can be answered. The others help if the most confident questions are not the most accurate ones.
STARTS = ((0.05, 0.55), (0.25, 0.15), (0.5, 0.15), (1.0, 0.15))
#: P-values [threshold] as functions of losses [question, threshold], the risk and the level.
TESTS: dict[str, Callable[[Array, float, float], Array]] = {
    "betting": betting_p_values,
    "hoeffding": lambda losses, risk, level: hoeffding_p_values(losses, risk),
}


class Certified(NamedTuple):
    """Loosest threshold whose risk is at most the requested one at the requested level.

    Attributes:
        threshold: Smallest confidence of an answer that is given; None if no threshold is certified.
        n_kept: Number of questions at or above the threshold.
        first: The strictest tested threshold.
    """

    threshold: float | None
    n_kept: int
    first: float


def n_needed(risk: float, level: float) -> int:
    r"""Return the number of questions for which a loss of 0 on all of them certifies the risk.

    It is the smallest n with (1 − risk)ⁿ ≤ w (1 − level), where w is the largest fraction in `STARTS`.

    >>> n_needed(0.2, 0.9), n_needed(0.05, 0.9)
    (13, 55)
    """
    share = max(weight for _, weight in STARTS)
    return int(np.ceil(np.log(share * (1 - level)) / np.log(1 - risk) - 1e-9))


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

    Each sequence tests `THRESHOLDS` from strict to loose, at its fraction of 1 − `level`, until the first hypothesis
    that is not rejected (fixed-sequence testing with several starts). The probability that the returned threshold has
    a larger risk is therefore at most 1 − `level`. A sequence starts at the first threshold that keeps its fraction of
    the questions in `STARTS`, and twice as many as `n_needed`. These starts depend only on the confidences.

    Args:
        confidence: [question] confidences f. A question with the confidence NaN is never answered.
        losses: [question] losses ℓ in [0, 1].
        risk: Requested risk, between 0 and 1.
        level: Requested probability, between 0 and 1.
        seed: Seed of the order in which the questions are tested.
        test: Name of the test, see `TESTS`.
    """
    order = np.random.default_rng(seed).permutation(len(confidence))
    confidence, losses = confidence[order], losses[order]
    kept = (confidence[:, None] >= THRESHOLDS).sum(0)
    different = np.flatnonzero(np.append(kept[0] > 0, kept[1:] > kept[:-1]))  # thresholds that keep different questions
    of_thresholds = np.where(confidence[:, None] >= THRESHOLDS[different], losses[:, None], np.nan)
    counts, last, first = kept[different], -1, len(different)
    for fraction, weight in STARTS:
        least = min(max(fraction * len(losses), 2 * n_needed(risk, level)), counts[-1])
        start = int(np.searchsorted(counts, least))
        of_sequence = 1 - weight * (1 - level)
        n = n_certified(TESTS[test](of_thresholds[:, start:], risk, of_sequence), of_sequence)
        last, first = max(last, start + n - 1 if n else -1), min(first, start)
    strictest = float(THRESHOLDS[different[first]])
    if last < 0:
        return Certified(None, 0, strictest)
    return Certified(float(THRESHOLDS[different[last]]), int(counts[last]), strictest)


def n_certified(p_values: Array, level: float) -> int:
    """Return how many hypotheses fixed-sequence testing rejects: those before the first p-value above 1 − `level`."""
    return int(np.cumprod(p_values <= (1 - level) * (1 + 1e-9)).sum())
