"""Measure the peak memory and the time of `python -m probes compare` on a million answers to 10,000 questions."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from benchmarks.memory import peak_mb
from benchmarks.result import report
from benchmarks.scale import answers, make_store
from extract.store.parquet import GRADES_SCHEMA, write_table
from extract.store.shards import Block, SampleRange

N_ROWS = 1000  # questions per block
LAYERS, WIDTH = (6, 12, 18), 64
N_WRONG = 50  # different wrong answers to a question


def build(folder: Path, n_questions: int, k: int, n_tokens: int) -> None:
    """Make a graded store in which one hidden-state dimension per layer is the noisy log-odds of a right answer."""
    rng = np.random.default_rng(0)
    store = make_store(folder, n_questions // N_ROWS, N_ROWS)
    schema = GRADES_SCHEMA.with_metadata({"grader": "made", "rule": "none"})
    for block in range(store.questions.n_blocks):
        log_odds = rng.normal(size=N_ROWS)
        states = rng.normal(size=(len(LAYERS), N_ROWS, WIDTH))
        states[:, :, 0] += log_odds
        hidden = {
            f"{layer}/last_prompt": torch.from_numpy(of).float() for layer, of in zip(LAYERS, states, strict=True)
        }
        store.signals.write("hidden", Block(block), hidden)
        for start in range(0, k, 10):
            part = SampleRange(block, start, start + 10)
            table = answers(store, part, n_tokens, rng)
            right = rng.random(table.num_rows) < np.repeat(1 / (1 + np.exp(-log_odds)), 10)
            parsed = np.where(right, 0, 1 + rng.integers(N_WRONG, size=len(right))).astype(str)
            logprobs = table["logprobs"].combine_chunks()  # twice as low for wrong answers
            scaled = logprobs.flatten().to_numpy() * np.repeat(2 - right, logprobs.value_lengths()).astype(np.float32)
            column = pa.ListArray.from_arrays(logprobs.offsets, scaled)
            write_table(store.samples.file(part), table.set_column(5, table.schema.field("logprobs"), column))
            keys = {name: table[name] for name in ("question_id", "sample")}
            write_table(store.grades.file("made", part), pa.table({**keys, "right": right, "answer": parsed}, schema))


def main() -> None:
    """Print the peak memory in GiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=20, help="mean number of tokens per answer")
    parser.add_argument("--n_resamples", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a process returns its memory
            pool.submit(build, folder / "store", options.questions, options.k, options.tokens).result()
        start = time.perf_counter()
        command = ["-m", "probes", "compare", "--store", str(folder / "store"), "--out", str(folder / "out")]
        peak = peak_mb([*command, "--n_resamples", str(options.n_resamples)]) * 1e6 / 2**30
        minutes = (time.perf_counter() - start) / 60
        record = json.loads((folder / "out/comparison.json").read_text(encoding="utf-8"))
    report(
        "compare_memory",
        {"peak in GiB": round(peak, 2)},
        "≤ 4 GiB for 1,000,000 answers",
        peak <= 4,
        minutes=round(minutes, 1),
        n_answers=record["n_answers"],
        n_resamples=options.n_resamples,
        methods=len(record["methods"]),
        methods_on_answers=len(record["answers"]),
        missing=sorted(record["masked"]),
    )


if __name__ == "__main__":
    main()
