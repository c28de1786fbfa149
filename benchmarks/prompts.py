"""Compare the prompts of configs/default.yaml and configs/brief.yaml on the same questions.

The grader is compared with manual labels of 100 random answers per prompt.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.labels import agreement, rows_of
from benchmarks.quality import recipe_of
from benchmarks.result import report
from benchmarks.sets import accuracy
from extract.commands import make_store, sample
from extract.hashing import hash_order
from extract.recipe import StoreRecipe
from probes.comparison.out_of_fold import Comparison
from probes.comparison.record import scored
from probes.report.evaluate import evaluate

CONFIGS = ("default", "brief")
N_LABELLED, N_TIMED = 100, 64


def labelled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select one random answer to each of 100 random questions."""
    order = hash_order([f"{row['question_id']}/{row['sample']}" for row in rows], seed=0)
    first: dict[str, dict[str, Any]] = {}
    for i in order:
        first.setdefault(rows[i]["question_id"], rows[i])
    return list(first.values())[:N_LABELLED]


def seconds(recipe: StoreRecipe) -> dict[str, float]:
    """Return the wall-clock and CPU seconds of this process per 1,000 answers."""
    with tempfile.TemporaryDirectory() as folder:
        sample(f"{folder}/warm", replace(recipe, n_questions=1, k=2))
        wall, cpu = time.perf_counter(), time.process_time()
        sample(f"{folder}/timed", replace(recipe, n_questions=N_TIMED))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    n_answers = N_TIMED * recipe.k / 1000
    return {"wall": wall / n_answers, "cpu": cpu / n_answers}


def main() -> None:
    """Make the stores, print unlabelled answers, and report the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=Path, default=Path("stores"))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in CONFIGS:
        recipe = recipe_of(name)
        store = make_store(str(options.stores / f"prompts-{name}"), recipe, "short", ["hidden"])
        rows = rows_of(store)
        out = Comparison(str(store.path), probes=["linear"]).run()
        probe, reference = scored(out, "linear", half=False), scored(out, "constant", half=False).confidence
        metrics = evaluate(probe, 0, reference)
        figures[name] = {
            "accuracy": accuracy(rows),
            "spread": float(probe.accuracy.std()),
            "between": float(((probe.accuracy > 0) & (probe.accuracy < 1)).double().mean()),
            "cut": sum(row["finish_reason"] == "length" for row in rows) / len(rows),
            "tokens": float(np.mean([len(row["token_ids"]) for row in rows])),
            **{metric: metrics[metric] for metric in ("auroc", "auroc_ceiling", "brier_skill")},
            "seconds_per_1000": seconds(recipe),
            **agreement(store, labelled(rows)),
        }
    default = figures["default"]
    report(
        "prompts",
        figures,
        "the default prompt: at most 1 % of the answers are cut; the grader agrees with 98 of 100 labels",
        default["cut"] <= 0.01
        and default["agreed"] >= 98
        and all(f["labelled"] == N_LABELLED for f in figures.values()),
        n_questions=len({row["question_id"] for row in rows}),
    )


if __name__ == "__main__":
    main()
