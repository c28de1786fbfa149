"""Allocate a sampling budget to questions by the expected gain of each further answer."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extract.errors import InputError

Array = NDArray[np.float64]


class Ranking(NamedTuple):
    """Order in which the answers are drawn.

    Attributes:
        question: Question of each answer, [rank].
        answer: Number of earlier answers to the same question, [rank].
        last: Rank of the last answer in each group of tied answers, [tie]. Tied answers have the same gain and the same
            value of `answer`.
    """

    question: NDArray[np.int64]
    answer: NDArray[np.int64]
    last: NDArray[np.int64]


def uniform_gains(n_questions: int, most: int) -> Array:
    """Return gains [question, answer] that make `allocate` spread the answers evenly over the questions."""
    return np.tile(-np.arange(most, dtype=np.float64), (n_questions, 1))


def plug_in_gains(confidence: Array, most: int) -> Array:
    """Return the gain of each answer, f (1 − f)^j for j = 0, …, `most` − 1. The shape is [question, answer].

    f is the confidence [question], which is not clipped. The gain is the probability that the answer is the first right
    one.
    """
    f = confidence[:, None]
    return _decreasing(f, np.repeat(1 - f, most - 1, axis=1))


def beta_gains(a: Array, b: Array, most: int) -> Array:
    """Return the gain of each answer j, E[p (1 − p)^j] = B(a + 1, b + j) / B(a, b). The shape is [question, answer].

    The priors are p ~ Beta(a, b), where a and b have shape [question]. If a is 0, p is 0. If b is 0, p is 1.
    """
    a, b, earlier = a[:, None], b[:, None], np.arange(most - 1)
    return _decreasing(a / (a + b), (b + earlier) / (a + b + 1 + earlier))


def hazards(a: Array, b: Array, most: int) -> Array:
    """Return the probability a / (a + b + j) that answer j is right, given that all earlier answers are wrong."""
    return a[:, None] / ((a + b)[:, None] + np.arange(most))


def _decreasing(first: Array, factors: Array) -> Array:
    """Concatenate `first` and `factors` along axis 1, and return the cumulative products along this axis.

    The products never increase, because all factors are in [0, 1].
    """
    return np.concatenate([first, factors], axis=1).cumprod(axis=1)


def rank(gains: Array, caps: NDArray[np.int64]) -> Ranking:
    """Sort all answers by decreasing gain. Ties are broken by answer index, then by question index.

    Args:
        gains: Gain of each answer, [question, answer], non-increasing along `answer`.
        caps: Maximum number of answers to each question, [question], at most `gains.shape[1]`.
    """
    answer, question = np.divmod(np.argsort(-gains.T.ravel(), kind="stable"), len(gains))
    kept = answer < caps[question]
    answer, question = answer[kept], question[kept]
    gain = gains[question, answer]
    last = np.append((gain[1:] != gain[:-1]) | (answer[1:] != answer[:-1]), True)
    return Ranking(question, answer, np.flatnonzero(last))


def allocate(gains: Array, caps: NDArray[np.int64], totals: Sequence[int]) -> NDArray[np.int64]:
    """For each total, return the allocation with the largest sum of gains, [total, question].

    A total is a number of answers, summed over all questions. See `rank` for `gains` and `caps`.

    Raises:
        InputError: If a total is not between 0 and the sum of the caps.
    """
    if not 0 <= min(totals) <= max(totals) <= caps.sum():
        raise InputError(
            f"Expected `totals` to be between 0 and {caps.sum()}, the number of available answers, but got "
            f"{list(totals)}. Sample more answers."
        )
    question = rank(gains, caps).question
    return np.stack([np.bincount(question[:total], minlength=len(caps)) for total in totals])
