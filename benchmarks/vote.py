"""Measure the time and memory of `python -m applications vote` with all rules on a synthetic temperature grid."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from applications.voting.command import vote
from benchmarks.result import report
from tests.helpers.synthetic import make_grid


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--temperatures", type=int, default=13)
    parser.add_argument("--k", type=int, default=16, help="number of answers per question at each temperature above 0")
    parser.add_argument("--orders", type=int, default=200)
    options = parser.parse_args()
    accuracy = np.random.default_rng(0).beta(0.7, 0.9, options.questions)
    with tempfile.TemporaryDirectory() as scratch:
        grid = make_grid(Path(scratch) / "grid", accuracy, (np.arange(options.temperatures) / 10).tolist(), options.k)
        confidences = Path(scratch) / "confidences.parquet"
        ids = [f"q{number}" for number in range(options.questions)]
        pq.write_table(pa.table({"question_id": ids, "accuracy": accuracy}), confidences)
        start = time.perf_counter()
        vote(str(grid), [f"{confidences}:accuracy"], orders=options.orders, out=str(Path(scratch) / "vote"))
        seconds = time.perf_counter() - start
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report(
        "vote",
        {"seconds": round(seconds, 1), "peak MiB": round(mib)},
        "≤ 60 s and ≤ 2048 MiB",
        seconds <= 60 and mib <= 2048,
        **vars(options),
    )


if __name__ == "__main__":
    main()
