"""How much the answers to a question differ in meaning: entropy over clusters of answers, spread of embeddings.

Higher means that answers differ more and are more likely wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from extract.errors import InputError


def discrete_entropy(clusters: Sequence[Hashable]) -> float:
    """Entropy of the shares of clusters among a question's answers (Farquhar et al., Nature 630, 2024), in nats.

    Args:
        clusters: [sample] cluster of each answer, from `clusters_of` or by entailment.

    Returns:
        Entropy from 0 to ln of the number of answers; NaN without answers.

    >>> discrete_entropy(["paris", "paris", "rome", "rome"])  # ln 2
    0.6931471805599453
    """
    if not clusters:
        return float("nan")
    sizes = sorted(Counter(clusters).values())  # equal sizes give the same bits in any order
    return _entropy(np.array(sizes) / len(clusters))


def likelihood_entropy(mean_logprobs: NDArray[np.float64], clusters: Sequence[Hashable]) -> float:
    """Entropy of clusters weighted by the likelihood of their answers, in nats (estimator "rao" of Farquhar et al.).

    Args:
        mean_logprobs: [sample] mean log-probability of each answer's tokens, in nats; its exponential is the answer's
            weight. NaN for an answer without tokens, which is left out.
        clusters: [sample] as in `discrete_entropy`.

    Returns:
        Entropy from 0 to ln of the number of clusters; NaN without answers.
    """
    of_cluster: dict[Hashable, list[float]] = {}
    for cluster, logprob in zip(clusters, mean_logprobs, strict=True):
        if not np.isnan(logprob):
            of_cluster.setdefault(cluster, []).append(float(logprob))
    if not of_cluster:
        return float("nan")
    largest = max(max(logprobs) for logprobs in of_cluster.values())  # subtracted, so that no cluster underflows
    mass = np.array([np.exp(np.array(logprobs) - largest).sum() for logprobs in of_cluster.values()])
    return _entropy(mass / mass.sum())


def _entropy(share: NDArray[np.float64]) -> float:
    present = share[share > 0]
    return max(0.0, float(-(present * np.log(present)).sum()))


def seu(embeddings: NDArray[np.floating]) -> float:
    r"""Semantic embedding uncertainty: mean cosine distance between a question's answers (arXiv 2410.22685).

    .. math:: 1 - \frac{\lVert \sum_m e_m \rVert^2 - M}{M (M-1)}

    Args:
        embeddings: [sample, d] embeddings of norm 1; NaN rows (empty answers) are left out.

    Returns:
        Distance from 0 for equal answers to M/(M−1) for opposite ones; NaN for fewer than two answers.

    >>> seu(np.eye(3))
    1.0
    """
    rows = embeddings[~np.isnan(embeddings).any(1)].astype(np.float64)
    n = len(rows)
    if n < 2:
        return float("nan")
    squared_norm = float(np.square(rows.sum(0)).sum())
    return max(0.0, 1 - (squared_norm - n) / (n * (n - 1)))  # negative by rounding only


def entropy_threshold(entropies: NDArray[np.float64]) -> float:
    """Threshold that best splits semantic entropies into low and high ones (Kossen et al., arXiv 2406.15927).

    Of 100 thresholds g from 1e-10 to the largest entropy, takes the one with the smallest sum of squares around the
    means of the two sides, H < g and H ≥ g. Fit it on training questions only.

    Args:
        entropies: [question] semantic entropies; NaN is left out.

    Returns:
        The threshold; an entropy equal to it is a high one.

    Raises:
        InputError: If no threshold has questions on both sides.

    >>> entropy_threshold(np.array([0.0, 0.0, 1.0, 1.0]))
    1e-10
    """
    known = entropies[~np.isnan(entropies)]
    thresholds = np.linspace(1e-10, known.max(initial=0.0), 100)
    low = known[None] < thresholds[:, None]
    n_low = low.sum(1)
    usable = (n_low > 0) & (n_low < len(known))
    if not usable.any():
        same = "the same" if len(known) else "none"
        raise InputError(
            f"Expected training questions of low and of high semantic entropy, but all {len(known)} have {same}. "
            "Use more questions, or sample more answers at a higher temperature."
        )
    thresholds, low, n_low = thresholds[usable], low[usable], n_low[usable]
    mean_low = (known * low).sum(1) / n_low
    mean_high = (known * ~low).sum(1) / (len(known) - n_low)
    squares = np.square(known - np.where(low, mean_low[:, None], mean_high[:, None])).sum(1)
    return float(thresholds[squares.argmin()])


def clusters_of(answers: Iterable[str | None]) -> list[Hashable]:
    """Clusters of equal normalised answers; an answer that the grader could not read is a cluster of its own.

    >>> clusters_of(["lima", None, "lima", None])
    ['lima', 1, 'lima', 3]
    """
    return [answer or number for number, answer in enumerate(answers)]
