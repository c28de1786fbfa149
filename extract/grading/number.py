r"""The graders `number`, `number-strict` and `boxed-integer`, which compare numbers exactly, as fractions.

The first two follow Cobbe et al. 2021 (arXiv 2110.14168) and the filters of lm-evaluation-harness. `number` also reads
fractions, powers of ten and number words (see `extract.questions.numbers`).
"""

import re
from collections.abc import Callable
from fractions import Fraction

from extract.errors import InputError
from extract.grading.base import Grade, Grader, from_function
from extract.grading.latex import last_boxed
from extract.questions.numbers import found_numbers, numbers, plain_number
from extract.questions.question import Kind, Question

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_INTEGER = re.compile(r"\s*(?:\\(?:text|mathrm|mathbf|textbf)\{)?\s*\$?\s*(\d{1,3})\s*\$?\.?\s*\}?\s*")


def _stated_number(text: str) -> Fraction | None:
    r"""Extract the number after the first ####, else the last number in the last \boxed{}, else the last number."""
    _, _, after = text.partition("####")
    line = after.lstrip(" ").split("\n", 1)[0]
    if re.search(r"\d", line):  # the answer, even if it can't be parsed
        return next(iter(found_numbers(line)), None)
    found = found_numbers(last_boxed(text) or "") or found_numbers(text)
    return found[-1] if found else None


def _strict_number(text: str) -> Fraction | None:
    match = _STRICT.search(text)
    return None if match is None else plain_number(match[1].replace(",", "").rstrip("."))


def _boxed_integer(text: str) -> Fraction | None:
    match = _INTEGER.fullmatch(last_boxed(text) or "")
    return None if match is None else Fraction(int(match[1]))


def _grader(name: str, find: Callable[[str], Fraction | None], rule: str, kinds: tuple[Kind, ...] = ()) -> Grader:
    def grade(question: Question, text: str) -> Grade:
        references: list[Fraction] = []
        for reference in question.references:
            references += (values := numbers(reference))
            if len(values) != 1:
                raise InputError(
                    f"Expected each reference of question {question.id!r} to be a single number for this grader, but "
                    f"got {question.public(reference[:100])!r}. Pass a different --grader, or correct the question."
                )
        value = find(text)
        return Grade(value in references, None if value is None else str(value))

    return from_function(name, grade, rule, kinds)


NUMBER = _grader(
    "number",
    _stated_number,
    "The number on the line after the first ####, else the last number in the last \\boxed{}, else the last number of "
    "all; thousands separators, currencies, percent signs, units and a trailing period don't count; denied numbers "
    "('not 5') and divisions that give a whole number are passed over. Nothing is taken where the last is a power, "
    "glued to k, M or a comma, or ends a calculation or a choice ('7 - 5', '7 or 8', 'between 3 and 4'). Right when "
    "its exact value is a reference's.",
    kinds=("number",),
)
NUMBER_STRICT = _grader(
    "number-strict",
    _strict_number,
    "What the first `#### (-?[0-9.,]+)` gives, without commas; right when its exact value is a reference's.",
)
BOXED_INTEGER = _grader(
    "boxed-integer",
    _boxed_integer,
    "The last \\boxed{} holds a whole number from 0 to 999 and nothing else; right when it is a reference's.",
)
