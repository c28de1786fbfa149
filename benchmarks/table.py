"""Measure the memory that the table of a million answers keeps, its peak while loading, and the loading time."""

from __future__ import annotations

import argparse
import ctypes
import gc
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.result import report
from benchmarks.scale import answers, make_store, write_part
from datamodules.table import load_table
from extract.store.shards import SampleRange
from extract.store.store import Store


def build(folder: Path, n_questions: int, k: int, n_tokens: int, n_rows: int = 1000) -> float:
    """Write a graded store, and return the size of its largest file of samples in memory, in bytes."""
    store, rng = make_store(folder, n_questions // n_rows, n_rows), np.random.default_rng(0)
    largest = 0.0
    for block in range(store.questions.n_blocks):
        part = SampleRange(block, 0, k)
        table = answers(store, part, n_tokens, rng)
        write_part(store, part, table, rng.random(table.num_rows) < 0.4)
        largest = max(largest, table.nbytes)
    return largest


def resident() -> float:
    """Return the resident memory in bytes, after freed memory has been returned to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss)


def main() -> None:
    """Print the bytes per answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=100, help="mean number of tokens per answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, n = Path(name) / "store", options.questions * options.k
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # so that its memory is not counted
            shard = pool.submit(build, folder, options.questions, options.k, options.tokens).result()
            load_table(Store.open(folder))
