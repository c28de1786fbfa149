"""Check that `score` and an attached probe reproduce the confidences in predictions.parquet.

Several batch sizes and question orders are tested. By default, the newest run on the store is checked.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.result import report
from extract import Store, load_model
from probes import load_probe


def newest_run(store: Store) -> Path:
    """Return the folder of the newest run on a store."""
    reports = sorted(Path("runs").glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    return next(path.parent for path in reversed(reports) if json.loads(path.read_text())["identity"] == store.sha256)


def main() -> None:
    """Run the check and print the largest deviations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=None)
    parser.add_argument("--store", default="stores/facts")
    options = parser.parse_args()
    store = Store.open(options.store)
    run = options.run or newest_run(store)
    probe = load_probe(run / "probe")
    texts = {question.id: question.text for question in store.questions}
    rows = random.Random(0).sample(pq.read_table(run / "predictions.parquet").to_pylist(), 60)
    questions, stored = [texts[row["question_id"]] for row in rows], [row[probe.config["name"]] for row in rows]
    model, tokenizer = load_model(dtype="float32")
    attached = probe.attach(model, tokenizer)
    ways = {
        "score": probe.score(model, tokenizer, questions).confidence.tolist(),
        "score, reversed": probe.score(model, tokenizer, questions[::-1]).confidence.tolist()[::-1],
    }
    ways["score, one by one"] = [
        float(probe.score(model, tokenizer, question).confidence) for question in questions[:20]
    ]
    for size in (1, 7, 60):
        batches = [questions[i : i + size] for i in range(0, 20 if size == 1 else 60, size)]
        ways[f"attached, batches of {size}"] = [
            c for b in batches for c in attached.generate(b, max_new_tokens=2, do_sample=False).confidence.tolist()
        ]
    # one question is much longer, so all others are padded
    padded = attached.generate(
        ["Tell me at length. " * 40, *questions[:20]], max_new_tokens=2, do_sample=False
    ).confidence.tolist()[1:]
    ways["attached, padded"] = padded
    worst = {name: max(abs(a - b) for a, b in zip(values, stored, strict=False)) for name, values in ways.items()}
    spread = max(stored) - min(stored)
    holds = max(worst.values()) <= 1e-4 and spread > 0.2
    report(
        "confidence",
        max(worst.values()),
        "≤ 1e-4, with confidences that differ",
        holds,
        by_way=worst,
        spread=spread,
        questions=60,
        run=run.name,
    )


if __name__ == "__main__":
    main()
