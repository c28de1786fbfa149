"""Tests of question sets and files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from extract import Decoding, Store
from extract.errors import InputError
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions import Question, load_questions, questions_hash
from extract.questions.source import check_questions
from extract.text import contains_answer


def test_facts_has_about_770_questions_of_seven_groups() -> None:
    groups = Counter(question.group for question in load_questions("facts"))
    assert 740 <= sum(groups.values()) <= 800
    assert set(groups) == {"capital", "continent", "demonym", "element", "symbol", "sum", "product"}


def test_no_question_contains_its_answer() -> None:
    for question in load_questions("facts"):
        case = bool(question.meta.get("case_sensitive"))
        assert not contains_answer(question.text, question.references, case), question.id


def test_sums_and_products_are_right() -> None:
    for question in load_questions("facts"):
        if question.group in ("sum", "product"):
            a, b = (int(x) for x in question.id.split("/")[1].replace("x", "+").split("+"))
            assert question.references[0] == str(a + b if question.group == "sum" else a * b)


def test_disputed_facts_are_left_out() -> None:
    ids = {question.id for question in load_questions("facts")}
    assert not ids & {
        "capital/Israel",
        "capital/Bolivia",
        "capital/South Africa",
        "continent/Russia",
        "continent/Turkey",
        "symbol/iodine",
    }


@pytest.mark.slow
def test_a_subset_depends_only_on_seed_and_ids() -> None:
    first, again = load_questions("facts", 50, seed=3), load_questions("facts", 50, seed=3)
    assert questions_hash(first) == questions_hash(again)
    assert [q.id for q in load_questions("facts", 60, seed=3)][:50] == [q.id for q in first]
    assert {q.id for q in load_questions("facts", 50, seed=4)} != {q.id for q in first}


def test_a_changed_reference_changes_the_hash(tmp_path: Path) -> None:
    def hashed(reference: str) -> str:
        path = tmp_path / "q.jsonl"
        path.write_text(json.dumps({"id": "a", "text": "b?", "references": [reference]}))
        return questions_hash(load_questions(str(path)))

    assert hashed("yes") != hashed("no")


GOOD = {"id": "a", "text": "Why?", "references": ["because"]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds? at least one question|at least one question, but it is empty"),
        ([GOOD, GOOD], r"ids to be unique, but question 'a' \(number 2"),
        ([{**GOOD, "references": []}], "`references` of question 'a'.*at least one"),
        ([{"id": "a", "text": "Why?"}], "`references` of question 'a'"),
        ([{**GOOD, "id": ""}], r"\(number 1 of .* to have an `id`"),
        ([{"id": "a", "references": ["b"]}], "exactly one of `text` and `messages`"),
        ([{**GOOD, "refrences": ["b"]}], "Did you mean `references`"),
        ([{**GOOD, "kind": "essay"}], "`kind` of question 'a'.*got 'essay'"),
        ([{**GOOD, "text": 3}], "`text` in row 1.*to be a str, but got 3"),
        ([{**GOOD, "references": [""]}], "`references` in row 1"),
        ([{**GOOD, "references": ["—"]}], "to contain words or numbers, but got '—'"),
        ([{**GOOD, "text": "  "}], "exactly one of `text` and `messages`"),
        ([{"id": "a", "references": ["b"], "messages": [1]}], "`messages` of question 'a'"),
        ([{"id": "a", "references": ["b"], "messages": [{"role": "user"}]}], "`messages` of question 'a'"),
        (['{"id": "a", "text": "b", "references": ["c"], "meta": {"x": NaN}}'], "only text and finite numbers"),
        (['{"id": "a", "text": "\\ud800", "references": ["c"]}'], "only text and finite numbers"),
        (["{"], "line 1.*is not valid JSON"),
        (["[1]"], "line 1.*JSON object, but got a list"),
        (['{"id": ' + "9" * 5000 + "}"], "line 1.*is not valid JSON"),
        ([{**GOOD, "id": None}], r"\(number 1 of .* to have an `id`"),
        (
            [{**GOOD, "kind": "number", "references": ["7", "twelve"]}],
            "each reference of question 'a'.*a single number.*'twelve'",
        ),
        ([{**GOOD, "kind": "choice", "references": ["C"]}], "question 'a'.*to have `choices`"),
        (
            [{"id": "a", "references": ["b"], "messages": [{"role": "user", "content": " "}]}],
            "last message of question 'a'",
        ),
    ],
)
def test_a_bad_question_file_is_refused_with_the_line(tmp_path: Path, lines: list[object], message: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    with pytest.raises(InputError, match=message):
        load_questions(str(path))


@pytest.mark.parametrize("reference", ["12", "-3.5", "1/2", "$1,000", "5 apples", "12%"])
def test_a_reference_is_a_number_if_its_grader_can_parse_it(reference: str, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({**GOOD, "kind": "number", "references": [reference]}))
    assert load_questions(str(path))[0].references == (reference,)


def test_existing_stores_open_although_new_questions_have_stricter_rules(tmp_path: Path) -> None:
    earlier = [
        Question("a", "mine", "How many?", references=("twelve",), kind="number"),
        Question("b", "mine", "Which?", references=("C",), kind="choice"),
        Question("c", "mine", messages=({"role": "user", "content": ""},), references=("d",)),
    ]
    policy = Policy(ModelIdentity("tiny", None, "a" * 64, "float32", "b" * 64, "c" * 64), Decoding())
    Store.create(tmp_path / "store", Identity(policy, questions_hash(earlier)), earlier)
    assert list(Store.open(tmp_path / "store").questions) == earlier
    for question in earlier:
        with pytest.raises(InputError, match=f"question '{question.id}'"):
            check_questions([question], "the file")
    hidden = Question("a", "mine", "How many?", references=("twelve",), kind="number", meta={"private": True})
    with pytest.raises(InputError, match="not shown"):
        check_questions([hidden], "the file")


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(GOOD), encoding="utf-8-sig")
    assert load_questions(str(path))[0].text == "Why?"


def test_a_path_can_start_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "q.jsonl").write_text(json.dumps(GOOD))
    assert load_questions("~/q.jsonl")[0].dataset == "q"
    (tmp_path / "g.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}))
    assert load_questions("gsm8k=~/g.jsonl")[0].references == ("2",)


@pytest.mark.parametrize("questions", ["", "gsm8k=", "=q.jsonl", ":main"])
def test_questions_without_a_name_or_a_path_are_refused(questions: str) -> None:
    with pytest.raises(InputError, match="to be one of facts, .*NAME=PATH with one of these names, a file .*, but got"):
        load_questions(questions)


def test_a_missing_file_and_an_unknown_set_are_refused() -> None:
    with pytest.raises(InputError, match="'nowhere.jsonl' does not exist"):
        load_questions("nowhere.jsonl")
    with pytest.raises(InputError, match="Did you mean `facts`"):
        load_questions("fact")


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, -1, 10_000])
def test_a_subset_of_impossible_size_is_refused(n: int) -> None:
    with pytest.raises(InputError, match=f"`n_questions` to be between 1 and .* got {n}"):
        load_questions("facts", n)


def test_a_file_that_is_not_utf8_is_refused_and_odd_line_separators_are_text(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"id": "\xff"}')
    with pytest.raises(InputError, match="to be UTF-8, but the byte at offset 8"):
        load_questions(str(path))
    path.write_text(json.dumps({**GOOD, "text": "a\u2028b"}, ensure_ascii=False), encoding="utf-8")
    assert load_questions(str(path))[0].text == "a\u2028b"
