"""Graders, which decide whether an answer is right. To add one, define it in a new file and add it to `GRADERS`."""

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
#: Graders by name. For a grader with options, the value is a function that builds the grader from its options.
GRADERS: Registry[Grader | Callable[[Judge], Grader]] = Registry(
    "grader", {rule.name: rule for rule in _RULES} | {"judge": judge_grader}
)
#: Default grader of each kind of question.
GRADER_OF_KIND: dict[Kind, str] = {kind: rule.name for rule in _RULES for kind in rule.kinds}


def load_grader(name: str, judge: Judge | None = None) -> Grader:
    """Load a grader by name.

    Args:
        judge: Options of the `judge` grader.

    Raises:
        InputError: If the name is unknown, or the judge has no model.
    """
    if name.startswith("judge-"):
        raise InputError(
            f"Expected `grader` to be one of {', '.join(GRADERS)}, but got {name!r}. "
            "To grade with a judge, pass `--grader judge --judge.model NAME`."
        )
    grader = GRADERS[name]
    return grader if isinstance(grader, Grader) else grader(judge or Judge())


def grader_of_kinds(kinds: Iterable[Kind]) -> str:
    """Return the name of the default grader for questions of the given kinds.

    Raises:
        InputError: If the kinds have different default graders.
    """
    kinds = sorted(set(kinds))
    names = sorted({GRADER_OF_KIND[kind] for kind in kinds})
    if len(names) > 1:
        raise InputError(
            f"Expected questions with the same default grader, but got the kinds {' and '.join(kinds)}, whose default "
            f"graders are {' and '.join(names)}. Pass --grader, or make one store per kind."
        )
    return names[0]


__all__ = ["GRADERS", "GRADER_OF_KIND", "Grade", "Grader", "Judge", "from_decisions", "from_function"]
__all__ += ["grader_of_kinds", "load_grader"]
