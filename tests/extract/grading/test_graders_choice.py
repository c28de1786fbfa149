"""Tests of the grader `choice`."""

from __future__ import annotations

import pytest

from extract.errors import InputError
from extract.grading import load_grader
from extract.questions import Question

CITIES = Question(
    "q",
    "t",
    "Capital of Italy?",
    references=("B", "Rome"),
    kind="choice",
    choices=("Paris", "Rome", "Berlin", "New Rome"),
)
LIST = "A. Paris\nB. Rome\nC. Berlin\nD. New Rome\n"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(b) Rome", "B"),
        ("B. Rome", "B"),
        ("**B**", "B"),
        ("'B'", "B"),
        ("B: Rome", "B"),
        ("The answer is B.", "B"),
        ("the answer is (b)", "B"),
        ("Answer:\n\nC", "C"),
        ("**Answer:** **C**", "C"),
        ("The correct answer to this question is option C, Berlin.", "C"),
        (r"So \boxed{C}", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"\boxed{\textbf{(C)}\ Berlin}", "C"),
        (r"A is tempting, \boxed{Rome}", "B"),
        ("First A seems right. But then C.", "C"),
        ("Options A, C and D are wrong, so B", "B"),
        ("It is not A, but B", "B"),
        ("The answer is A because Paris is large", "A"),
        ("A Roman would say Rome", "B"),  # an article
        ("The answer is a city, Rome", "B"),
        ("I think Rome", "B"),
        ("New Rome", "D"),  # not the option Rome within it
        ("rome!", "B"),
        (f"{LIST}Answer: B", "B"),
        (f"{LIST}\nI take C", "C"),
        ("We know A is false. The answer is Rome.", "B"),
        ("A\n\nB is wrong because it is in Italy. C is in Norway, D in Peru.", "A"),
        ("A\n\nExplanation: B is in Italy", "A"),
        ("B. Rome\n\nExplanation: C is in Germany, and A, Paris, is in France.", "B"),
        ("A is correct; B is wrong", "A"),
        ("A is correct. B, C and D are wrong.", "A"),
        ("C is the answer: A is Paris.", "C"),
        ("A. Paris is the capital of France, unlike B.", "A"),
        ("The answer is A. B is in Italy.", "A"),
        ("So A. B is wrong", "A"),
        ("B, because A is in France", "B"),
        ("Paris, not Rome", "A"),
        ("I don't think it's C, but A", "A"),
        ("Nothing but C", "C"),
        (f"{LIST}\nB. Rome", "B"),
        (f"{LIST}{LIST}\nC. Berlin", "C"),
        (f"{LIST}\nI say Rome", "B"),
        (f"{LIST}\nA", "A"),
        (f"{LIST}\nA. Paris", "A"),
        ("So d is the answer", "D"),
        ("i'd go with d", "D"),
        ("_C_", "C"),
        ("__C__", "C"),
        ("The answer is D. Wait, actually C.", "C"),
        ("The answer is B because Paris is in France", "B"),
        ("It boils at 100 °C. Paris", "A"),
        ("It weighs 100 C. Paris", "A"),
        ("Rome\n\nA is the first option", "B"),
        ("C.\nThe correct answer is:\nD.\n", "D"),
        ("It's not A. B.", "B"),
        ("It's not A\nB", "B"),
        ("It's not A: B", "B"),
        ("All options except B are wrong", "B"),
        ("All options except Rome are wrong", "B"),
        ("Everything except B is incorrect", "B"),
        ("Any option other than B can be ruled out", "B"),
        (r"\boxed{A}, not \boxed{B}", "A"),
        ("I doubt it is B", "B"),  # a known error
    ],
)
def test_the_chosen_option_is_recognised(text: str, letter: str) -> None:
    grade = load_grader("choice").grade(CITIES, text)
    assert grade.answer == letter
    assert grade.right is (letter == "B")


@pytest.mark.parametrize(
    "text",
    [
        "A or B",
        "A/B",
        "A and B",
        "Both (A) and (B).",
        r"\boxed{A, B}",
        "The answer is A or B",
        "Paris or Rome",
        "E",
        "The answer is E",
        "It isn't B",
        "not (B)",
        "none of these",
        "The answer is neither A nor C.",
        LIST,
        LIST[:-5],  # truncated
        "A. Paris\nB.",  # also truncated
        "A. Paris\nB. Rome\nC",
        "A. Paris\nA. Paris\nB. Oslo\nC",
        "A. Paris\nB. Paris\nC.",
        "A. Oslo\nB. Rome\n",
        "C is wrong",
        "C is incorrect",
        "C is clearly incorrect.",
        "C can be ruled out",
        "C can't be right",
        "C: wrong",
        "C? No.",
        "I don't think it's C",
        "I do not think that the answer is C",
        "It cannot be C",
        "All except C",
        "Not A. B. C.",
        "It's not A, B",
        "Not correct: B",
        "I don't believe B is right",
        r"not \boxed{B}",
        r"\boxed{B} is wrong",
        "Anything but C",
        "The answer is unlikely to be C",
        "The answer is not C",
        "It is not Paris",
        "The answer is not Paris",
        "It isn’t Paris",
        "Paris is wrong",
        "Rome? No. Paris? No.",
        "A or maybe D",
        "A (or D)",
        "A, possibly D",
        "A and/or D",
        "A + D",
        "both A as well as D",
        "A. Or D.",
        "A B C",
        "A B",
        "A;B;C",
        "A | B | C",
        "A\nB\nC\nD",
        "A. B. C. D.",
        "A) B) C) D)",
        "The answer is A. Or D.",
        "A is correct, and so B is correct",
        "The answer is Vitamin C, i.e. Paris",
        "",
    ],
)
def test_missing_several_and_denied_options_are_wrong_and_unparsed(text: str) -> None:
    assert load_grader("choice").grade(CITIES, text) == (False, None)


@pytest.mark.parametrize(
    ("references", "choices"),
    [
        (("Rome",), ("Paris", "Rome")),
        (("C", "Rome"), ("Paris", "Rome")),
        (("B", "Rome"), ()),
        (("b",), ("Paris", "Rome")),
    ],
)
def test_a_question_without_lettered_options_is_refused(references: tuple[str, ...], choices: tuple[str, ...]) -> None:
    question = Question("q", "t", "?", references=references, choices=choices)
    with pytest.raises(InputError, match="`choices` and the right letter as its first reference"):
        load_grader("choice").grade(question, "B")


def test_an_option_with_letters_or_signs_is_recognised_by_its_text() -> None:
    series = Question(
        "q", "t", "?", references=("B", "M*A*S*H"), choices=("6'", "M*A*S*H", "6''", "A or B"), kind="choice"
    )
    grade = load_grader("choice").grade
    assert [grade(series, text).answer for text in ("M*A*S*H", "6''", "6'", " a or b\n", "A")] == [
        "B",
        "C",
        "A",
        "D",
        "A",
    ]


def test_the_letter_decides_in_any_order_of_the_options() -> None:
    for letter, choices in (("A", ("Rome", "Paris")), ("B", ("Paris", "Rome"))):
        question = Question("q", "t", "?", references=(letter, "Rome"), choices=choices, kind="choice")
        grade = load_grader("choice").grade
        assert grade(question, letter).right
        assert grade(question, "It is Rome").answer == letter
        assert not grade(question, {"A": "B", "B": "A"}[letter]).right
        assert not grade(question, "It is Paris").right


def take(choices: tuple[str, ...], text: str) -> str | None:
    question = Question("q", "t", "?", references=("A", choices[0]), choices=choices, kind="choice")
    return load_grader("choice").grade(question, text).answer


@pytest.mark.parametrize(
    "text", ["1/3", "1,3", "3,000", "x^3", "−3", "-3", "3 million", "3 000", "5 - 3", "not 3", "30", "2.3", "3%"]
)
def test_an_option_that_is_a_number_is_not_found_within_another_number(text: str) -> None:
    assert take(("3.5", "3", "5", "4"), text) is None


@pytest.mark.parametrize(
    ("choices", "text", "letter"),
    [
        (("3.5", "3", "5", "4"), "3", "B"),
        (("3.5", "3", "5", "4"), "It is 3.5.", "A"),
        (("3.5", "3", "5", "4"), r"\boxed{3}", "B"),
        (("1", "2", "3"), "1 + 2 = 3", "C"),
        (("-3", "3"), "It is −3", "A"),
        (("3 apples", "1/3 apples"), "1/3 apples", "B"),
        (("3 apples", "4 apples"), "1/3 apples", None),
        (("50%", "50"), "It is 50%", "A"),
        (("A", "B", "A and B"), "The answer is A and B", "C"),
        (("A", "B", "A and B"), "C. A and B", "C"),
        (("A", "B", "A and B"), "B", "B"),
        (("the cell wall", "a nucleus"), "cell wall", "A"),
        (("the cell wall", "a nucleus"), "It is the nucleus.", "B"),
        (("+", "-"), "-", "B"),
        (("+", "-"), "The answer is +", "A"),
        (("x > 2", "x < 2"), "x < 2", "B"),
        (("x > 2", "x = 2"), "x < 2", None),
        (("C", "C++", "C#"), "It is C++", "B"),
        (("True", "False"), "It isn't true", None),
        (("True", "False"), "It is not true", None),
        (("True", "False"), "It is false", "B"),
        (("legal", "not legal"), "It is not legal", "B"),
        (("none of these", "all of these"), "The answer is none of these", "A"),
    ],
)
def test_an_option_is_recognised_by_its_whole_text(choices: tuple[str, ...], text: str, letter: str | None) -> None:
    assert take(choices, text) == letter


def test_messages_do_not_contain_options_of_private_questions() -> None:
    question = Question("q", "t", "?", references=("Secret",), kind="choice", meta={"private": True})
    with pytest.raises(InputError, match="`choices` and the right letter") as caught:
        load_grader("choice").grade(question, "A")
    assert "Secret" not in str(caught.value)
