"""Tests of precision, recall and F1 against scikit-learn, and of the classes of answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from applications.models.classes import Classes, answer_shares, class_record, find_classes
from datamodules.table import QuestionTable, load_table
from extract import Question
from extract.store.shards import SampleRange
from tests.helpers.synthetic import make_store

NAMES = ["A", "B", "C"]


def simulate(n: int, n_answered: int, seed: int = 0) -> tuple[Classes, np.ndarray]:
    """Draw the right classes, and one answer per question in the first `n_answered` of 3 classes or outside of them."""
    rng = np.random.default_rng(seed)
    truth, answered = rng.integers(0, 3, n), rng.choice([*range(n_answered), 3], n)
    return Classes(NAMES, truth), np.eye(4)[answered]


def choices(n: int) -> list[Question]:
    return [
        Question(f"q{i}", "made", f"{i}?", references=("ABC"[i % 3], "right"), kind="choice", choices=("x", "y", "z"))
        for i in range(n)
    ]


@pytest.mark.parametrize("n_answered", [3, 2])
def test_figures_are_those_of_scikit_learn(n_answered: int) -> None:
    classes, shares = simulate(200, n_answered)
    answered = shares.argmax(1)
    record = class_record(classes, shares, 100, 0)
    expected = precision_recall_fscore_support(classes.truth, answered, labels=range(3), zero_division=np.nan)
    macro = precision_recall_fscore_support(
        classes.truth, answered, labels=range(3), average="macro", zero_division=np.nan
    )
    for i, found in enumerate(record["classes"]):
        for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
            value = np.nan if found[name] is None else found[name]["value"]
            assert value == pytest.approx(values[i], rel=1e-8, nan_ok=True)
    for name, value in zip(("precision", "recall", "f1"), macro, strict=False):
        assert record["macro"][name]["value"] == pytest.approx(value, rel=1e-8)
    np.testing.assert_array_equal(record["confusion"], confusion_matrix(classes.truth, answered, labels=range(4))[:3])


def test_several_answers_are_weighted_so_that_every_question_counts_once() -> None:
    rng = np.random.default_rng(0)
    truth, answered = rng.integers(0, 3, 50), rng.integers(0, 4, (50, 4))
    shares = np.stack([np.bincount(row, minlength=4) / 4 for row in answered])
    record = class_record(Classes(NAMES, truth), shares, 100, 0)
    expected = precision_recall_fscore_support(
        np.repeat(truth, 4), answered.ravel(), labels=range(3), sample_weight=np.full(200, 0.25)
    )
    for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
        assert [found[name]["value"] for found in record["classes"]] == pytest.approx(values, rel=1e-8)


def test_a_class_that_never_occurs_has_no_recall_and_is_not_averaged() -> None:
    truth = np.repeat([0, 1], 20)
    record = class_record(Classes(NAMES, truth), np.eye(4)[np.tile([0, 1, 1, 2], 10)], 100, 0)
    third = record["classes"][2]
    assert (third["n_questions"], third["recall"], third["f1"], third["precision"]["value"]) == (0, None, None, 0)
    recalls = [found["recall"]["value"] for found in record["classes"][:2]]
    assert record["n_averaged"] == {"precision": 2, "recall": 2, "f1": 2}
    assert record["macro"]["recall"]["value"] == pytest.approx(np.mean(recalls))


def test_intervals_contain_the_values() -> None:
    record = class_record(*simulate(80, 3), 200, 0)
    for found in (*record["classes"], record["macro"]):
        for name in ("precision", "recall", "f1"):
            assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]


def test_answers_are_assigned_to_the_class_that_they_name(tmp_path: Path) -> None:
    questions = [
        Question(f"q{i}", "made", f"{i}?", references=(("yes", "correct") if i % 2 else ("no",))) for i in range(4)
    ]
    store = make_store(
        tmp_path / "s", np.zeros((4, 1, 2), np.float32), np.full(4, 0.5), k=5, questions=questions, block_size=4
    )
    said = ["yes", "that is correct", "no", "yes or no", None]
    rows = [
        {"question_id": q.id, "sample": j, "right": answer in ("yes", "that is correct") if i % 2 else answer == "no"}
        | {"answer": answer}
        for i, q in enumerate(questions)
        for j, answer in enumerate(said)
    ]
    store.grades.write("said", SampleRange(0, 0, 5), rows, "as it was said")
    classes = find_classes(questions)
    assert classes is not None
    assert classes.names == ["no", "yes"]
    shares = answer_shares(load_table(store, "said"), np.arange(4), questions, classes)
    np.testing.assert_allclose(shares, np.tile([0.2, 0.4, 0.4], (4, 1)))


def graded(folder: Path, questions: list[Question], said: list[tuple[str, bool]]) -> QuestionTable:
    """Make a store in which every question has the same answers, each with its grade."""
    n = len(questions)
    made = make_store(folder, np.zeros((n, 1, 2), np.float32), np.full(n, 0.5), k=len(said), questions=questions)
    rows = [
        {"question_id": q.id, "sample": j, "answer": answer, "right": right}
        for q in questions
        for j, (answer, right) in enumerate(said)
    ]
    made.grades.write("said", SampleRange(0, 0, len(said)), rows, "as it was said")
    return load_table(made, "said")


def test_a_wrong_answer_that_names_its_own_class_is_not_counted_in_it(tmp_path: Path) -> None:
    questions = [Question(f"q{i}", "made", f"{i}?", references=(("yes", "no")[i % 3 > 0],)) for i in range(9)]
    table = graded(tmp_path / "s", questions, [("yes", False), ("yes, of course", True), ("no", False)])
    classes = find_classes(questions)
    assert classes is not None
    shares = answer_shares(table, np.arange(9), questions, classes)
    recalls = [found["recall"]["value"] for found in class_record(classes, shares, 100, 0)["classes"]]
    assert np.bincount(classes.truth) @ recalls / 9 == pytest.approx(table.accuracy.mean())
    np.testing.assert_allclose(shares[:, 2], 1 / 3)


def test_letters_are_whole_answers_in_upper_case(tmp_path: Path) -> None:
    said = ["(A)", "B.", "C", "a", "It is a mistake", "A or B"]
    questions = [replace(question, references=("C", "right")) for question in choices(6)]
    table = graded(tmp_path / "s", questions, [(answer, answer == "C") for answer in said])
    shares = answer_shares(table, np.arange(6), questions, Classes(NAMES, np.full(6, 2)))
    np.testing.assert_allclose(shares, np.tile([1 / 6, 1 / 6, 1 / 6, 3 / 6], (6, 1)))


def test_options_that_are_never_right_are_classes() -> None:
    questions = [question for question in choices(30) if question.references[0] != "B"]
    classes = find_classes(questions)
    assert classes is not None
    assert classes.names == ["A", "B", "C"]
    assert set(classes.truth) == {0, 2}


def test_answers_with_many_distinct_references_are_not_classes() -> None:
    assert find_classes([Question(str(i), "made", f"{i}?", references=(str(i),)) for i in range(10)]) is None
    assert find_classes([Question(str(i), "made", f"{i}?", references=("x",)) for i in range(10)]) is None


def test_private_answers_are_not_classes_but_option_letters_are() -> None:
    private = {"private": True}
    of_words = [Question(str(i), "made", f"{i}?", references=(("yes", "no")[i % 2],), meta=private) for i in range(9)]
    assert find_classes(of_words) is None
    assert find_classes([replace(question, meta=private) for question in choices(9)]) is not None
