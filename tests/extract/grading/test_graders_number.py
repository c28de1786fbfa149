"""Tests of the graders `number`, `number-strict` and `boxed-integer`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extract.errors import InputError
from extract.grading import load_grader
from extract.grading.latex import last_boxed
from extract.questions import Question
from extract.questions.numbers import numbers


def right(grader: str, reference: str, text: str) -> bool | None:
    question = Question("q", "t", "?", references=(reference,), kind="number")
    return load_grader(grader).grade(question, text).right


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("18", "#### 18"),
        ("18", "16 - 3 = 13\n#### 18\n\nQuestion: what is 9 + 9?\n#### 7"),
        ("18", "#### $18.00 a day, of 25"),
        ("18", r"so \boxed{18} of 25"),
        ("18", r"\boxed{17}, no, \boxed{\text{18 eggs}} and 3"),
        ("18", "She makes $18."),
        ("18", "18"),
        ("18", "of 25 eggs 18% "),
        ("1250", "1,250"),
        ("1,250", "$1,250.00"),
        ("1250", r"1{,}250"),
        ("1250", r"$1,\!250$"),
        ("18", "The answer is 18!"),  # an exclamation mark, not a factorial
        ("1250.5", "1,250.50 dollars"),
        ("-5", "−5"),
        ("-5", "it is -$5"),
        ("2", "7-5 = 2"),
        ("-5", "–5"),
        ("-5", "－5"),
        ("-5", "it is minus 5"),
        ("1000", "1 000"),
        ("1000", "1\u00a0000"),
        ("1000", "1\u202f000"),
        ("1000", "1'000"),
        ("70000", "€70.000,00"),
        ("2000", "2×10³"),
        ("1.5", "1½"),
        ("18", "18km in 1 h, so 18"),
        ("15", "3 are left and 15 in all"),
        ("9", "16 - 3 = 13\n- 4 of 13: 9"),
        ("0.75", "3/4"),
        ("0.75", r"\frac{3}{4}"),
        ("3.5", "3 1/2 cups"),
        ("1500000", "1.5 million"),
        ("150000", r"1.5 \times 10^5"),
        ("12", "12 cm^2"),
        ("0.1", "0.1"),
        ("7", "７"),
        ("3.0", "3"),
    ],
)
def test_the_same_value_is_right_however_it_is_written(reference: str, text: str) -> None:
    assert right("number", reference, text)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("18", "81"),
        ("18", "-18"),
        ("18", "1.8"),
        ("18", "180"),
        ("18", "18,000"),
        ("5", "5 million"),
        ("0.3", "0.30000000000000004"),  # as a float, it equals 0.1 + 0.2
        ("10000000000000000", "10000000000000001"),  # identical as floats
        ("2", "12 cm^2"),
        ("10", "2^{10}"),
        ("1", "x_1"),
        ("0.333", "1/3"),
        ("18", "#### 19\n18"),
        ("18", r"\boxed{19} 18"),
        ("5", "5/0"),
    ],
)
def test_another_value_is_wrong(reference: str, text: str) -> None:
    assert right("number", reference, text) is False


@pytest.mark.parametrize(
    "text",
    [
        "1 000",  # whose last three digits are not a number of their own
        "1\u00a0000",
        "1'000",
        "€70.000,00",
        "7-5",
        "7 - 5",
        "7 minus 5",
        "2020-01-05",
        "0-5",
        "7 or 5",
        "$7 or $5",
        "7 or 5 apples",
        "between 0 and 5",
        "2 × 5",
        "7,5",
        "5,7",
        "5²",
        "5^2",
        "5k",
        "5M",
        "minus 5",
        "–5",
        "it isn't 5",
        "it is not 5",
    ],
)
@pytest.mark.parametrize("reference", ["0", "5", "7"])
def test_a_part_of_a_number_a_step_and_one_of_several_are_no_answer(reference: str, text: str) -> None:
    assert right("number", reference, text) is False


def test_a_gold_answer_of_a_private_question_is_in_no_message() -> None:
    question = Question("q", "t", "?", references=("Secret",), kind="number", meta={"private": True})
    with pytest.raises(InputError, match="to be a single number") as caught:
        load_grader("number").grade(question, "1")
    assert "Secret" not in str(caught.value)


@given(st.fractions(max_denominator=1000), st.integers(0, 3))
def test_a_number_is_read_as_it_was_written(value: Fraction, places: int) -> None:
    assert numbers(f"it is {value}.") == [value]
    whole = round(value * 10**6)
    assert numbers(f"USD {whole:,}.{'0' * places}") == [whole]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#### 18", True),
        ("#### 1,8", True),
        ("#### 18.", True),
        ("#### 18.00", True),
        ("#### -18", False),
        ("####18", False),
        ("#### $18", False),
        ("18", False),
        ("#### 19\n#### 18", False),
        ("#### 1.2.3", False),
        ("#### ,", False),
    ],
)
def test_strictly_only_hashes_with_a_bare_number_count(text: str, expected: bool) -> None:
    assert right("number-strict", "18", text) is expected


@given(st.sampled_from(["", "-"]), st.text("#0123456789.\n$", max_size=30))
@example("", "0.$1")
@example("-", "0.$1")
def test_what_is_taken_strictly_is_never_another_number_flexibly(sign: str, text: str) -> None:
    question = Question("q", "t", "?", references=("1",))
    strict, flexible = (load_grader(name).grade(question, f"#### {sign}{text}") for name in ("number-strict", "number"))
    assert None in (strict.answer, flexible.answer) or strict.answer == flexible.answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{042}", True),
        (r"so $\boxed{42}$.", True),
        (r"\boxed{ 42. }", True),
        (r"\boxed{\text{42}}", True),
        (r"\boxed{41} or \boxed{42}", True),
        (r"\boxed{42} or \boxed{41}", False),
        (r"\boxed{42.0}", False),
        (r"\boxed{-42}", False),
        (r"\boxed{1042}", False),
        (r"\boxed{42 apples}", False),
        ("42", False),
        (r"\boxed{42", False),
    ],
)
def test_a_boxed_integer_is_a_whole_number_of_at_most_three_digits(text: str, expected: bool) -> None:
    assert right("boxed-integer", "42", text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{a} \boxed{b}", "b"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{x}}", "x"),
        (r"\boxed{1} \boxed{2", "1"),
        (r"\\boxed{3}", "3"),
        (r"\fbox{4}", "4"),
        ("boxed{5}", None),
        ("}{", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_closed_box_is_taken(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize("grader", ["number", "number-strict", "boxed-integer"])
def test_questions_whose_answers_are_no_numbers_are_refused(grader: str) -> None:
    with pytest.raises(InputError, match="each reference of question 'q' to be a single number.* but got 'Lima'"):
        right(grader, "Lima", "Lima")
