"""Compare `python -m extract likelihood` with lm-evaluation-harness on 200 MMLU and 200 cloze questions.

This benchmark needs ../shared/data and the environment that `make peers` creates.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parity import python_of, score
from benchmarks.result import report
from extract import Decoding, StoreRecipe, sample
from extract.errors import InputError
from extract.likelihood.command import score_store
from extract.likelihood.options import NORMALISATIONS, right
from extract.models.embedded import embedded_model_folder
from extract.models.store_model import prompt_of
from extract.prompts import PromptTemplate
from extract.store.store import Store

DATA = Path(__file__).parents[2] / "shared" / "data" / "mmlu_miscellaneous.csv"
BAR = 1e-3


def make_stores(folder: Path, n: int) -> dict[str, Store]:
    """Make two stores without answers: one of MMLU questions, and one of cloze questions.

    The cloze questions are other MMLU questions, and their prompts do not list the options.
    """
    policy = Decoding(prompt=PromptTemplate("{question}\nAnswer:", chat=False))
    recipe = StoreRecipe(f"mmlu={DATA}", n_questions=2 * n, k=0, policy=policy)
    questions = recipe.load()[0]
    rows = {
        "mmlu": [question.record() for question in questions[:n]],
        "cloze": [question.record() | {"kind": "cloze"} for question in questions[n:]],
    }
    stores = {}
    for name, records in rows.items():
        file = folder / f"{name}.jsonl"
        own = [{key: row[key] for key in ("id", "text", "choices", "references", "kind")} for row in records]
        file.write_text("\n".join(map(json.dumps, own)), encoding="utf-8")
        sample(str(folder / name), replace(recipe, questions=str(file), n_questions=None))
        stores[name] = score_store(str(folder / name))
    return stores


def task(store: Store) -> list[dict[str, Any]]:
    """Return the prompts and options of a store's questions for lm-evaluation-harness."""
    rows = zip(store.questions, store.asked.read("likelihood").to_pylist(), strict=True)
    return [
        {
            "context": prompt_of(store).text(question.prompt),
            "choices": row["continuations"],
            "target": row["target"],
        }
        for question, row in rows
    ]


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest log-probability differences in nats, and the counts of questions graded differently."""
    conditional, unconditional = (np.concatenate([row[name] for row in ours]) for name in ("logprobs", "unconditional"))
    halves = [np.split(np.array(row["logprobs"]), 2) for row in theirs]
    found = {
        "conditional": float(np.abs(conditional - np.concatenate([half[0] for half in halves])).max()),
        "unconditional": float(np.abs(unconditional - np.concatenate([half[1] for half in halves])).max()),
    }
    for name, normalisation in NORMALISATIONS.items():
        if normalisation.metric:
            grades = np.array([row[normalisation.metric] for row in theirs])
            found[f"differing {normalisation.metric}"] = int((right(ours, name) != grades).sum())
    return found


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=200)
    options = parser.parse_args()
    try:
        python_of("lm-eval")
        with tempfile.TemporaryDirectory() as folder:
            stores = make_stores(Path(folder), options.questions)
            given = {"model": str(embedded_model_folder()), "tasks": {name: task(one) for name, one in stores.items()}}
            scored = score("lm-eval", given)
            value = {
                name: compared(store.asked.read("likelihood").to_pylist(), scored["values"][name])
                for name, store in stores.items()
            }
    except InputError as error:
        sys.exit(f"error: {error}")
    nats = max(found[name] for found in value.values() for name in ("conditional", "unconditional"))
    same = not any(count for found in value.values() for name, count in found.items() if name.startswith("differing"))
    report(
        "harness",
        {"largest difference in nats": nats, "same grades": same},
        f"≤ {BAR:g} nats, all questions graded alike",
        nats <= BAR and same,
        **value,
        lm_eval=scored["version"],
        questions=options.questions,
    )


if __name__ == "__main__":
    main()
