"""Measure the time and memory of Pass@K for 76,523 questions with 100 answers each, as in arXiv 2602.13540.

Pass@K is computed for K = 1 to 100. The squared errors of the predictions and the oracle are computed for K = 1 to 50.
Pass@K is checked against values computed from exact binomial coefficients.
"""

from __future__ import annotations

import math
import resource
import time

import numpy as np

from applications.passk.beta_binomial import fit
from applications.passk.estimators import oracle_errors, pass_at_k, predict, squared_errors
from benchmarks.result import report

N_QUESTIONS, N_ANSWERS = 76_523, 100
BAR_SECONDS, BAR_GIB = 60, 2


def largest_difference() -> float:
    """Return the largest error of `pass_at_k` for n = 100 answers, over all numbers of right answers and all K.

    The exact values are computed from integer binomial coefficients.
    """
    ks = range(1, N_ANSWERS + 1)
    right = np.arange(N_ANSWERS + 1)
    found = pass_at_k(right, np.full_like(right, N_ANSWERS), ks)
    exact = [[1 - math.comb(N_ANSWERS - c, k) / math.comb(N_ANSWERS, k) for c in range(N_ANSWERS + 1)] for k in ks]
    return float(np.abs(found - np.array(exact)).max())


def main() -> None:
    """Print the results."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.8, N_QUESTIONS)
    known = np.full(N_QUESTIONS, N_ANSWERS)
    right = rng.binomial(known, p)
    seconds = {}
    start = time.perf_counter()
    means = pass_at_k(right, known, range(1, N_ANSWERS + 1)).mean(1)
    seconds["pass_at_k"] = time.perf_counter() - start
    halves = range(1, N_ANSWERS // 2 + 1)
    start = time.perf_counter()
    error = squared_errors(predict(p, halves), right, known, halves).mean(1)
    seconds["squared_errors"] = time.perf_counter() - start
    start = time.perf_counter()
    oracle = oracle_errors(right, known, halves).mean(1)
    seconds["oracle_errors"] = time.perf_counter() - start
    start = time.perf_counter()
    model = fit(right, known, zero_inflated=True)
    seconds["zero_inflated_fit"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report(
        "passk",
        {"seconds": sum(seconds.values()), "peak GiB": peak},
        f"{N_QUESTIONS:,} questions × {N_ANSWERS}, all K: ≤ {BAR_SECONDS} s and ≤ {BAR_GIB} GiB",
        sum(seconds.values()) <= BAR_SECONDS and peak <= BAR_GIB,
        **seconds,
        largest_difference_from_exact=largest_difference(),
        pass_at_1_and_100=[means[0], means[-1]],
        error_of_the_truth_at_1_and_50=[error[0], error[-1]],
        error_of_the_oracle_at_1_and_50=[oracle[0], oracle[-1]],
        fitted=model._asdict(),
    )


if __name__ == "__main__":
    main()
