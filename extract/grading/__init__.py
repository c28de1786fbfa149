"""Graders: is an answer right? A new one is a file with a `Grader`, and one entry in `GRADERS`."""

from collections.abc import Callable, Iterable

from extract.errors import InputError
from extract.grading.base import Grade, Grader, from_decisions, from_function
from extract.grading.choice import CHOICE
from extract.grading.judge import Judge, judge_grader
from extract.grading.math import MATH
from extract.grading.number import BOXED_INTEGER, NUMBER, NUMBER_STRICT
from extract.grading.text import CONTAINS, EXACT, F1, SHORT
from extract.questions.question import Kind
from extract.registry import Registry

_RULES = (SHORT, EXACT, CONTAINS, F1, NUMBER, NUMBER_STRICT, BOXED_INTEGER, MATH, CHOICE)
#: Graders by name. One that takes options is a function from them to a `Grader`.
GRADERS: Registry[Grader | Callable[[Judge], Grader]] = Registry(
    "grader", {rule.name: rule for rule in _RULES} | {"judge": judge_grader}
)
#: The grader of each kind of question where none is named.
GRADER_OF_KIND: dict[Kind, str] = {kind: rule.name for rule in _RULES for kind in rule.kinds}


def load_grader(name: str, judge: Judge | None = None) -> Grader:
    """One of `GRADERS` by name; the grader `judge` takes options.

    Raises:
        InputError: Unknown name, or a judge without a model.
    """
    if name.startswith("judge-"):
        raise InputError(
            f"Expected `grader` to be one of {', '.join(GRADERS)}, but got {name!r}. "
            "Grade with `--grader judge --judge.model NAME`."
        )
    grader = GRADERS[name]
    return grader if isinstance(grader, Grader) else grader(judge or Judge())


def grader_of_kinds(kinds: Iterable[Kind]) -> str:
    """Name of the grader that suits questions of these kinds.

    Raises:
        InputError: The kinds take several graders.
    """
    kinds = sorted(set(kinds))
    names = sorted({GRADER_OF_KIND[kind] for kind in kinds})
    if len(names) > 1:
        raise InputError(
            f"Expected questions of one kind where no `grader` is named, but these are {' and '.join(kinds)}, which "
            f"take {' and '.join(names)}. Give --grader, or make a store of each kind."
        )
    return names[0]


__all__ = ["GRADERS", "GRADER_OF_KIND", "Grade", "Grader", "Judge", "from_decisions", "from_function"]
__all__ += ["grader_of_kinds", "load_grader"]
