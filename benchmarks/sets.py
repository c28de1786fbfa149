"""Sample and grade answers to three question sets, and compare 50 grades per set with manual labels.

`--data` is the folder of the question sets, by default ../shared/data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.labels import agreement, key, rows_of
from benchmarks.result import report
from extract.commands import grade, sample
from extract.hashing import hash_order
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.recipe import StoreRecipe
from extract.store.store import Store

DATA = Path(__file__).parents[2] / "shared" / "data"
N_LABELLED = 50
RECIPES: dict[str, dict[str, Any]] = {
    "mmlu": {
        "questions": "mmlu={data}/mmlu_miscellaneous.csv",
        "policy": Decoding(prompt=PromptTemplate("choice"), max_new_tokens=16),
    },
    "svamp": {
        "questions": "svamp={data}/svamp.json",
        "stratify_by": "group",
        "policy": Decoding(prompt=PromptTemplate("{question}\n\nReply with the number alone."), max_new_tokens=32),
    },
    "qa_wikidata": {
        "questions": "qa_wikidata={data}/qa_wikidata.json",
        "stratify_by": "group",
        "policy": Decoding(prompt=PromptTemplate("cloze", chat=False, shots=8), max_new_tokens=16, stop=("\n",)),
    },
}


def make(name: str, data: Path, folder: Path) -> Store:
    """Make the store of a question set: 200 questions with 5 answers each."""
    recipe = RECIPES[name] | {"questions": RECIPES[name]["questions"].format(data=data)}
    store = str(folder / f"sets-{name}")
    sample(store, StoreRecipe(n_questions=200, k=5, block_size=100, **recipe))
    return grade(store)


def accuracy(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the expected accuracy with a 95 % interval (Student's t) over questions."""
    right: dict[str, list[bool]] = {}
    for row in rows:
        if row["right"] is not None:
            right.setdefault(row["question_id"], []).append(row["right"])
    of_question = np.array([np.mean(one) for one in right.values()])
    low, high = stats.t.interval(0.95, len(of_question) - 1, of_question.mean(), stats.sem(of_question))
    return {"value": float(of_question.mean()), "low": float(low), "high": float(high)}


def labelled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select 50 distinct answers to label: 25 graded as right and 25 as wrong, if there are enough."""
    distinct = {key(row): row for row in rows}
    ordered = [list(distinct.values())[i] for i in hash_order(list(distinct), seed=0)]
    right, wrong = ([row for row in ordered if row["right"] is graded] for graded in (True, False))
    n_right = max(min(N_LABELLED // 2, len(right)), N_LABELLED - len(wrong))
    return right[:n_right] + wrong[: N_LABELLED - n_right]


def main() -> None:
    """Make the stores, print the selected answers that have no label, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--stores", type=Path, default=Path("stores"))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in RECIPES:
        store = make(name, options.data, options.stores)
        rows = rows_of(store)
        figures[name] = {
            "accuracy": accuracy(rows),
            "unread": sum(row["answer"] is None for row in rows) / len(rows),
            "unknown": sum(row["right"] is None for row in rows),
            "cut": sum(row["finish_reason"] == "length" for row in rows) / len(rows),
            "tokens": float(np.mean([len(row["token_ids"]) for row in rows])),
            **agreement(store, labelled(rows)),
        }
    every = all(one["labelled"] == N_LABELLED for one in figures.values())
    report("sets", figures, "50 answers of each set are labelled", every)


if __name__ == "__main__":
    main()
