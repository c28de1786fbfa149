"""Measure the error rates of the tests, and the coverage of the intervals, in `python -m applications models`.

On the logit scale, a system's true accuracy on a question is the sum of two random terms: the question's easiness, and
a system-question interaction. Questions in the same cluster (if any) share half of the variance of both terms. The
confidence is the true accuracy plus noise, also on the logit scale.

- Error rate: fraction of draws in which p ≤ 0.05 even though both systems have the same distribution. For `holm`, a
  draw counts if any pair among three such systems has a corrected p ≤ 0.05.
- Coverage: fraction of 95 % intervals that contain the true value. Here, system B is less accurate than A.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator

from applications.intervals import estimate, mean_of
from applications.models.auroc import Auroc, auroc_difference, auroc_estimate, auroc_of_counts
from applications.paired import mean_interval, paired_test
from benchmarks.result import report
from extract.viewing.summary import interval
from probes.metrics.significance import add_holm

#: Numbers of questions, and of clusters in the designs with clusters.
SIZES = {150: 30, 30: 10}
#: Number of bootstrap resamples for the coverage.
RESAMPLES = 1000
#: Number of sign patterns for the error rates.
FLIPS = 499
LEVEL = 0.05


class System(NamedTuple):
    """A system's true accuracy on each question, and its confidence, both [question] float64."""

    accuracy: np.ndarray
    confidence: np.ndarray


def systems(n: int, cluster: np.ndarray | None, shifts: tuple[float, ...], rng: Generator) -> list[System]:
    """Simulate systems that answer the same questions. A shift lowers the accuracy and adds noise to the confidence."""

    def effect() -> np.ndarray:
        own = rng.normal(size=n)
        return own if cluster is None else (own + rng.normal(size=cluster.max() + 1)[cluster]) / 2**0.5

    easiness, drawn = 0.5 + 1.2 * effect(), []
    for shift in shifts:
        logit = easiness + 0.8 * effect() - shift
        noisy = logit + (1 + shift) * rng.normal(size=n)
        drawn.append(System(1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(-noisy))))
    return drawn


def counted(drawn: list[System], k: int, rng: Generator) -> list[np.ndarray]:
    """Draw the number of right answers among k answers to each question. Return one array [question] per system."""
    return [rng.binomial(k, system.accuracy) for system in drawn]


def aurocs(drawn: list[System], right: list[np.ndarray], k: int) -> list[Auroc | None]:
    """Compute the AUROC of each system's confidences."""
    known = np.full(len(right[0]), k)
    return [auroc_of_counts(system.confidence, c, known) for system, c in zip(drawn, right, strict=True)]


def error_rates(n: int, k: int, draws: int, clustered: bool, rng: Generator) -> dict[str, float]:
    """Return the type I error rate of each test. In all draws, the systems have the same distribution."""
    hits: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    cluster = np.arange(n) % SIZES[n] if clustered else None
    for draw in range(draws):
        drawn = systems(n, cluster, (0.0, 0.0, 0.0), rng)
        right = counted(drawn, k, rng)
        pairs = [paired_test((right[a] - right[b]) / k, FLIPS, draw, cluster) for a, b in ((0, 1), (0, 2), (1, 2))]
        add_holm(pairs)
        p_values = {pairs[0]["test"]: pairs[0]["p"], "holm": min(pair["p_holm"] for pair in pairs)}
        if pairs[0]["p_mid"] is not None:
            p_values["mid-p"] = pairs[0]["p_mid"]
        found = None if clustered else auroc_difference(*aurocs(drawn[:2], right[:2], k))
        if found and found["p"] is not None:
            p_values["AUROC"] = found["p"]
        for name, p in p_values.items():
            hits[name] += p <= LEVEL
            totals[name] += 1
    return {name: round(hits[name] / totals[name], 4) for name in totals}


def coverage(n: int, k: int, draws: int, clustered: bool, rng: Generator) -> dict[str, float]:
    """Return the fraction of intervals of each kind that contain the true value."""
    shifts = (0.0, 0.6)
    cluster = np.arange(n) % SIZES[n] if clustered else None
    large = systems(10**6, None, shifts, rng)
    means = [float(system.accuracy.mean()) for system in large]
    areas = [_population_auroc(system) for system in large]
    counts: dict[str, list[bool]] = defaultdict(list)

    def count(name: str, found: Any, true: float) -> None:
        if found and found["low"] is not None:
            counts[name].append(found["low"] <= true <= found["high"])

    for draw in range(draws):
        drawn = systems(n, cluster, shifts, rng)
        right = counted(drawn, k, rng)
        a, b = (c / k for c in right)
        if clustered:
            count("clustered, accuracy", mean_interval(a, cluster), means[0])
            count("clustered, difference", mean_interval(a - b, cluster), means[0] - means[1])
            continue
        low_high = dict(zip(("value", "low", "high"), interval(a) or (), strict=True))
        count("t, accuracy", low_high, means[0])
        count("t, difference", mean_interval(a - b), means[0] - means[1])
        count("bootstrap, accuracy", estimate(mean_of(a), n, RESAMPLES, draw), means[0])
        count("bootstrap, difference", estimate(mean_of(a - b), n, RESAMPLES, draw), means[0] - means[1])
        found = aurocs(drawn, right, k)
        count("AUROC", auroc_estimate(found[0]), areas[0])
        count("AUROC, difference", auroc_difference(*found), areas[0] - areas[1])
    return {name: round(float(np.mean(held)), 4) for name, held in counts.items()}


def _population_auroc(system: System) -> float:
    """Compute the AUROC over pairs of answers to different questions."""
    order = system.confidence.argsort()
    right = system.accuracy[order]
    wrong_below = np.concatenate([[0], (1 - right).cumsum()[:-1]])
    return float((right * wrong_below).sum() / (right.sum() * (1 - right).sum()))


def main() -> None:
    """Print the error rates and coverages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000, help="number of draws per error rate")
    parser.add_argument("--coverage_draws", type=int, default=1000, help="number of draws per coverage estimate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    designs = [(n, k, clustered) for n in SIZES for k in (1, 4) for clustered in (False, True)]
    rates, covered = {}, {}
    for seed, (n, k, clustered) in enumerate(designs):
        name = f"N = {n}, k = {k}" + f", {SIZES[n]} clusters" * clustered
        rates[name] = error_rates(n, k, options.draws, clustered, np.random.default_rng([seed, 0]))
        covered[name] = coverage(n, k, options.coverage_draws, clustered, np.random.default_rng([seed, 1]))
        print(name, rates[name], covered[name], file=sys.stderr)
    most = LEVEL + 3 * (LEVEL * (1 - LEVEL) / options.draws) ** 0.5
    sized = all(rate <= most for of_design in rates.values() for rate in of_design.values())
    held = all(
        (0.93 <= share <= 0.97) if n == max(SIZES) else share >= 0.91
        for (n, *_), of_design in zip(designs, covered.values(), strict=True)
        for share in of_design.values()
    )
    bar = f"error rates ≤ {most:.4f}; coverage 0.93-0.97 at N = 150 and ≥ 0.91 at N = 30"
    report("models", {"error rates": rates, "coverage": covered}, bar, sized and held, **vars(options))


if __name__ == "__main__":
    main()
