"""Manual labels of answers, read from benchmarks/hand_grades.json and keyed by a hash of question and answer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from extract.store.store import Store

LABELS = Path(__file__).with_name("hand_grades.json")


def key(row: dict[str, Any]) -> str:
    """Return the key of an answer in the file of labels."""
    return hashlib.sha256(f"{row['question_id']}\0{row['text']}".encode()).hexdigest()[:16]


def rows_of(store: Store) -> list[dict[str, Any]]:
    """Return the samples with their grades."""
    grades = {
        (row["question_id"], row["sample"]): row for row in store.grades.read(store.grades.names()[0]).to_pylist()
    }
    return [row | grades[row["question_id"], row["sample"]] for row in store.samples.read().to_pylist()]


def agreement(store: Store, answers: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of labelled answers, and how many grades match the labels. Print unlabelled answers."""
    labels: dict[str, bool] = json.loads(LABELS.read_text(encoding="utf-8"))
    questions = {question.id: question for question in store.questions}
    for row in answers:
        if key(row) not in labels:
            question = questions[row["question_id"]]
            print(json.dumps([key(row), question.prompt, question.references, row["text"], row["right"]]))
    agreed = [labels[key(row)] == row["right"] for row in answers if key(row) in labels]
    return {"agreed": sum(agreed), "labelled": len(agreed)}
