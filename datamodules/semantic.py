"""Semantic uncertainty of the answers to a question. Larger values mean that the answers differ more in meaning."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from extract.errors import InputError


def discrete_entropy(clusters: Sequence[Hashable]) -> float:
    """Compute the entropy in nats of the cluster frequencies (Farquhar et al., Nature 630, 2024); NaN without answers.

    `clusters` [sample] contains the cluster of each answer, from `clusters_of` or from entailment.

    >>> discrete_entropy(["paris", "paris", "rome", "rome"])  # ln 2
    0.6931471805599453
    """
    if not clusters:
        return float("nan")
    sizes = sorted(Counter(clusters).values())  # sorted, so that rounding does not depend on the order
    return max(0.0, float(entr(np.array(sizes) / len(clusters)).sum()))


def likelihood_entropy(mean_logprobs: NDArray[np.float64], clusters: Sequence[Hashable]) -> float:
    """Compute the entropy in nats of likelihood-weighted clusters (the "rao" estimator of Farquhar et al.).

    Args:
        mean_logprobs: Mean log-probability of each answer's tokens in nats, [sample]. Its exponential is the weight of
            the answer. Answers without tokens (NaN) are ignored.
        clusters: Cluster of each answer, [sample], as in `discrete_entropy`.
    """
    if np.isnan(mean_logprobs).all():
        return float("nan")
    mass: dict[Hashable, float] = defaultdict(float)
    likelihoods = np.exp(mean_logprobs - np.nanmax(mean_logprobs))  # prevents underflow
    for cluster, likelihood in zip(clusters, np.nan_to_num(likelihoods), strict=True):
        mass[cluster] += likelihood
    return max(0.0, float(entr(np.array([*mass.values()]) / sum(mass.values())).sum()))


def seu(embeddings: NDArray[np.floating]) -> float:
    r"""Compute the semantic embedding uncertainty, the mean cosine distance between answers (arXiv 2410.22685).

    .. math:: 1 - \frac{\lVert \sum_m e_m \rVert^2 - M}{M (M-1)}

    M is the number of answers. The value lies between 0 (identical answers) and M/(M−1). It is NaN for fewer than two
    answers.

    Args:
        embeddings: Embeddings e_m of norm 1, [sample, d]. NaN rows (empty answers) are ignored.

    >>> seu(np.eye(3))
    1.0
    """
    rows = embeddings[~np.isnan(embeddings).any(1)].astype(np.float64)
    n = len(rows)
    if n < 2:
        return float("nan")
    squared_norm = float(np.square(rows.sum(0)).sum())
    return max(0.0, 1 - (squared_norm - n) / (n * (n - 1)))  # rounding can make it negative


def entropy_threshold(entropies: NDArray[np.float64]) -> float:
    """Fit the threshold between low and high semantic entropies (Kossen et al., arXiv 2406.15927).

    The threshold g is one of 100 values from 1e-10 to the largest entropy. It divides the entropies H into two groups,
    H < g and H ≥ g. It minimises the sum of squared deviations from the group means. Pass only entropies of training
    questions.

    Args:
        entropies: Semantic entropies in nats, [question]. NaN values are ignored.

    Raises:
        InputError: If every threshold leaves one of the groups empty.

    >>> entropy_threshold(np.array([0.0, 0.0, 1.0, 1.0]))
    1e-10
    """
    known = entropies[~np.isnan(entropies)]
    squares = {}
    for threshold in np.linspace(1e-10, known.max(initial=0.0), 100):
        low, high = known[known < threshold], known[known >= threshold]
        if len(low) and len(high):
            squares[threshold] = np.square(low - low.mean()).sum() + np.square(high - high.mean()).sum()
    if not squares:
        raise InputError(
            f"Expected training questions with different semantic entropies, but all {len(known)} entropies are "
            "identical. Use more questions, or sample more answers at a higher temperature."
        )
    return float(min(squares, key=squares.__getitem__))


def clusters_of(answers: Iterable[str | int | None]) -> list[Hashable]:
    """Assign identical normalised answers to the same cluster. Each unreadable answer forms its own cluster.

    `answers` [sample] contains normalised answers, or values of `AnswerTable.answer_class`. An answer is unreadable if
    it is None, an empty string or class 0.

    >>> clusters_of(["lima", None, "lima", None])
    ['lima', -2, 'lima', -4]
    """
    return [answer or ~number for number, answer in enumerate(answers)]
