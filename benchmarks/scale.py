"""Measure the cost of large stores: bytes per answer, and the time that several operations take per shard.

The operations include `ranges_to_ask`, `write_manifest`, `describe` and `find_problems`. Their time per shard should
not grow with the number of shards. The stores resemble those sampled from a server with `--server.n 1`: each shard has
one sample per question. Each block has `--rows` questions.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.result import report
from extract.policy import Decoding, Identity, ModelIdentity, Policy
from extract.questions.question import Question, questions_hash
from extract.running.worker import Worker
from extract.samplers import SAMPLERS
from extract.sampling.server.queue import ranges_to_ask
from extract.store.answer_log import AnswerLog
from extract.store.parquet import GRADES_SCHEMA, SAMPLES_SCHEMA, write_table
from extract.store.questions import Questions
from extract.store.shards import SampleRange
from extract.store.store import Store
from extract.store.verify import find_problems, write_manifest
from extract.viewing.inspection import describe

WORDS = np.array("the of a is in it answer river city was born year thus we so that sum equals times and".split())
TOKENS_OF_TEXT = 4.5  # letters and a space per token, about as in English


def make_store(folder: Path, n_blocks: int, n_rows: int) -> Store:
    """Make a store without answers, for a model on a server."""
    questions = [
        Question(id=f"q{i:08d}", dataset="made", text=f"What is known of number {i}?", references=("x",))
        for i in range(n_blocks * n_rows)
    ]
    table = Questions.of(questions, n_rows)
    policy = Policy(ModelIdentity("served", None, None, None, None, None), Decoding(max_new_tokens=4096), request={})
    return Store.create(folder, Identity(policy, questions_hash(table), n_rows, SAMPLERS["server"].version), table)


def answers(store: Store, part: SampleRange, n_tokens: int, rng: np.random.Generator) -> pa.Table:
    """Return a shard's answers, with text and log-probabilities. The mean number of tokens is `n_tokens`."""
    ids, samples = store.questions.ids(part), range(part.start, part.stop)
    n = len(ids) * len(samples)
    lengths = np.maximum(1, rng.geometric(1 / n_tokens, n))
    texts = [" ".join(WORDS[rng.integers(len(WORDS), size=max(1, round(one * TOKENS_OF_TEXT / 5)))]) for one in lengths]
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    logprobs = pa.array(-rng.exponential(0.5, lengths.sum()).astype(np.float32))
    columns: dict[str, Any] = {
        "question_id": np.repeat(ids, len(samples)),
        "sample": np.tile(np.array(samples, dtype=np.int32), len(ids)),
        "text": texts,
        "reasoning": pa.nulls(n, pa.string()),
        "token_ids": pa.nulls(n, pa.list_(pa.int32())),
        "logprobs": pa.ListArray.from_arrays(offsets, logprobs),
        "n_tokens": lengths.astype(np.int32),
        "finish_reason": pa.array(["stop"] * n),
        "prompt_tokens": np.full(n, 40, dtype=np.int32),
    }
    return pa.table(columns, schema=SAMPLES_SCHEMA)


def write_part(store: Store, part: SampleRange, table: pa.Table, right: NDArray[np.bool_]) -> None:
    """Write the answers and grades of a shard."""
    write_table(store.samples.file(part), table)
    columns = {"question_id": table["question_id"], "sample": table["sample"], "right": right, "answer": table["text"]}
    schema = GRADES_SCHEMA.with_metadata({"grader": "made", "rule": "none"})
    write_table(store.grades.file("made", part), pa.table(columns, schema=schema))


def bytes_of(n_tokens: int, n_rows: int = 1024) -> dict[str, float]:
    """Return the bytes per answer in the table, log and grades, and the seconds to read 10⁶ answers.

    `n_rows` is the number of questions per block.
    """
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        store, part = make_store(Path(folder), 1, n_rows), SampleRange(0, 0, 10)
        table = answers(store, part, n_tokens, rng)
        write_part(store, part, table, rng.random(table.num_rows) < 0.4)
        few = table.slice(0, 1000).to_pylist()
        with_ids = [{**row, "token_ids": rng.integers(128_000, size=row["n_tokens"]).tolist()} for row in few]
        log, size = AnswerLog(store, SampleRange(0, 10, 20)), {}
        for row in few:
            log.append([row])
        log.close()
        size["log"] = log.path.stat().st_size / len(few)
        write_table(Path(folder) / "ids.parquet", pa.Table.from_pylist(with_ids, schema=SAMPLES_SCHEMA))
        size["table with token ids"] = (Path(folder) / "ids.parquet").stat().st_size / len(few)
        size["table"] = store.samples.file(part).stat().st_size / table.num_rows
        size["grade"] = store.grades.file("made", part).stat().st_size / table.num_rows
        size["seconds to read a million"] = seconds(lambda: store.samples.read(part)) / table.num_rows * 1e6
    return {name: round(value, 1) for name, value in size.items()}


def seconds(action: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def by_parts(n_parts: int, n_rows: int, k: int) -> dict[str, float]:
    """Measure each store operation (seconds per thousand shards) and the manifest (bytes per shard).

    The store has k shards per block, and one grade per answer.
    """
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), n_parts // k, n_rows)
        for block in range(store.questions.n_blocks):
            for sample in range(k):
                part = SampleRange(block, sample, sample + 1)
                write_part(store, part, answers(store, part, 20, rng), rng.random(n_rows) < 0.4)
        opened = Store.open(folder)
        _ = opened.questions
        actions: dict[str, Callable[[], object]] = {
            "list": opened.samples.ranges,
            "find what is missing": lambda: ranges_to_ask(opened, k, 1, [], Worker()),
            "manifest": lambda: write_manifest(opened),
            "inspect": lambda: describe(opened),
            "verify": lambda: list(find_problems(opened)),
            "samples()": opened.samples.read,
        }
        found = {name: seconds(action) / n_parts * 1000 for name, action in actions.items()}
        found["manifest bytes a part"] = (Path(folder) / "manifest.json").stat().st_size / n_parts
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Run the scaling benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, nargs="+", default=[250, 1000, 4000])
    parser.add_argument("--rows", type=int, default=64, help="number of questions per block")
    parser.add_argument("--k", type=int, default=50, help="number of samples, each in a separate shard")
    options = parser.parse_args()
    by_parts(options.k, options.rows, options.k)  # warm-up
    sizes = {f"{n} tokens": bytes_of(n) for n in (20, 200)}
    times = {}
    for n in options.parts:
        times[f"{n} parts"] = by_parts(n, options.rows, options.k)
        print(json.dumps({n: times[f"{n} parts"]}), file=sys.stderr, flush=True)
    first, last = times[f"{options.parts[0]} parts"], times[f"{options.parts[-1]} parts"]
    growth = {name: last[name] / first[name] for name in first if name != "manifest bytes a part"}
    report(
        "scale",
        {"growth of the time for a part": max(growth.values())},
        f"≤ 2 from {options.parts[0]} to {options.parts[-1]} parts: nothing is slower than linear",
        max(growth.values()) <= 2,
        growth={name: round(value, 2) for name, value in growth.items()},
        bytes_of_an_answer=sizes,
        seconds_for_a_thousand_parts=times,
        rows_of_a_part=options.rows,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )


if __name__ == "__main__":
    main()
