"""Grade the reference answers of real question sets, other spellings of them, and wrong values."""

from __future__ import annotations

import pytest

from extract.grading import grader_of_kinds, load_grader
from extract.questions import Question, load_questions
from tests.helpers.golds import DATA, Written, cases_of, golds, written_latex, written_numbers
from tests.helpers.latex_values import values

there = pytest.mark.skipif(not DATA.is_dir(), reason="shared/data is not beside the project")


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"1 \pm \sqrt{4}", [-1, 3]),
        (r"\left[ \frac12, 3 \right)", [0.5, 3]),
        (r"137 \frac{1}{2}", [137.5]),
        (r"864 \mbox{ inches}^2", [864]),
        (r"(0,9) \cup (9,36)", [0, 9, 9, 36]),
        (r"\begin{pmatrix} -1/3 \\ 2 \end{pmatrix}", [-1 / 3, 2]),
        (r"2(3-5)^2", [8]),
        (r"x \in [-2,7]", [-2, 7]),
        (r"\text{east}", None),
        ("52_8", None),
    ],
)
def test_latex_is_converted_to_values(latex: str, expected: list[float] | None) -> None:
    found = values(latex)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-8))


def test_modifications_that_keep_the_value_are_not_wrong() -> None:
    wrong = [one.text for one in written_latex("0", ["0", "x=0", "1"]) if not one.right]
    assert wrong
    assert all(values(text.removeprefix(r"\boxed{")[:-1]) != [0] for text in wrong)
    assert {one.how for one in written_numbers("0", ["0"]) if not one.right} == {"value + 1", "value − 1"}


@pytest.mark.slow
def test_hand_written_references_are_right_in_all_spellings_and_wrong_with_other_values() -> None:
    latex = [r"\frac{14}{3}", "(3,4]", "1,-2", "2k+2", "52_8", r"3\sqrt{13}", "90^\\circ", r"\text{east}", "12"]
    check("math", cases_of("mine", latex, written_latex), {})
    check("number", cases_of("mine", ["18", "1250", "0", "2.5", "-7"], written_numbers), {"other numbers after it"})


@pytest.mark.slow
@there
@pytest.mark.parametrize(
    ("name", "misses"),
    [("GSM8K", {"other numbers after it"}), ("SVAMP", {"other numbers after it"}), ("MATH-500", set())],
)
def test_real_references_are_right_in_all_spellings_and_wrong_with_other_values(name: str, misses: set[str]) -> None:
    grader, references, written = golds()[name]
    check(grader, cases_of(name, references, written, every=12), misses)


def check(grader: str, cases: list[tuple[Question, Written]], misses: set[str]) -> None:
    with load_grader(grader).running() as grade_all:
        grades = grade_all([(question, one.text) for question, one in cases], {}, lambda items, tokens: None)
    assert cases
    for (question, one), grade in zip(cases, grades, strict=True):
        assert grade.right is (one.right and one.how not in misses), (question, one)


@pytest.mark.slow
@there
@pytest.mark.parametrize(
    "source", ["gsm8k=gsm8k_test.jsonl", "svamp=svamp.json", "math-500=math500.jsonl", "mmlu=mmlu_miscellaneous.csv"]
)
def test_every_reference_of_a_set_is_graded_right(source: str) -> None:
    name, _, file = source.partition("=")
    questions = load_questions(f"{name}={DATA / file}")
    grader = grader_of_kinds(question.kind for question in questions)
    box = (lambda gold: rf"\boxed{{{gold}}}") if grader == "math" else str
    with load_grader(grader).running() as grade_all:
        answers = [(question, box(question.references[0])) for question in questions]
        grades = grade_all(answers, {}, lambda items, tokens: None)
    assert all(grade.right for grade in grades)
