"""Unbiased estimates of Pass@K and of prediction errors, from counts of right answers.

The functions share these arguments:

- `right`, `known` [question]: number c of right answers and number n of graded answers. If sampling stopped at a right
  answer, the estimates are biased.
- `k` [k]: values of K in Pass@K, each at least 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln
from scipy.stats import hypergeom

from extract.errors import InputError

Values = NDArray[np.float64]
Counts = NDArray[np.int64]


def pass_at_k(right: Counts, known: Counts, k: Sequence[int]) -> Values:
    r"""Estimate the probability [k, question] that at least one of k answers is right (Chen et al., arXiv 2107.03374).

    .. math:: 1 - \binom{n-c}{k} \Big/ \binom{n}{k}

    Raises:
        InputError: If a value in `k` is below 1 or above the smallest n.
    """
    return 1 - none_right(right, known, k)


def none_right(right: Counts, known: Counts, k: Sequence[int]) -> Values:
    """Estimate the probability [k, question] that none of k answers is right. It equals 1 − `pass_at_k`."""
    for one in k:
        if not 1 <= one <= known.min(initial=one):
            raise InputError(
                f"Expected `k` to be between 1 and {known.min()}, the smallest number of graded answers to a question, "
                f"but got {one}. Use a smaller k, or sample and grade more answers."
            )
    (right, known), place = distinct(right, known)
    return all_wrong(right, known, max(k, default=0))[list(k)][:, place]


def all_wrong(right: Counts, known: Counts, most: int) -> Values:
    r"""Compute the probability :math:`\binom{n-c}{j} / \binom{n}{j}` that j answers are all wrong, for j ≤ `most`.

    `right` (c) and `known` (n) can have any number of axes. The result, [most + 1, ...], is 0 for j > n.
    """
    right, known = np.broadcast_arrays(right, known)
    drawn = np.arange(most).reshape(-1, *(1,) * known.ndim)
    ratios = np.maximum(known - right - drawn, 0) / np.maximum(known - drawn, 1)
    return np.cumprod(np.concatenate([np.ones((1, *known.shape)), ratios]), axis=0)


def distinct(*columns: Counts) -> tuple[tuple[Counts, ...], Counts]:
    """Return the distinct combinations of values in `columns`, and the index of each question's combination."""
    rows, place = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return tuple(rows), place.ravel()


def pass_of_split(right: Counts, known: Counts, k: Sequence[int]) -> Values:
    r"""Estimate the probability [question] that at least one answer is right, with k_t answers from each source t.

    .. math:: 1 - \prod_t \binom{n_t-c_t}{k_t} \Big/ \binom{n_t}{k_t}

    Args:
        right: Number c_t of right answers from each source (for example, each temperature), [source, question].
        known: Number n_t of graded answers from each source, [source, question].
        k: Number of answers k_t from each source; can be 0.
    """
    sources = zip(right, known, k, strict=True)
    return 1 - np.prod([none_right(c, n, [drawn])[0] for c, n, drawn in sources if drawn], axis=0)


def predict(confidence: Values, k: Sequence[int]) -> Values:
    """Predict Pass@K from confidences f [question] as 1 − (1 − f)^k. Returns [k, question]."""
    return 1 - (1 - confidence) ** np.array(k)[:, None]


def predict_from_prior(a: Values, b: Values, k: Sequence[int]) -> Values:
    r"""Predict Pass@K from priors p ~ Beta(a, b), where a and b have shape [question]. Returns [k, question].

    .. math:: \mathrm{E}\,[1 - (1 - p)^k] = 1 - \frac{B(a, b + k)}{B(a, b)}

    If a is 0, p is 0. If b is 0, p is 1.
    """
    known, n = (a > 0) & (b > 0), np.array(k)[:, None]
    predicted = np.where(b > 0, 0.0, np.ones((len(k), len(a))))
    predicted[:, known] = 1 - np.exp(betaln(a[known], b[known] + n) - betaln(a[known], b[known]))
    return predicted


def squared_errors(predicted: Values, right: Counts, known: Counts, k: Sequence[int]) -> Values:
    r"""Compute unbiased estimates of the squared errors (S − θ)² of Pass@K predictions S. Returns [k, question].

    θ is the true Pass@K. If a and b are estimates of θ from two disjoint halves of the answers, the expectation of
    (S − a)(S − b) is (S − θ)². If c of the n answers are right, the mean of this product over all splits into halves is

    .. math:: (1-S)^2 - 2 (1-S) u_k + u_{2k}, \qquad u_k = \binom{n-c}{k} \Big/ \binom{n}{k}

    For k = 1, this is the debiased Brier score of the question. The estimates can be negative.

    Args:
        predicted: Predictions that do not depend on the graded answers, [k, question].
        right: Number of right answers, [question].
        known: Number of graded answers, [question], each at least 2 · max(k).
        k: Values of K in Pass@K.
    """
    missed = 1 - predicted
    return missed**2 - 2 * missed * none_right(right, known, k) + none_right(right, known, [2 * one for one in k])


def oracle_errors(right: Counts, known: Counts, k: Sequence[int]) -> Values:
    """Estimate the squared error of `predict` if it is given an oracle confidence, [k, question].

    The confidence is the accuracy on half of the answers. The prediction is scored on the other half. The error is
    averaged over all splits into halves. Each value of `known` must be at least 2 · max(k).
    """
    both = none_right(right, known, [2 * one for one in k])
    (right, known), place = distinct(right, known)
    half = known // 2
    seen = np.arange(half.max() + 1)[:, None]  # right answers in the half that defines the confidence
    share = hypergeom.pmf(seen, known, right, half)  # 0 for impossible splits
    missed = (1 - seen / half) ** np.array(k)[:, None, None]
    other = all_wrong(np.clip(right - seen, 0, known - half), known - half, max(k, default=0))[list(k)]
    return (share * (missed**2 - 2 * missed * other)).sum(1)[:, place] + both


def predictive_band(confidence: Values, k: Sequence[int]) -> dict[str, Any]:
    r"""Predict the fraction of questions solved with k answers each, with a 95 % predictive band.

    If f is the probability that an answer is right, a question is solved with probability S = 1 − (1 − f)^k. The
    fraction has mean :math:`\mu = \sum S / N` and standard deviation :math:`\sqrt{\sum S (1-S)} / N`. The band is
    μ ± 1.96 standard deviations (arXiv 2602.13540). `value`, `low` and `high` have shape [k].
    """
    solved = predict(confidence, k)
    value, spread = solved.mean(1), 1.96 * np.sqrt((solved * (1 - solved)).sum(1)) / len(confidence)
    return {"value": value, "low": np.maximum(value - spread, 0), "high": np.minimum(value + spread, 1)}
