"""Tests of the graders `exact`, `contains` and `f1`, and of all graders on empty, long and unusual answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.errors import InputError
from extract.grading import GRADERS, grader_of_kinds, load_grader
from extract.grading.base import Grade, without_reasoning
from extract.grading.latex import stated_answer
from extract.grading.text import token_f1
from extract.questions import Question

LIMA = Question("q", "t", "Capital of Peru?", references=("Lima", "The City of Kings"))
#: For each grader, a question that it can grade and a right answer.
EASY = {
    **dict.fromkeys(("short", "exact", "contains", "f1"), (LIMA, "Lima")),
    **dict.fromkeys(("number",), (Question("n", "t", "?", references=("1250",), kind="number"), "1250")),
    "number-strict": (Question("n", "t", "?", references=("1250",), kind="number"), "#### 1250"),
    "boxed-integer": (Question("n", "t", "?", references=("125",), kind="number"), r"\boxed{125}"),
    "choice": (Question("c", "t", "?", references=("B", "Lima"), choices=("Rome", "Lima"), kind="choice"), "B"),
    "math": (Question("m", "t", "?", references=(r"\frac{1}{2}",), kind="math"), r"\boxed{1/2}"),
}


@pytest.mark.parametrize(
    ("grader", "text", "right"),
    [
        ("exact", "lima", True),
        ("exact", " The  LIMA! ", True),
        ("exact", "city of kings", True),
        ("exact", "It is Lima", False),
        ("exact", "Limassol", False),
        ("exact", "Lima\nQuestion: Capital of Chile?", True),
        ("exact", "«Lima»", True),
        ("exact", "\ufeffLima", True),
        ("exact", "\u200bLima", True),
        ("contains", "I think\nthat it is Lima, of course", True),
        ("contains", "Limassol", False),
        ("contains", "the city with kings", False),
        ("f1", "It is Lima in Peru", False),
        ("f1", "Lima in Peru", True),  # 2·1/(3+1), just enough
        ("f1", "kings city", True),
        ("f1", "Quito", False),
    ],
)
def test_texts_are_compared_after_squad_normalisation(grader: str, text: str, right: bool) -> None:
    assert load_grader(grader).grade(LIMA, text).right is right


def test_f1_equals_a_count_by_hand() -> None:
    # shared: "of", "kings", once "city"; 3 of 4 words and 3 of 5
    assert token_f1("city of old kings", "city city of all kings") == pytest.approx(2 * 3 / (4 + 5))
    assert token_f1("a", "b") == token_f1("", "b") == 0


def test_an_article_is_kept_if_it_is_the_whole_answer() -> None:
    band = Question("q", "t", "?", references=("The The",))
    assert load_grader("exact").grade(band, "the the").right
    assert not load_grader("exact").grade(band, "").right


def test_every_grader_tested_here_is_in_the_registry() -> None:
    assert {*EASY, "judge"} <= set(GRADERS)


def test_the_table_in_the_docs_lists_graders_in_the_order_of_the_registry() -> None:
    page = (Path(__file__).parents[3] / "docs" / "grading.md").read_text(encoding="utf-8")
    rows = page.partition("| grader | compares | right if |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", rows, re.MULTILINE) == [name for name in GRADERS if f"| `{name}` |" in rows]


@pytest.mark.parametrize("grader", EASY)
def test_an_answer_is_right_after_reasoning_but_not_before_its_end(grader: str) -> None:
    question, text = EASY[grader]
    with load_grader(grader).running() as grade_all:
        answers = [text, f"<think>{text}? no</think>\n\n{text}", f"<think>It is {text}", f"{text}</think> Rome 7"]
        grades = grade_all([(question, one) for one in answers], {}, lambda items, tokens: None)
    assert [grade.right for grade in grades] == [True, True, False, False]
    assert grades[2].answer is None


@pytest.mark.slow
@pytest.mark.parametrize("grader", EASY)
@pytest.mark.parametrize("text", ["", "  \n ", "<think>", "</think>", "...", "\u200b\u0301"])
def test_texts_without_an_answer_are_wrong_and_unparsed(grader: str, text: str) -> None:
    assert load_grader(grader).grade(EASY[grader][0], text) == Grade(False, None)


#: Texts whose repetition could take quadratic time, use up the stack, or exceed the limit for integers of 4,300 digits.
HOSTILE = {
    "digits": "9",
    "groups": ",234",
    "fractions": "1/",
    "powers": "1x10^9",
    "spaces": " ",
    "signs": "-$",
    "backslashes": "\\",
    "boxes": r"\boxed{",
    "spaced boxes": r"\boxed" + " " * 90,
    "braces": "{",
    "formulas": r"\[$\(",
    "letters": "A or B, ",
    "articles": "a A a A ",
    "cues": "answer ",
    "cues with colons": "answer: is ",
    "brackets": "([*\"'",
    "hashes": "#",
    "lines": "\n",
    "marks": "e\u0301\u200d",
    "emoji": "\U0001f9d1\u200d\U0001f680",
    "a lone surrogate": "\ud800",
    "lists": "A. Rome\nB. Lima\n",
    "fracs": r"\frac{1}{",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_every_grader_grades_an_answer_of_30_kb(name: str) -> None:
    text = HOSTILE[name] * (30_000 // len(HOSTILE[name]))
    text = {"groups": f"1{text}", "spaces": f"{text}x", "braces": f"{text}{'}' * len(text)}"}.get(name, text)
    for grader, (question, _) in EASY.items():
        if grader == "math":
            stated_answer(text)  # it passes on at most 2,000 characters, and has a time limit
        else:
            load_grader(grader).grade(question, text)  # at most a second; quadratic time takes much longer


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_no_text_makes_a_grader_fail(text: str) -> None:
    for grader, (question, _) in EASY.items():
        if grader == "math":
            stated_answer(text)
        else:
            right, answer = load_grader(grader).grade(question, text)
            assert right in (True, False)
            assert answer is None or answer != ""


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(-9999, 9999), st.sampled_from(["{}", "  {} ", "\n{}\n", "It is {}.", "IT IS {}", "**{}**"]))
def test_grades_change_with_the_value_and_not_with_case_and_spacing(number: int, form: str) -> None:
    question = Question("n", "t", "?", references=(str(number),), kind="number")
    for grader in ("number", "contains", "short"):
        grade = load_grader(grader).grade
        assert grade(question, form.format(number)).right
        if grader == "number":
            assert not grade(question, form.format(number + 1)).right
            assert grade(question, form.format(number)).answer == str(number)


def test_case_and_spacing_do_not_change_text_grades_but_another_word_does() -> None:
    for grader in ("short", "exact", "f1", "contains"):
        grade = load_grader(grader).grade
        grades = {
            grade(LIMA, text) for text in ("the city of kings", "The  City of KINGS.", "\tTHE CITY\u00a0OF KINGS!")
        }
        assert {one.right for one in grades} == {True}
        assert len(grades) == 1
        assert not grade(LIMA, "the town with no queens").right


def test_only_text_before_the_last_end_of_thinking_is_reasoning() -> None:
    assert without_reasoning("a</think>b</think>c") == "c"
    assert without_reasoning("no thinking <think>") == "no thinking <think>"


def test_the_grader_depends_on_the_kind_and_several_kinds_are_refused() -> None:
    assert grader_of_kinds(["short", "cloze", "short"]) == "short"
    assert [grader_of_kinds([kind]) for kind in ("number", "math", "choice")] == ["number", "math", "choice"]
    with pytest.raises(
        InputError, match="kinds math and short, whose default graders are math and short. Pass --grader"
    ):
        grader_of_kinds(["short", "math"])
