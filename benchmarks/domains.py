"""Measure the power, false alarms, coverage and speed of `python -m applications domains` on Gaussian clusters."""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from applications.domains.clustering import cluster_questions
from applications.domains.intervals import Estimates, minus_the_rest
from benchmarks.result import report

#: Dimension of the embeddings, number of clusters, size of the planted cluster, and number of answers per question.
WIDTH, N_CLUSTERS, N_PLANTED, K = 384, 8, 60, 10
#: Mean and concentration of the beta distribution of the accuracies, and mean accuracy in the planted cluster.
MEAN, CONCENTRATION, WEAK_MEAN = 0.5, 1.6, 0.25
#: Standard deviation of the centres, and range of the standard deviations of the embeddings around a centre.
CENTRES, SPREADS = 0.45, (0.7, 1.7)

#: For the coverage: sizes of the clusters, and beta distributions of their accuracies.
SIZES = (10, 15, 20, 30, 50, 75, 150, 250)
ACCURACIES = {
    "U-shaped": (0.7, 0.9),
    "mostly wrong": (0.3, 1.5),
    "mostly right": (2.0, 0.3),
    "different means": (
        np.array([0.08, 1.4, 0.8, 0.3, 1.1, 0.6, 0.5, 1.0]),
        np.array([1.5, 0.2, 0.8, 1.3, 0.5, 1, 1.1, 0.6]),
    ),
    "different variances": (np.array([0.1, 8, 0.1, 8, 0.4, 8, 8, 0.4]), np.array([0.1, 8, 0.1, 8, 0.4, 8, 8, 0.4])),
}


def made_questions(n: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return embeddings [question, d_model] and clusters [question]. Cluster 0 is the planted weak domain."""
    sizes = [N_PLANTED, *rng.multinomial(n - N_PLANTED, rng.dirichlet(np.full(N_CLUSTERS - 1, 8.0)))]
    cluster = np.repeat(np.arange(N_CLUSTERS), sizes)
    centres, spread = CENTRES * rng.normal(size=(N_CLUSTERS, WIDTH)), rng.uniform(*SPREADS, N_CLUSTERS)
    embeddings = centres[cluster] + spread[cluster, None] * rng.normal(size=(n, WIDTH))
    return embeddings / np.linalg.norm(embeddings, axis=1)[:, None], cluster


def evaluate(n: int, seed: int) -> tuple[bool, bool, int]:
    """Return whether the planted domain is found, whether there is a false alarm, and the number of clusters.

    The domain counts as found if a weak cluster matches it with an F1 score of at least 0.5. In the test for false
    alarms, all questions have the same expected accuracy.
    """
    rng = np.random.default_rng(seed)
    embeddings, cluster = made_questions(n, rng)
    found, planted = cluster_questions(embeddings, seed=seed).cluster, cluster == 0
    n_found = int(found.max()) + 1

    def difference(mean: NDArray[np.float64]) -> Estimates:
        accuracy = rng.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean))
        return minus_the_rest(rng.binomial(K, accuracy) / K, found, n_found)

    weak = np.flatnonzero(difference(np.where(planted, WEAK_MEAN, MEAN)).high < 0)
    overlaps = [2 * (planted & (found == one)).sum() / (planted.sum() + (found == one).sum()) for one in weak]
    null = difference(np.full(n, MEAN))
    return max(overlaps, default=0.0) >= 0.5, bool(((null.high < 0) | (null.low > 0)).any()), n_found


def missed(alpha: float | NDArray[np.float64], beta: float | NDArray[np.float64], k: int, n: int = 2000) -> float:
    """Return the fraction of n simulations in which at least one cluster's interval misses the true value."""
    rng, cluster, n_missed = np.random.default_rng(0), np.repeat(np.arange(len(SIZES)), SIZES), 0
    a, b = np.broadcast_to(alpha, len(SIZES)), np.broadcast_to(beta, len(SIZES))
    truth = minus_the_rest((a / (a + b))[cluster], cluster, len(SIZES)).value
    for _ in range(n):
        found = minus_the_rest(rng.binomial(k, rng.beta(a[cluster], b[cluster])) / k, cluster, len(SIZES))
        n_missed += bool(((found.low > truth) | (found.high < truth)).any())
    return n_missed / n


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--many", type=int, default=10_000, help="number of questions in the timed run")
    options = parser.parse_args()
    found, alarms, numbers = np.array([evaluate(options.questions, seed) for seed in range(options.seeds)]).mean(0)
    misses = {f"{name}, k = {k}": missed(*shape, k) for name, shape in ACCURACIES.items() for k in (1, 10)}
    start = time.perf_counter()
    evaluate(options.many, 0)
    seconds = time.perf_counter() - start
    report(
        "domains",
        {
            "found": float(found),
            "false alarms": float(alarms),
            "missed": max(misses.values()),
            "seconds": round(seconds, 1),
        },
        "≥ 0.9, ≤ 0.08, ≤ 0.065 and ≤ 120 s",
        found >= 0.9 and alarms <= 0.08 and max(misses.values()) <= 0.065 and seconds <= 120,
        misses=misses,
        mean_clusters=float(numbers),
        **vars(options),
    )


if __name__ == "__main__":
    main()
