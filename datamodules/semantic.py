"""Semantic uncertainty of the answers to a question: entropy over clusters of answers, and spread of embeddings.

Higher values mean that answers differ more in meaning and are more likely wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from extract.errors import InputError


def discrete_entropy(clusters: Sequence[Hashable]) -> float:
    """Discrete semantic entropy in nats: entropy of the cluster shares (Farquhar et al., Nature 630, 2024).

    `clusters` has the cluster of each answer [sample], from `clusters_of` or by entailment. NaN without answers.

    >>> discrete_entropy(["paris", "paris", "rome", "rome"])  # ln 2
    0.6931471805599453
    """
    if not clusters:
        return float("nan")
    sizes = sorted(Counter(clusters).values())  # equal sizes give the same bits in any order
    return max(0.0, float(entr(np.array(sizes) / len(clusters)).sum()))


def likelihood_entropy(mean_logprobs: NDArray[np.float64], clusters: Sequence[Hashable]) -> float:
    """Entropy of clusters weighted by the likelihood of their answers, in nats (estimator "rao" of Farquhar et al.).

    Args:
        mean_logprobs: [sample] mean log-probability of each answer's tokens, in nats, whose exponential is the weight
            of the answer. Answers with NaN (without tokens) are left out.
        clusters: [sample] cluster of each answer, as in `discrete_entropy`.
    """
    if np.isnan(mean_logprobs).all():
        return float("nan")
    mass: dict[Hashable, float] = defaultdict(float)
    likelihoods = np.exp(mean_logprobs - np.nanmax(mean_logprobs))  # the largest is 1, against underflow
    for cluster, likelihood in zip(clusters, np.nan_to_num(likelihoods), strict=True):
        mass[cluster] += likelihood
    return max(0.0, float(entr(np.array([*mass.values()]) / sum(mass.values())).sum()))


def seu(embeddings: NDArray[np.floating]) -> float:
    r"""Semantic embedding uncertainty: mean cosine distance between a question's answers (arXiv 2410.22685).

    .. math:: 1 - \frac{\lVert \sum_m e_m \rVert^2 - M}{M (M-1)}

    It ranges from 0 for equal answers to M/(M−1) for opposite ones. It is NaN for fewer than two answers.

    Args:
        embeddings: [sample, d] embeddings of norm 1. NaN rows (empty answers) are left out.

    >>> seu(np.eye(3))
    1.0
    """
    rows = embeddings[~np.isnan(embeddings).any(1)].astype(np.float64)
    n = len(rows)
    if n < 2:
        return float("nan")
    squared_norm = float(np.square(rows.sum(0)).sum())
    return max(0.0, 1 - (squared_norm - n) / (n * (n - 1)))  # negative only by rounding


def entropy_threshold(entropies: NDArray[np.float64]) -> float:
    """Best threshold between low and high semantic entropies (Kossen et al., arXiv 2406.15927).

    Tries 100 thresholds g from 1e-10 to the largest entropy, and minimises the sum of squares around the means of the
    two sides, H < g and H ≥ g. Fit it on training questions only.

    Args:
        entropies: [question] semantic entropies in nats. NaN is left out.

    Raises:
        InputError: If no threshold has questions on both sides.

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
            f"Expected training questions of low and of high semantic entropy, but all {len(known)} have the same. "
            "Use more questions, or sample more answers at a higher temperature."
        )
    return float(min(squares, key=squares.__getitem__))


def clusters_of(answers: Iterable[str | None]) -> list[Hashable]:
    """Clusters of equal normalised answers. Each answer that the grader could not read forms a separate cluster.

    >>> clusters_of(["lima", None, "lima", None])
    ['lima', 1, 'lima', 3]
    """
    return [answer or number for number, answer in enumerate(answers)]
