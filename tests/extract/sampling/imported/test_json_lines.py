"""Tests of JSON Lines files with one answer per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datamodules.table import load_table
from extract.errors import InputError
from extract.sampling.imported.command import import_log
from extract.store.samples import MISSING
from extract.store.store import Store
from extract.viewing.inspection import inspect
from tests.helpers.logs import write_lines

LINE: dict[str, Any] = {"id": "a", "text": "1 + 1?", "answer": "2"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}


def imported(folder: Path, rows: list[dict[str, Any]]) -> Store:
    return import_log(str(folder / "store"), str(write_lines(folder / "answers.jsonl", rows)), "jsonl")


def test_columns_become_questions_answers_and_the_policy(tmp_path: Path) -> None:
    question = {
        "id": 7,
        "text": "Which?",
        "choices": ["Oslo", "Lima"],
        "references": "Lima",
        "kind": "choice",
        "group": "g",
    }
    policy = {"model": "org/model", "temperature": 1, "stop": ["\n"], "seed": None}
    rows = [{**question, **policy, "answer": text, "score": score} for text, score in (("B", 1), ("A", 0), ("?", 0.5))]
    store = imported(tmp_path, rows)
    (first,) = store.questions
    assert (first.id, first.dataset, first.references, first.group) == ("7", "imported", ("B", "Lima"), "g")
    assert store.samples.read()["text"].to_pylist() == ["B", "A", "?"]
    assert store.grades.read("score")["right"].to_pylist() == [True, False, None]
    decoding = store.identity["policy"]["decoding"]
    assert (store.model_id, decoding["temperature"], decoding["stop"], decoding["seed"]) == (
        "org/model",
        1,
        ["\n"],
        None,
    )
    assert decoding["prompt"] == {"chat": False, "system": None, "template": "{question}"}


def test_answers_are_counted_unless_they_have_an_index(tmp_path: Path) -> None:
    counted = imported(tmp_path / "..", [CHAT, {**CHAT, "answer": "3"}, {**CHAT, "messages": CHAT["messages"][:1]}])
    assert counted.samples.read()["sample"].to_pylist() == [0, 1, 2]
    assert (counted.questions[0].prompt, counted.identity["policy"]["decoding"]["prompt"]["chat"]) == (
        tuple(CHAT["messages"]),
        True,
    )
    indexed = imported(tmp_path, [{**LINE, "sample": 2, "score": 1}, {**LINE, "sample": 0, "score": None}])
    assert indexed.samples.read()["finish_reason"].to_pylist() == [None, MISSING, None]
    assert load_table(indexed, "score").unknown.tolist() == [2]


def test_a_file_without_scores_has_no_grades(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = imported(tmp_path, [LINE])
    assert store.grades.names() == []
    assert "grades" not in capsys.readouterr().err
    inspect(str(store.path))
    assert "imported   from jsonl\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**LINE, "answer": 2}, "Expected `answer` in line 2 of 'answers.jsonl' to be a string, but got 2"),
        ({"id": "a", "text": "1 + 1?"}, "`answer` in line 2 .* but got None"),
        ({**LINE, "score": "yes"}, "`score` in line 2 .* to be null, or a number from 0 to 1, but got 'yes'"),
        ({**LINE, "score": 2}, "`score` in line 2"),
        ({**LINE, "sample": -1}, "`sample` in line 2"),
        ({**LINE, "sample": 0}, "`sample` to be in all lines or in none, but line 2"),
        ({**LINE, "temperature": "hot"}, "`temperature` in line 2"),
        (
            {**LINE, "model": "other"},
            "`model` to be the same in all lines, but it is None in the first line and 'other' in",
        ),
        ({**LINE, "references": 2}, "`references` in line 2"),
        ({**LINE, "refrences": ["2"]}, "fields of line 2 .* but got 'refrences'. Did you mean `references`\\? Rename"),
        ({"text": "a\ud800", "answer": "x"}, "line 2 of 'answers.jsonl' to contain valid text, but it does not"),
        ({**LINE, "text": "1 + 2?"}, "answers to question 'a' .* but line 2 .* differs from an earlier answer in text"),
        ({"id": "b", "answer": "2"}, "question 'b' .* exactly one of `text` and `messages`"),
        ({**LINE, "id": "b", "kind": "poem"}, "`kind` of question 'b'"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(tmp_path, [LINE, row])
    assert not (tmp_path / "store").exists()


def test_duplicate_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="to be unique, but line 2 of 'answers.jsonl' repeats the id 0 for question 'a'"
    ):
        imported(tmp_path, [{**LINE, "sample": 0}, {**LINE, "sample": 0}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "'answers.jsonl' to contain at least one question, but it is empty"),
        (json.dumps(LINE) + "\n{", "line 2 of 'answers.jsonl' to be a JSON object"),
        ("[1]", "line 1 of 'answers.jsonl' to be a JSON object, but got a list"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        import_log(str(tmp_path / "store"), str(path), "jsonl")
