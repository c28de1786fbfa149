"""Tests of the classes of equal answers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from extract.grading.classes import AnswerClasses, Equal, equality


def numbers(answers: list[str | None], equal: Equal | None = None) -> list[int]:
    classes = AnswerClasses(equal)
    return [classes.add(answer) for answer in answers]


def test_equal_answers_share_a_class_and_unparsed_ones_do_not() -> None:
    assert numbers(["b", None, "a", None, "b", ""]) == [0, 1, 2, 3, 0, 4]
    assert numbers(["1/2", "0.5", "2", "0.50"], lambda a, b: Fraction(a) == Fraction(b)) == [0, 0, 1, 0]


@pytest.mark.slow
def test_mathematical_answers_are_equal_if_math_verify_says_so() -> None:
    pytest.importorskip("math_verify")
    with equality("math") as equal:
        assert numbers(["x+1", "1/2", "1+x", "\\frac{1}{2}", None], equal) == [0, 1, 0, 1, 2]


def test_other_graders_compare_texts() -> None:
    with equality("short") as equal:
        assert equal is None
