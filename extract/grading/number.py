r"""The `number`, `number-strict` and `boxed-integer` graders, which compare numbers exactly, as fractions.

`number` and `number-strict` follow Cobbe et al. 2021 (arXiv 2110.14168) and the filters of lm-evaluation-harness.
`number` also reads fractions, powers of ten and words such as "million" (see `extract.questions.numbers`).
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
    r"""Return the number that `text` states as its answer.

    In order of preference, this is the first number after the first #### (on the same line), the last number in the
    last \boxed{}, or the last number in the text.
    """
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
    "The answer is the first number on the line after the first ####, otherwise the last number in the last \\boxed{}, "
    "otherwise the last number in the text. Thousands separators, currencies, percent signs, degrees, units and a "
    "trailing period are ignored. Denied numbers and boxes ('not 5', 'it can't be 5', '5 is wrong', 'x ≠ 5') and "
    "divisions with an integer result are skipped. There is no answer if that number is a power, a factorial or a part "
    "of a root, has a variable (4x, x + 4), is followed directly by k, M or a comma, or ends a calculation, range, "
    "date or alternative ('7 - 5', '7 or 8', 'between 3 and 4'). A minus in front of a box and an exponent behind it "
    "belong to the answer. It is right if its exact value equals that of a reference.",
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
    "The answer is an integer from 0 to 999 that is the only content of the last \\boxed{} that is not denied. A minus "
    "in front of the box and an exponent behind it belong to the content. It is right if it equals a reference.",
)
