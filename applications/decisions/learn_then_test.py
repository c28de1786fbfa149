r"""Use Learn then Test to find thresholds with bounded risk (Angelopoulos et al., arXiv 2110.01052).

The loss of a question is ℓ = 1 − c/n, where c of its n graded answers are right. A threshold λ keeps the questions
whose confidence f is at least λ. Its risk is E[ℓ | f ≥ λ].
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from applications.decisions.betting import betting_p_values, hoeffding_p_values

Array = NDArray[np.float64]
#: Candidate thresholds from strict to loose: log-odds from 7 to −7, and the threshold 0.
THRESHOLDS: Array = np.append(expit(np.arange(140, -141, -1) / 20), 0.0)
#: For each sequence of tested thresholds: the fraction of questions that its first threshold keeps, and the fraction of
#: the error probability 1 − level that the sequence may spend. Sequences that start at a looser threshold help if the
#: most confident questions are not the most accurate ones.
STARTS = ((0.05, 0.55), (0.25, 0.15), (0.5, 0.15), (1.0, 0.15))
#: P-values [threshold] as functions of losses [question, 1], kept questions [question, threshold], risk and levels.
TESTS: dict[str, Callable[[Array, NDArray[np.bool_], float, Array], Array]] = {
    "betting": betting_p_values,
    "hoeffding": lambda losses, is_kept, risk, _: hoeffding_p_values(losses, is_kept, risk),
}


class Certified(NamedTuple):
    """Result of `certify`.

    Attributes:
        threshold: The lowest certified threshold; None if no threshold is certified.
        n_kept: Number of questions at or above the threshold.
        first: The highest tested threshold.
    """

    threshold: float | None
    n_kept: int
    first: float


@cache
def n_needed(risk: float, level: float) -> int:
    """Return the number of questions that the betting test needs to certify a risk if no answer is wrong.

    The error probability 1 − level is split among several sequences of thresholds (see `STARTS`). Any valid test needs
    at least log(w · (1 − level)) / log(1 − risk) questions, where w is the largest share. The betting test needs
    slightly more.

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
    """Return the smallest fraction of questions that a rule must leave unanswered to reach `risk`.

    The fraction is max(0, (μ − α) / (1 − α)), where α is `risk`. μ is `base_risk`, the mean loss over all questions.
    """
    return max(0.0, (base_risk - risk) / (1 - risk))


def oracle_coverage(losses: Array, risk: float) -> float:
    """Return the largest fraction of questions that can be answered with a mean loss of at most `risk`.

    The oracle answers the questions with the lowest `losses` [question].
    """
    return float((np.sort(losses).cumsum() <= risk * np.arange(1, len(losses) + 1) + 1e-9).mean())


def certify(
    confidence: Array, losses: Array, risk: float, level: float = 0.9, seed: int = 0, test: str = "betting"
) -> Certified:
    """Find the lowest threshold λ whose risk E[ℓ | f ≥ λ] is certified to be at most `risk`.

    The guarantee fails with a probability of at most 1 − `level`. For each fraction in `STARTS`, a sequence of
    thresholds is tested in descending order. The sequence starts at the highest threshold that keeps at least this
    fraction of all questions and at least 2 · `n_needed` questions. It stops at the first threshold whose hypothesis is
    not rejected. The hypothesis is that the threshold's risk exceeds `risk`.

    Args:
        confidence: Confidences f, [question]. A question whose confidence is NaN is never answered.
        losses: Losses ℓ in [0, 1], [question].
        test: Name of the test. See `TESTS`.
    """
    order = np.random.default_rng(seed).permutation(len(confidence))
    confidence, losses = confidence[order], losses[order]
    kept = (confidence[:, None] >= THRESHOLDS).sum(0)
    different = np.flatnonzero(np.append(kept[0] > 0, kept[1:] > kept[:-1]))
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
    """Count the rejections in `is_rejected` [hypothesis] before the first hypothesis that is not rejected."""
    return int(np.cumprod(is_rejected).sum())
