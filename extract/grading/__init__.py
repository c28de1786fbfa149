"""Graders: is an answer right? A new one is one function and one entry in `GRADERS`."""

from __future__ import annotations

from collections.abc import Iterable

from extract.errors import InputError, nearest
from extract.grading import choice, number, short
from extract.grading import exact as squad
from extract.grading import math as mathematics
from extract.grading.base import Grade, Grader, from_decisions, from_function
from extract.grading.judge import Judge, judge_grader
from extract.questions.question import Kind

GRADERS: dict[str, Grader] = {
    grader.name: grader
    for grader in (
        from_function("short", short.grade_short, short.RULE),
        from_function("exact", squad.grade_exact, squad.EXACT_RULE),
        from_function("contains", squad.grade_contains, squad.CONTAINS_RULE),
        from_function("f1", squad.grade_f1, squad.F1_RULE),
        from_function("number", number.grade_number, number.RULE),
        from_function("number-strict", number.grade_number_strict, number.STRICT_RULE),
        from_function("boxed-integer", number.grade_boxed_integer, number.BOXED_RULE),
        from_function("choice", choice.grade_choice, choice.RULE),
        from_decisions("math", mathematics.parse_math, mathematics.decide_math, mathematics.RULE),
    )
}
#: The grader of each kind of question where none is named.
GRADER_OF_KIND: dict[Kind, str] = {
    "short": "short",
    "cloze": "short",
    "number": "number",
    "math": "math",
    "choice": "choice",
}


def load_grader(name: str, judge: Judge | None = None) -> Grader:
    """A grader by name.

    Args:
        name: One of `GRADERS`, or judge.
        judge: The judge, for that one.

    Raises:
        InputError: Unknown name, or a judge without a name.
    """
    if name == "judge":
        return judge_grader(judge or Judge())
    if name not in GRADERS:
        known = [*GRADERS, "judge"]
        hint = " Grade with `--grader judge --judge.model NAME`." if name.startswith("judge-") else nearest(name, known)
        raise InputError(f"Expected `grader` to be among {', '.join(known)}, but got {name!r}.{hint}")
    return GRADERS[name]


def grader_of_kinds(kinds: Iterable[Kind]) -> str:
    """Name of the grader that suits questions of these kinds.

    Raises:
        InputError: They take several.
    """
    kinds = sorted(set(kinds))
    names = {GRADER_OF_KIND[kind] for kind in kinds}
    if len(names) > 1:
        raise InputError(
            f"Expected questions of one kind where no `grader` is named, but these are {' and '.join(kinds)}, which take {' and '.join(sorted(names))}. Give --grader, or make a store of each kind."
        )
    return names.pop()


__all__ = ["GRADERS", "GRADER_OF_KIND", "Grade", "Grader", "Judge", "grader_of_kinds", "load_grader"]
