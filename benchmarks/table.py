"""Measure the memory per answer during and after `load_table`, and the time for a million answers.

The store resembles one sampled from a server: it has log-probabilities but no token ids. In the grades, the parsed
answer is the full text of the answer.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.result import report
from benchmarks.scale import answers, make_store, seconds, write_part
from datamodules.table import load_table
from extract.store.shards import SampleRange
from extract.store.store import Store

N_ROWS = 1000  # questions per block


def build(folder: Path, n_questions: int, k: int, n_tokens: int) -> float:
    """Make a graded store with k answers per question. Returns the in-memory size of one shard of answers, in bytes."""
    store, rng = make_store(folder, n_questions // N_ROWS, N_ROWS), np.random.default_rng(0)
    table = answers(store, SampleRange(0, 0, k), n_tokens, rng)
    for block in range(store.questions.n_blocks):
        part = SampleRange(block, 0, k)
        ids = np.repeat(store.questions.ids(part), k)
        write_part(store, part, table.set_column(0, "question_id", pa.array(ids)), rng.random(len(ids)) < 0.4)
    return float(table.nbytes)


def resident() -> float:
    """Release unused memory, and return the resident memory in bytes."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=100, help="mean number of tokens per answer")
    options = parser.parse_args()
    sizes = {"small": N_ROWS, "large": options.questions}
    with tempfile.TemporaryDirectory() as name:
        folders = {size: Path(name) / size for size in sizes}
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its memory is not counted
            for size, n_questions in sizes.items():
                shard = pool.submit(build, folders[size], n_questions, options.k, options.tokens).result()
        load_table(Store.open(folders["small"]))  # loads the libraries
        before, tables = resident(), []
        took = seconds(lambda: tables.append(load_table(Store.open(folders["large"]))))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        after, n = resident(), len(tables[0].answers.question)
        tables.clear()
        kept = after - resident()  # without the memory that allocators do not return
    report(
        "table",
        {"bytes per answer": round(kept / n, 1)},
        "≤ 100 bytes per answer, with the questions of the store, and a peak of at most 3 times that plus a shard",
        kept <= 100 * n and peak <= 3 * kept + shard,
        growth_bytes_per_answer=round((after - before) / n, 1),
        peak_bytes_per_answer=round(peak / n, 1),
        mb_of_a_shard=round(shard / 1e6, 1),
        n_answers=n,
        seconds=round(took, 1),
    )


if __name__ == "__main__":
    main()
