"""Compare the table of a store's answers with loops over the rows of the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.semantic import clusters_of
from datamodules.table import AnswerTable, load_table
from extract.store.shards import SampleRange
from extract.store.store import Store
from tests.helpers.synthetic import make_store

#: Answers by sample index in the second range. The first range contains "right" and other words.
LATER = {6: "right", 7: "oak", 8: None, 9: ""}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Make a store with two ranges of samples per block, in which grades and samples have different orders."""
    features, accuracy = np.zeros((50, 1, 2), dtype=np.float32), np.linspace(0, 1, 50)
    store = make_store(tmp_path_factory.mktemp("stores") / "made", features, accuracy, k=6, block_size=32, longest=9)
    rng = np.random.default_rng(0)
    for part in store.samples.ranges():
        samples = [row for row in store.samples.read(part).to_pylist() if row["sample"] < len(LATER)]
        later = [{**row, "sample": row["sample"] + 6, "text": f"later {i}"} for i, row in enumerate(samples)]
        for row in later:
            row.pop("n_tokens")
        of_later = SampleRange(part.block, 6, 10)
        store.samples.write(of_later, later)
        grades = [
            {"question_id": row["question_id"], "sample": row["sample"], "right": None, "answer": LATER[row["sample"]]}
            for row in later
        ]
        store.grades.write("made", of_later, [grades[i] for i in rng.permutation(len(grades))], "by sample")
    return store


@pytest.fixture
def answers(store: Store) -> AnswerTable:
    return load_table(store).answers


@pytest.fixture
def rows(store: Store) -> list[dict[str, Any]]:
    """Return the samples with their grades."""
    graded = {(row["question_id"], row["sample"]): row for row in store.grades.read("made").to_pylist()}
    return [{**row, **graded[row["question_id"], row["sample"]]} for row in store.samples.read().to_pylist()]


def test_texts_and_answers_are_those_of_the_store(answers: AnswerTable, rows: list[dict[str, Any]]) -> None:
    assert answers.text == [row["text"] for row in rows]
    assert answers.answer == [row["answer"] for row in rows]


def test_grades_belong_to_their_samples(answers: AnswerTable, rows: list[dict[str, Any]]) -> None:
    assert answers.sample.tolist() == [row["sample"] for row in rows]
    assert answers.right.tolist() == [row["right"] is True for row in rows]
    assert answers.known.tolist() == [row["right"] is not None for row in rows]


def test_likelihoods_leave_out_the_end_token(answers: AnswerTable, rows: list[dict[str, Any]]) -> None:
    lists = [row["logprobs"][: len(row["logprobs"]) - (row["finish_reason"] == "stop")] for row in rows]
    assert {len(values) for values in lists} >= {0, 1, 9}
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    for name, reduce in {"mean_nll": np.mean, "max_nll": np.min, "sequence_nll": np.sum}.items():
        expected = [-reduce(values) if values else np.nan for values in lists]
        np.testing.assert_allclose(getattr(answers, name), expected, rtol=1e-12, err_msg=name)


def test_answers_to_a_question_are_equal_if_their_classes_are(store: Store, answers: AnswerTable) -> None:
    for of_question in answers.rows_by_question(50):
        texts, classes = ([column[row] for row in of_question] for column in (answers.answer, answers.answer_class))
        plain, coded = clusters_of(texts), clusters_of(map(int, classes))
        assert [[a == b for b in plain] for a in plain] == [[a == b for b in coded] for a in coded]
    assert len(set(answers.answer)) > 4


def test_an_answer_takes_at_most_a_hundred_bytes_and_its_text_is_read_on_demand(store: Store) -> None:
    table = load_table(store)
    columns = {field.name: getattr(table.answers, field.name) for field in dataclasses.fields(AnswerTable)}
    assert {name for name, value in columns.items() if not isinstance(value, np.ndarray)} == {
        "store",
        "grader",
        "ranges",
    }
    assert sum(value.itemsize for value in columns.values() if isinstance(value, np.ndarray)) <= 60
    assert not {"text", "answer"} & set(vars(table.answers))
    assert "texts" not in vars(table)


def test_a_table_keeps_its_answers_when_the_store_grows(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", np.zeros((5, 1, 2), dtype=np.float32), np.full(5, 0.5), k=2)
    answers = load_table(store).answers
    part = store.samples.ranges()[0]
    more = [{**row, "sample": row["sample"] + 2, "text": "new"} for row in store.samples.read(part).to_pylist()]
    store.samples.write(SampleRange(0, 2, 4), [{k: v for k, v in row.items() if k != "n_tokens"} for row in more])
    assert len(answers.text) == len(answers.answer) == 10
    assert "new" not in answers.text


def test_wrong_classes_are_the_distinct_wrong_answers(store: Store) -> None:
    table = load_table(store)
    answers, expected = table.answers, []
    for question in range(len(table.ids)):
        rows = [
            row for row in np.flatnonzero(answers.question == question) if answers.known[row] and not answers.right[row]
        ]
        read = [answers.answer[row] for row in rows]
        expected.append(len({answer for answer in read if answer}) + sum(not answer for answer in read))
    assert table.wrong_classes.tolist() == expected
    assert max(expected) > 1
