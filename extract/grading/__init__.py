"""Graders: is an answer right? A new one is one function and one entry in `GRADERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extract.errors import InputError, nearest
from extract.grading.short import RULE, grade_short
from extract.questions.question import Question


@dataclass(frozen=True)
class Grader:
    """A named rule.

    Attributes:
        grade: From a question and an answer's text to (right, parsed answer); right is None where it can't decide.
        rule: The rule in words, recorded beside the grades.
    """

    grade: Callable[[Question, str], tuple[bool | None, str]]
    rule: str


GRADERS: dict[str, Grader] = {"short": Grader(grade_short, RULE)}


def load_grader(name: str) -> Grader:
    """A grader by name.

    Raises:
        InputError: Unknown name.
    """
    if name not in GRADERS:
        raise InputError(
            f"Expected `grader` to be among {', '.join(GRADERS)}, but got {name!r}.{nearest(name, GRADERS)}"
        )
    return GRADERS[name]
