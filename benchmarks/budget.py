"""Measure the time and memory of `budget_record` for 10,000 questions with 64 graded answers each."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from applications.budget.record import budget_record
from benchmarks.result import report
from benchmarks.scale import make_store
from datamodules.table import QuestionTable

BAR_SECONDS, BAR_GIB = 60, 2


def made_table(ids: list[str], k: int, rng: np.random.Generator) -> tuple[QuestionTable, np.ndarray]:
    """Return a table that has counts but no answers, together with noisy confidences [question]."""
    n = len(ids)
    accuracy = rng.beta(0.5, 0.7, n)
    held, other = (rng.binomial(k // 2, accuracy) for _ in range(2))
    counts: dict[str, Any] = {"right": held + other, "known": np.full(n, k), "unknown": np.zeros(n, dtype=np.int64)}
    counts |= {"held_right": held, "held_known": np.full(n, k // 2), "held_unknown": np.zeros(n, dtype=np.int64)}
    groups = [f"group {i % 10}" for i in range(n)]
    empty: Any = None
    nothing = np.zeros(n)
    table = QuestionTable(ids, groups, nothing, **counts, consistency=nothing, grader="made", answers=empty, asked={})
    return table, np.clip(accuracy + rng.normal(0, 0.2, n), 0, 1)


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), options.questions // 100, 100)
        ids = [question.id for question in store.questions]
        table, confidence = made_table(ids, options.k, np.random.default_rng(0))
        start, cpu = time.perf_counter(), time.process_time()
        record, _ = budget_record(store, table, {"made": confidence}, None, options.resamples, seed=0)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report(
        "budget",
        {"seconds": seconds, "peak GiB": gib},
        f"≤ {BAR_SECONDS} s and ≤ {BAR_GIB} GiB",
        seconds <= BAR_SECONDS and gib <= BAR_GIB,
        cpu_seconds=cpu_seconds,
        questions=options.questions,
        k=options.k,
        resamples=options.resamples,
        budgets=record["budgets"],
        methods=sum(len(setting["methods"]) for setting in record["settings"].values()),
    )


if __name__ == "__main__":
    main()
