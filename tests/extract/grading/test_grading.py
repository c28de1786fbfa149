"""Tests of the grader `short`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extract.errors import InputError
from extract.grading import load_grader
from extract.questions import Question, load_questions
from extract.text import contains_answer, normalize


@pytest.mark.slow
def test_the_grader_agrees_with_a_hundred_answers_graded_by_hand() -> None:
    questions = {question.id: question for question in load_questions("facts")}
    grade = load_grader("short").grade
    lines = (Path(__file__).parents[2] / "data" / "hand_graded.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    agreed = [grade(questions[row["question_id"]], row["text"])[0] == row["right"] for row in rows]
    assert len(rows) == 100
    assert sum(agreed) >= 98


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N'Djamena", "ndjamena"),
        ("Africa's  west-coast!", "africa west coast"),
        ("São Tomé", "sao tome"),
        ("Washington, D.C.", "washington dc"),
        ("fifty-four", "fifty four"),
        ("  ", ""),
    ],
)
def test_texts_are_normalised(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("It is Lima.", True),
        ("LIMA", True),
        ("Limassol", False),
        ("the city of Li ma", False),
        ("", False),
        ("I think so.\nLima", False),
        ("\n\nLima", True),
    ],
)
def test_only_whole_words_of_the_first_line_count(text: str, right: bool) -> None:
    question = Question(id="a", dataset="t", text="?", references=("Lima",))
    assert load_grader("short").grade(question, text)[0] is right


def test_symbols_are_case_sensitive() -> None:
    question = Question(id="a", dataset="t", text="?", references=("Co",), meta={"case_sensitive": True})
    grade = load_grader("short").grade
    assert grade(question, "It is Co.")[0]
    assert not grade(question, "It is CO.")[0]
    assert not grade(question, "It is co.")[0]


@pytest.mark.parametrize(
    ("symbol", "text", "right"),
    [
        ("I", "I think it is Io", False),
        ("I", "Well, as far as I know, it is Io", False),
        ("I", "I'm sure that it is Io", False),
        ("I", "I think it is I", True),
        ("I", "I is the symbol", True),
        ("I", "I (iodine)", True),
        ("In", "In my opinion, it is Id", False),
        ("In", "It is In, for indium", True),
        ("As", "As for arsenic", True),
        ("Na", "Na comes from natrium", True),
        ("In vitro", "In vitro is the term", True),
        ("No", "No, it is Nb", True),  # a known error
    ],
)
def test_a_symbol_that_is_a_word_of_the_sentence_does_not_count(symbol: str, text: str, right: bool) -> None:
    question = Question(id="a", dataset="t", text="?", references=(symbol,), meta={"case_sensitive": True})
    assert load_grader("short").grade(question, text).right is right


def test_the_first_reference_or_rival_decides() -> None:
    def right(text: str) -> bool:
        return contains_answer(text, ["Africa"], rivals=["South Africa", "Asia"])

    assert right("in Africa, near South Africa")
    assert not right("near South Africa")
    assert not right("in Asia, not Africa")


def test_an_unknown_grader_is_refused() -> None:
    with pytest.raises(InputError, match="Did you mean `short`"):
        load_grader("shrt")


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        ("31", "3.1", False),
        ("3.1", "3.1", True),
        ("-5", "5", False),
        ("7 - 5", "5", True),
        ("about -5.", "-5", True),
        ("1939-1945", "1945", True),
    ],
)
def test_numbers_keep_their_decimal_point_and_sign(text: str, reference: str, right: bool) -> None:
    assert contains_answer(text, [reference]) is right
