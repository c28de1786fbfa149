"""Tests of rewordings: their texts and records, the command, and stores that can be sampled from its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from extract import InputError, Question, load_questions
from extract.questions.rewording import REWORDINGS, reworded
from extract.reword import reword
from tests.helpers.synthetic import make_store

ONE = Question("a", "mine", "What is 1 + 1?", references=("2",), kind="number", group="sum", meta={"level": 1})


def test_every_rewording_changes_the_text_and_keeps_what_is_asked() -> None:
    texts = {name: rewording(ONE.text) for name, rewording in REWORDINGS.items()}
    assert len({*texts.values(), ONE.text}) == len(REWORDINGS) + 1
    assert all("1 + 1" in text for text in texts.values())


def test_a_reworded_question_has_the_references_and_names_its_original() -> None:
    found = reworded([ONE], n=3)
    assert len({question.group for question in found}) == 3
    for question in found:
        assert (question.references, question.kind) == (ONE.references, ONE.kind)
        assert question.meta == {"level": 1, "reworded": "a"}
        assert question.text == REWORDINGS[question.group](ONE.text)
        assert question.id == f"{question.group}: a"


def test_the_choice_depends_only_on_the_seed() -> None:
    questions = [Question(str(i), "mine", f"{i}?", references=("0",)) for i in range(20)]
    assert reworded(questions, seed=1) == reworded(questions, seed=1)
    assert reworded(questions, seed=1) != reworded(questions, seed=2)


@pytest.mark.parametrize(("n", "message"), [(0, "`n` to be at least 1"), (28, "`n` to be at most 27")])
def test_impossible_numbers_of_rewordings_are_refused(n: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        reworded([ONE], n=n)


def test_chats_are_refused() -> None:
    chat = Question("a", "mine", messages=({"role": "user", "content": "1 + 1?"},), references=("2",))
    with pytest.raises(InputError, match="'a' is a chat"):
        reworded([chat])


def store_of(folder: Path, questions: list[Question]) -> str:
    n = len(questions)
    make_store(folder, np.zeros((n, 1, 2), np.float32), np.full(n, 0.5), questions=questions)
    return str(folder)


def test_the_file_can_be_loaded_as_a_question_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path / "store", [ONE, Question("b", "mine", "Größe?", references=("1",))])
    reword(store, str(tmp_path / "new" / "reworded.jsonl"), n=2)
    assert "Wrote 4 rewordings of 2 questions" in capsys.readouterr().out
    found = {question.id: question for question in load_questions(str(tmp_path / "new" / "reworded.jsonl"))}
    for question in reworded([ONE], n=2):
        loaded = found[question.id]
        assert (loaded.text, loaded.references, loaded.group) == (question.text, question.references, question.group)
        assert loaded.meta == question.meta


def test_only_new_json_lines_files_are_written(tmp_path: Path) -> None:
    store, old = store_of(tmp_path / "store", [ONE]), tmp_path / "old.jsonl"
    old.write_text("kept")
    for out in (old, tmp_path / "new.csv"):
        with pytest.raises(InputError, match=r"path of a new \.jsonl file"):
            reword(store, str(out))
    assert old.read_text() == "kept"


def test_private_questions_are_not_written(tmp_path: Path) -> None:
    private = Question("a", "mine", "1 + 1?", references=("2",), meta={"private": True})
    with pytest.raises(InputError, match="are private"):
        reword(store_of(tmp_path / "store", [private]), str(tmp_path / "out.jsonl"))
