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
def test_the_same_value_is_right_in_any_form(reference: str, text: str) -> None:
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
def test_different_values_are_wrong(reference: str, text: str) -> None:
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
def test_parts_of_numbers_steps_and_one_of_several_numbers_are_not_answers(reference: str, text: str) -> None:
    assert right("number", reference, text) is False


def test_messages_do_not_contain_references_of_private_questions() -> None:
    question = Question("q", "t", "?", references=("Secret",), kind="number", meta={"private": True})
    with pytest.raises(InputError, match="to be a single number") as caught:
        load_grader("number").grade(question, "1")
    assert "Secret" not in str(caught.value)


@pytest.mark.slow
@given(st.fractions(max_denominator=1000), st.integers(0, 3))
def test_numbers_are_parsed_exactly(value: Fraction, places: int) -> None:
    assert numbers(f"it is {value}.") == [value]
    whole = round(value * 10**6)
    assert numbers(f"USD {whole:,}.{'0' * places}") == [whole]


@pytest.mark.parametrize(
    "text",
    [
        "It can't be 4.",
        "It can’t be **4**",
        "4 is wrong",
        "4 dollars is wrong",
        "4, which is incorrect",
        "4 is not the answer",
        "4 isn't right",
        "4 cannot be",
        "4? No.",
        "4 (wrong)",
        "I don't think that the answer is 4",
        "It's unlikely to be $4",
        "It is not equal to 4",
        "neither 4 nor 4",
        "rather than 4",
        "x ≠ 4",
        r"$x \neq 4$",
        r"\boxed{4} is wrong",
        r"\boxed{4\text{ is wrong}}",
        r"It is not $\boxed{4}$.",
    ],
)
def test_denied_numbers_are_skipped(text: str) -> None:
    assert load_grader("number").grade(Question("q", "t", "?", references=("4",)), text) == (False, None)
    assert right("number", "5", f"5. {text}")


@pytest.mark.parametrize(
    "text",
    [
        "√4",
        r"\sqrt{4}",
        "sqrt(4)",
        "4!",
        r"\boxed{4!}",
        "It is 4! + 4",
        "4x",
        "#### 4x",
        "4i",
        "4π",
        r"4\pi",
        r"4\sqrt{3}",
        "4 squared",
        "5 ≠ 4",
        "5 != 4",
        "(4)^2",
        "x + 4",
        "x - 4",
        "4 - y",
        r"4 \cdot x",
        r"\boxed{4}^{2}",
        r"\boxed{4}²",
        r"-\boxed{4}",
    ],
)
def test_a_number_with_an_operator_or_a_letter_is_not_an_answer(text: str) -> None:
    assert right("number", "4", text) is False


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 4!",
        "$4!",
        "4 are wrong",
        "4 were not sold",
        "The number of students who did not pass is 4",
        "The number of answers that are not correct is 4",
        "Not correct: 4",
        "All but 4",
        "4 wrong answers",
        "5 is wrong, it is 4",
        "5 ≠ 3, so 4",
        "4m",
        "4 h",
        "x = 4",
        "Total - 4",
        r"4^\circ",
        r"\boxed{4}!",
        r"\boxed{4}^\circ",
        r"\boxed{4}^{th}",
        r"\boxed{4\text{ cm}}^2",
        r"2!\times 2!=\boxed{4}",
        r"\boxed{4}, not \boxed{5}",
    ],
)
def test_text_that_only_looks_like_a_denial_or_an_operator_does_not_change_the_number(text: str) -> None:
    assert right("number", "4", text)


@pytest.mark.parametrize(
    "text",
    [
        "anything but 4",
        "I doubt it is 4",
        "4? That's wrong",
        "half of 4",
        "≥ 4",
        "4 x",
        "4ab",
        "4 + i",
        r"\frac{x}{4}",
        r"2\boxed{4}",
        r"\boxed{4}x",
    ],
)
def test_the_known_errors_on_the_page_still_occur(text: str) -> None:
    assert right("number", "4", text)


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
def test_the_strict_grader_accepts_only_hashes_with_a_bare_number(text: str, expected: bool) -> None:
    assert right("number-strict", "18", text) is expected


@pytest.mark.slow
@given(st.sampled_from(["", "-"]), st.text("#0123456789.\n$", max_size=30))
@example("", "0.$1")
@example("-", "0.$1")
def test_the_strict_and_the_flexible_grader_never_read_different_numbers(sign: str, text: str) -> None:
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
        (r"\boxed{42}^2", False),
        (r"-\boxed{42}", False),
        (r"\boxed{42} is wrong", False),
        (r"\boxed{42}, not \boxed{41}", True),
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
def test_the_last_closed_box_is_used(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize("grader", ["number", "number-strict", "boxed-integer"])
def test_questions_whose_references_are_not_numbers_are_refused(grader: str) -> None:
    with pytest.raises(InputError, match="each reference of question 'q' to be a single number.* but got 'Lima'"):
        right(grader, "Lima", "Lima")
