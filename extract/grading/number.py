r"""The graders `number`, `number-strict` and `boxed-integer`, which compare exact fractions and never floats.

The two of GSM8K follow Cobbe et al. 2021 (arXiv 2110.14168) and the filters of the same names of lm-evaluation-harness. The
flexible one reads more than they do: fractions, powers of ten and words for them; and it knows an exponent from a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from unicodedata import normalize

from extract.errors import InputError
from extract.grading.base import Grade
from extract.grading.boxed import last_boxed
from extract.questions.question import Question

RULE = (
    "The number on the line after the first ####, else the last number in the last \\boxed{}, else the last number of all; thousands "
    "separators, currencies, percent signs, units and a trailing period don't count; denied numbers ('not 5') and divisions that give a whole number "
    "are passed over. Nothing is taken where the last is a power, glued to k, M or a comma, or ends a calculation or a choice "
    "('7 - 5', '7 or 8', 'between 3 and 4'). Right when its exact value is a reference's."
)
STRICT_RULE = "What the first `#### (-?[0-9.,]+)` gives, without commas; right when its exact value is a reference's."
BOXED_RULE = "The last \\boxed{} holds a whole number from 0 to 999 and nothing else; right when it is a reference's."


def _without_separators(match: re.Match[str]) -> str:
    digits = re.sub(r"\D", "", match[0])
    return f"{digits}." if match[0].endswith(",") else digits


#: LaTeX and typography around numbers, and how they are read.
_SPELLINGS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r",\\!\s?|\{,\}|\\,(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\[,!;:]|\\left|\\right"), ""),
    (re.compile(r"\s?\\[dtc]?frac\s?\{\s?(\d+)\s?\}\s?\{\s?(\d+)\s?\}"), r" \1/\2 "),
    (re.compile(r"\s?\\[dtc]?frac\s?(\d)\s?(\d)"), r" \1/\2 "),
    (re.compile(r"−|[–‐‑－﹣](?=\\?[$€£¥]?[\d.])"), "-"),
    (re.compile(r"(?<=[\d)] )minus (?=\\?[$€£¥]?\d)", re.IGNORECASE), "- "),
    (re.compile(r"\b(?:minus|negative) (?=\\?[$€£¥]?\d)", re.IGNORECASE), "-"),
    (re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+),(?=\d{1,2}(?!\d))"), _without_separators),  # 70.000,00
    (re.compile(r"(?<![\d.,/^_])[1-9]\d{0,2}(?:[ \u00a0\u202f\u2009'’]\d{3})+(?![\d/])"), _without_separators),
    (re.compile("[¼-¾⅐-⅞]"), lambda match: " " + normalize("NFKC", match[0]).replace("⁄", "/")),
    (re.compile("(?<=[\\d)])[⁻⁰¹²³⁴-⁹]+"), lambda match: f"^{{{normalize('NFKC', match[0])}}}".replace("−", "-")),
    (re.compile(r"-\s?\\?[$€£¥]\s?|\\?[$€£¥]\s?-(?=[\d.])"), " -"),
    (re.compile(r"\\?[$€£¥]"), " "),
]
# Atomic groups (?>…) and possessive ++ keep the time linear, and a number whole.
_NUMBER = re.compile(
    r"""
    (?P<sign>-\s?)?
    (?<![\w.^/])(?<!\d,)(?<![\^_]\{)(?<![\^_]\{-)             # no part of a word, a number, an exponent or an index
    (?>(?P<mixed>\d{1,9})\s(?P<part>\d{1,9})/(?P<of>\d{1,9})(?![\d.,/]*\d)
      |(?P<over>\d{1,400})\s?/\s?(?P<under>\d{1,400})(?![\d.,/]*\d)
      |(?P<value>(?>\d{1,3}(?:,\d{3})++(?!\d)|\d++)?+(?:\.\d++)?+)(?<=\d)
       (?:\s?(?:×|x|\*|\\times|\\cdot)\s?10\^\{?(?P<power>-?\d{1,3})\}?|e(?P<e>[-+]?\d{1,3})(?!\w))?
    )
    (?P<unread>\s?\^|,(?=\d)|(?-i:[kKM])(?![A-Za-z]))?       # a power, 1,5 and 18k
    (?:\s(?P<word>hundred|thousand|million|billion|trillion)\b)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WORDS = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNIT = re.compile(r"(?:\s?[A-Za-z]{2,}\.?(?:\^\{?[23]\}?|[²³])?)*\s?(?:\\?%|°)?\s?\.?")
_NO_UNITS = {
    *_WORDS,
    "pi",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "log",
    "ln",
    "exp",
    "or",
    "and",
    "mod",
    "dozen",
}
_MOST_CHARACTERS = 1000  # of a number; a longer one is no answer to anything
_DENIED = re.compile(r"(?:\bnot|n['’]t)\s+\$?$", re.IGNORECASE)
#: What stands between two numbers that are steps or alternatives: an operator or "or", perhaps behind a unit.
_JOINT = re.compile(
    r"[ \t]*(?:\\?[$€£¥%°]|[A-Za-z]{1,20}\b)?[ \t]*(?:\bor\b|[-+*×÷/]|\bx\b|\\times|\\cdot|\\div|\\pm)[ \t\\$€£¥]*",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\bbetween[ \t\\$€£¥]*$", re.IGNORECASE)
_AND = re.compile(r"[^\d\n]{0,20}\band[ \t\\$€£¥]*", re.IGNORECASE)
_LONGEST_JOINT = 40  # characters
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_INTEGER = re.compile(r"\s*(?:\\(?:text|mathrm|mathbf|textbf)\{)?\s*\$?\s*(\d{1,3})\s*\$?\.?\s*\}?\s*")


def numbers(text: str) -> Iterator[Fraction]:
    r"""The numbers that a text says, in its order, as exact fractions; none that is denied ("not 5"), a step or an alternative.

    >>> [str(one) for one in numbers(r"$1,250.50 of 3 1/2 cm^2, \frac{2}{3} or −7: 1.5 million, 9 - 2 = 7")]
    ['2501/2', '7/2', '1500000', '7']
    """
    return (value for value in _found(text) if value is not None)


def _found(text: str) -> list[Fraction | None]:
    """The numbers of a text, None for those that are no answer by themselves: a power, a step, one of several."""
    text = _spelled(text)
    found: list[Fraction | None] = []
    last: re.Match[str] | None = None
    for match in _NUMBER.finditer(text):
        joined = last is not None and _is_joined(text, last, match)
        if joined and found:
            found[-1] = None
        last = match
        if _DENIED.search(text, max(0, match.start() - 9), match.start()) or _is_step(match):
            continue
        value = None if joined else _value(match)
        found.append(-value if value is not None and _is_negative(text, match) else value)
    return found


def _is_joined(text: str, last: re.Match[str], match: re.Match[str]) -> bool:
    """Whether two numbers that follow each other are the sides of an operator, or alternatives."""
    operator = len(match["sign"] or "") if not _is_negative(text, match) else 0
    if match.start() - last.end() > _LONGEST_JOINT:
        return False
    between = text[last.end() : match.start() + operator]
    return bool(
        _JOINT.fullmatch(between)
        or (_AND.fullmatch(between) and _BETWEEN.search(text, max(0, last.start() - 15), last.start()))
    )


def plain_number(text: str) -> Fraction | None:
    r"""The value of a text that is one number and nothing else; None of any other text.

    >>> plain_number(r"-1\frac{4}{5}"), plain_number("5 apples")
    (Fraction(-9, 5), None)
    """
    text = _spelled(text).strip()
    match = _NUMBER.fullmatch(text)
    value = None if match is None else _value(match)
    return None if value is None else -value if text.startswith("-") else value


def number_with_unit(text: str) -> Fraction | None:
    r"""The value of a text that is one number, perhaps with words of a unit behind it; None of any other text.

    >>> number_with_unit("5.4 square inches"), number_with_unit("2 pi"), number_with_unit("1 or 2")
    (Fraction(27, 5), None, None)
    """
    text = _spelled(text).strip()
    match = _NUMBER.match(text)
    unit = "" if match is None else text[match.end() :]
    if match is None or not _UNIT.fullmatch(unit) or _NO_UNITS.intersection(unit.lower().split()):
        return None
    return plain_number(match[0])


def _spelled(text: str) -> str:
    for spelling, plain in _SPELLINGS:
        text = spelling.sub(plain, text)
    return text


def _is_step(match: re.Match[str]) -> bool:
    """Whether it is a division that gives a whole number, "21/3", or by zero."""
    over, under = match["over"], match["under"]
    return bool(under) and (int(under) == 0 or int(over) % int(under) == 0)


def _value(match: re.Match[str]) -> Fraction | None:
    """Without its sign; None where it is too long, divides by zero, or is only a part of what is said."""
    of = match.groupdict()
    if len(match[0]) > _MOST_CHARACTERS or of["unread"] or _is_step(match) or (of["of"] and not int(of["of"])):
        return None
    if of["mixed"]:
        value = int(of["mixed"]) + Fraction(int(of["part"]), int(of["of"]))
    elif of["over"]:
        value = Fraction(int(of["over"]), int(of["under"]))
    else:
        value = Fraction(of["value"].replace(",", "")) * Fraction(10) ** int(of["power"] or of["e"] or 0)
    return value * _WORDS.get((of["word"] or "").lower(), 1)


def _is_negative(text: str, match: re.Match[str]) -> bool:
    """Whether the minus before a number is its sign. Between values it takes away: "7 - 5", "7-5"."""
    sign = match["sign"]
    if not sign:
        return False
    if match.start() == 0:
        return True
    if sign == "-":
        return not (text[match.start() - 1].isalnum() or text[match.start() - 1] in ")]}")
    before = text[max(0, match.start() - 2) : match.start()].rstrip()[-1:]
    return not (before.isalnum() or before in (")", "]", "}"))


def stated_number(text: str) -> Fraction | None:
    r"""The number that an answer ends in: after the first ####, else in the last \boxed{}, else the last of all.

    >>> stated_number("8 + 10 = 18\n#### 18\nQuestion: 5 + 5?"), stated_number("18 or 19")
    (Fraction(18, 1), None)
    """
    _, _, after = text.partition("####")
    line = after.lstrip(" ").split("\n", 1)[0]
    if re.search(r"\d", line):  # the answer, also where it can't be read
        return next(iter(_found(line)), None)
    found = _found(last_boxed(text) or "") or _found(text)
    return found[-1] if found else None


def _strict_number(text: str) -> Fraction | None:
    found = _STRICT.search(text)
    return None if found is None else plain_number(found[1].replace(",", "").rstrip("."))


def _boxed_integer(text: str) -> Fraction | None:
    found = _INTEGER.fullmatch(last_boxed(text) or "")
    return None if found is None else Fraction(int(found[1]))


def _grader(find: Callable[[str], Fraction | None]) -> Callable[[Question, str], Grade]:
    def grade(question: Question, text: str) -> Grade:
        references = [_reference(question, reference) for reference in question.references]
        value = find(text)
        return Grade(value in references, None if value is None else str(value))

    return grade


def _reference(question: Question, reference: str) -> Fraction:
    """The number that a reference is.

    Raises:
        InputError: It holds none, or several.
    """
    found = list(numbers(reference))
    if len(found) != 1:
        raise InputError(
            f"Expected the references of question {question.id!r} to be numbers, which this grader compares, but got {question.public(reference[:100])!r}. Give another --grader, or correct the question."
        )
    return found[0]


grade_number = _grader(stated_number)
grade_number_strict = _grader(_strict_number)
grade_boxed_integer = _grader(_boxed_integer)
