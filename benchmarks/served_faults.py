"""Kill `sample` at random moments, while a proxy breaks 30 % of the server's replies.

Each answer must be stored once, and no stored answer may be requested again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.result import report
from extract.prompts import PromptTemplate
from extract.sampling.server.policy import request_seed
from extract.store.store import Store
from tests.helpers.serving_stub import MODEL, Options, Running, answer_text, faults, stub
from tests.helpers.tiny import write_questions

K, TEMPERATURE = 10, 1.0


def command(store: Path, questions: Path, proxy: Running) -> list[str]:
    """Return the command line of the sampler."""
    given = {
        "store": store,
        "questions": questions,
        "sampler": "server",
        "model": MODEL,
        "k": K,
        "policy.temperature": TEMPERATURE,
        "server.url": proxy.url,
        "server.max_concurrency": 64,
        "server.timeout": 2,
        "server.attempts": 30,
    }
    return [sys.executable, "-m", "extract", "sample", *(f"--{name}={value}" for name, value in given.items())]


def held(store: Path) -> Counter[tuple[str, int]]:
    """Count the copies of each answer in finished tables and unfinished logs."""
    tables = {path.stem: path for path in (store / "samples").glob("*.parquet") if path.with_suffix(".json").is_file()}
    rows: list[dict[str, Any]] = []
    for path in tables.values():
        rows += pq.read_table(path, columns=["question_id", "sample"]).to_pylist()
    for path in (store / "samples").glob("*.jsonl"):
        if path.stem not in tables:
            for line in path.read_bytes().splitlines(keepends=True)[1:]:
                rows += json.loads(line) if line.endswith(b"\n") else []
    return Counter((row["question_id"], row["sample"]) for row in rows)


def written(store: Path) -> int:
    """Return the total size in bytes of the answer tables and logs."""
    with suppress(FileNotFoundError):  # a log can be replaced by a table at any time
        return sum(path.stat().st_size for path in (store / "samples").glob("*[0-9].*") if path.suffix != ".json")
    return 0


def runs(line: list[str], store: Path, kills: int, spread: float) -> Iterator[int | None]:
    """Start the command and kill it at a random moment, `kills` times. Then run it to the end.

    Yields None after each kill, and the exit status at the end.
    """
    chance, environment = random.Random(0), {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(kills):
        before = written(store)
        process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and written(store) <= before:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, spread))
        if process.poll() is not None:
            raise RuntimeError(
                f"the sampler exited on its own before it could be killed: {process.communicate()[1][-500:]}"
            )
        process.send_signal(signal.SIGKILL)
        process.communicate()
        yield None
    yield subprocess.run(line, env=environment, stderr=subprocess.DEVNULL, check=False).returncode


def main() -> None:
    """Run the server fault benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument(
        "--spread",
        type=float,
        default=1.0,
        help="maximum time in seconds from the first answer of a run until the run is killed",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, stub(seconds=0.02) as server, faults(server.url, stall=10) as proxy:
        folder = Path(name)
        questions, store = write_questions(folder / "questions.jsonl", options.questions), folder / "store"
        seeds = {request_seed(0, f"q{i}", j): (f"q{i}", j) for i in range(options.questions) for j in range(K)}
        arrived: set[tuple[str, int]] = set()
        n_asked, n_again, held_at_kills, statuses = 0, 0, [], []
        for status in runs(command(store, questions, proxy), store, options.kills, options.spread):
            statuses.append(status)
            asked = server.answered()
            n_again += sum(seeds.get(one["seed"]) in arrived for one in asked[n_asked:])
            n_asked, arrived = len(asked), set(held(store))
            held_at_kills.append(len(arrived))
        counts, faulty = held(store), proxy.faults()
        kept, n_invented = Store.open(store), 0
        asks = {q.id: PromptTemplate().messages(q.prompt) for q in kept.questions}
        seed_of_answer = {answer: seed for seed, answer in seeds.items()}
        for row in kept.samples.read().to_pylist():
            id_, seed = row["question_id"], seed_of_answer[row["question_id"], row["sample"]]
            n_invented += row["text"] != answer_text(Options(), asks[id_], seed, TEMPERATURE, 0)
    once = set(counts) == set(seeds.values()) and counts.total() == len(seeds)
    report(
        "served_faults",
        {"each once": once, "arrived and asked for again": n_again, "invented": n_invented, "status": statuses[-1]},
        "each (question, sample) once, none that had arrived asked for again, none invented",
        once and not n_again and not n_invented and statuses[-1] == 0,
        kills=options.kills,
        held_at_kills=held_at_kills[:-1],
        answers=len(seeds),
        asked=n_asked,
        proxy=dict(faulty),
    )


if __name__ == "__main__":
    main()
