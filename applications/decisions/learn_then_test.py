r"""Thresholds with a guaranteed risk: Learn then Test (Angelopoulos et al., arXiv 2110.01052), clustered by question.

The unit is a question with the loss ℓ = 1 − c/n, where c of its n graded answers are right. Its n answers are one
observation in [0, 1]. A threshold λ keeps the questions whose confidence f is at least λ. Its risk is
E[ℓ | f ≥ λ], which is the expected fraction of wrong answers among the answers that are given.
"""

from collections.abc import Callable
from functools import cache
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
#: P-values [threshold] as functions of losses [question, 1], kept questions [question, threshold], risk and levels.
TESTS: dict[str, Callable[[Array, NDArray[np.bool_], float, Array], Array]] = {
    "betting": betting_p_values,
    "hoeffding": lambda losses, is_kept, risk, _: hoeffding_p_values(losses, is_kept, risk),
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


@cache
def n_needed(risk: float, level: float) -> int:
    """Return the number of questions for which a loss of 0 on all of them certifies the risk.

    No valid test needs fewer than log(w (1 − level)) / log(1 − risk) questions, where w is the largest fraction of the
    error probability in `STARTS`. The betting test needs a few more.

    >>> n_needed(0.2, 0.9), n_needed(0.05, 0.9)
    (14, 58)
    """
    of_sequence = 1 - max(weight for _, weight in STARTS) * (1 - level)
    least = int(np.ceil(np.log(1 - of_sequence) / np.log(1 - risk)))
    numbers = np.arange(least, 2 * least + 10)
    is_kept = np.arange(numbers[-1])[:, None] < numbers
    p_values = betting_p_values(np.zeros((len(is_kept), 1)), is_kept, risk, of_sequence)
    return int(numbers[(p_values <= (1 - of_sequence) * (1 + 1e-9)).argmax()])


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
    counts = kept[different]
    least = [min(max(fraction * len(losses), 2 * n_needed(risk, level)), counts[-1]) for fraction, _ in STARTS]
    starts = np.searchsorted(counts, least)
    tested = np.concatenate([np.arange(start, len(different)) for start in starts])
    levels = np.repeat([1 - weight * (1 - level) for _, weight in STARTS], len(different) - starts)
    is_kept = confidence[:, None] >= THRESHOLDS[different[tested]]
    is_rejected = TESTS[test](losses[:, None], is_kept, risk, levels) <= (1 - levels) * (1 + 1e-9)
    sequences = np.split(is_rejected, np.cumsum(len(different) - starts)[:-1])
    ends = [start + n_rejected(of) for start, of in zip(starts, sequences, strict=True) if of[0]]
    strictest = float(THRESHOLDS[different[starts[0]]])
    if not ends:
        return Certified(None, 0, strictest)
    last = max(ends) - 1
    return Certified(float(THRESHOLDS[different[last]]), int(counts[last]), strictest)


def n_rejected(is_rejected: NDArray[np.bool_]) -> int:
    """Return how many hypotheses fixed-sequence testing rejects: those before the first one that is not rejected."""
    return int(np.cumprod(is_rejected).sum())
