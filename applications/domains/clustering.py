"""Cluster questions by their embeddings with k-means."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extract.errors import InputError

#: Numbers of clusters to choose from.
CANDIDATES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20)
#: Minimum mean number of distinct questions per cluster.
LEAST_MEAN_SIZE = 20
#: Minimum stability of the chosen number of clusters, as a fraction of the highest stability.
SHARE_OF_BEST = 0.9
#: Number of random splits into halves.
N_SPLITS = 10
#: Number of principal components.
N_COMPONENTS = 50
#: Number of runs of k-means with different initial centres.
_N_STARTS = 5

Vectors = NDArray[np.float64]


class Clustering(NamedTuple):
    """Clusters of questions, numbered by decreasing size.

    Attributes:
        cluster: Index of each question's cluster, [question] int64.
        distance: Euclidean distance of each question from its cluster centre, in principal-component space, [question]
            float64.
        n_distinct: Number of distinct embeddings.
        stability: Result of the function `stability`. Empty if the number of clusters was given.
    """

    cluster: NDArray[np.int64]
    distance: NDArray[np.float64]
    n_distinct: int
    stability: dict[int, NDArray[np.float64]]


def cluster_questions(embeddings: Vectors, n_clusters: int | None = None, seed: int = 0) -> Clustering:
    """Cluster questions by k-means on the principal components of their distinct embeddings [question, d_model].

    By default, `choose_number` chooses the number of clusters based on `stability`.

    Raises:
        InputError: If there are fewer distinct questions than clusters, or too few to choose the number of clusters.
    """
    from sklearn.decomposition import PCA

    distinct, row = np.unique(embeddings.round(4), axis=0, return_inverse=True)  # batching changes the last digits
    n = len(distinct)
    if n_clusters is None and n < 2 * LEAST_MEAN_SIZE:
        raise InputError(
            f"Expected at least {2 * LEAST_MEAN_SIZE} distinct questions to choose the number of clusters, but got "
            f"{n}. Pass --clusters to choose it yourself."
        )
    if n_clusters is not None and not 2 <= n_clusters <= n:
        raise InputError(
            f"Expected `clusters` to be between 2 and the number of distinct questions, {n}, but got {n_clusters}. "
            "Use fewer clusters or more questions."
        )
    points = PCA(min(N_COMPONENTS, *distinct.shape), random_state=0).fit_transform(distinct)
    found = {} if n_clusters else stability(points, seed)
    centres = _centres(points, n_clusters or choose_number(found), seed)
    distances = np.linalg.norm(points[:, None] - centres, axis=2)[row]
    nearest = distances.argmin(1)
    order = np.argsort(-np.bincount(nearest), kind="stable")
    return Clustering(np.argsort(order)[nearest], distances.min(1), n, found)


def stability(points: Vectors, seed: int = 0) -> dict[int, NDArray[np.float64]]:
    """Measure the agreement between clusterings of two random halves of the points [point, component].

    The points are split several times. Both halves of a split are clustered. All points are then assigned to the
    nearest centre of each clustering. The agreement is the adjusted Rand index of the two assignments (Lange et al.,
    Stability-based validation of clustering solutions, Neural Computation 16, 2004).

    Returns:
        A dict from the number of clusters to the adjusted Rand index of each split, [split]. Its keys are the
        `CANDIDATES` with at least 20 points per cluster on average.
    """
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng(seed)
    halves = [np.array_split(rng.permutation(len(points)), 2) for _ in range(N_SPLITS)]

    def agreement(n_clusters: int, split: int) -> float:
        first, second = (_nearest(points, _centres(points[half], n_clusters, seed)) for half in halves[split])
        return float(adjusted_rand_score(first, second))

    numbers = [number for number in CANDIDATES if number * LEAST_MEAN_SIZE <= len(points)]
    return {number: np.array([agreement(number, split) for split in range(N_SPLITS)]) for number in numbers}


def choose_number(found: dict[int, NDArray[np.float64]]) -> int:
    """Choose the largest number of clusters whose mean stability is at least 90 % of the highest.

    >>> choose_number({2: np.array([0.9]), 4: np.array([0.85]), 8: np.array([0.5])})
    4
    """
    means = {number: float(values.mean()) for number, values in found.items()}
    best = max(means, key=lambda number: means[number])
    return max(number for number in means if number == best or means[number] >= SHARE_OF_BEST * means[best])


def _centres(points: Vectors, n_clusters: int, seed: int) -> Vectors:
    """Return the k-means cluster centres [cluster, component]."""
    from sklearn.cluster import KMeans

    found: Vectors = KMeans(n_clusters, n_init=_N_STARTS, random_state=seed).fit(points).cluster_centers_
    return found


def _nearest(points: Vectors, centres: Vectors) -> NDArray[np.intp]:
    """Return the index of the centre that is nearest to each point."""
    from sklearn.metrics import pairwise_distances_argmin

    found: NDArray[np.intp] = pairwise_distances_argmin(points, centres)
    return found
