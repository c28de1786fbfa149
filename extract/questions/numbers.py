"""Parse numbers as exact fractions."""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import pairwise
from unicodedata import normalize

from extract.errors import InputError
from extract.text import is_negated


def _without_separators(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match[0]) + ("." if match[0].endswith(",") else "")


#: LaTeX and typographic spellings of numbers, with their plain replacements.
_SPELLINGS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<=\d)!(?=\s?(?:[+/×÷=^]|[-*]\s?\d))"), "^!"),
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
# Atomic groups (?>…) keep the matching time linear. Possessive quantifiers match wrongly before Python 3.11.5
# (python/cpython#100061).
_NUMBER = re.compile(
    r"""
    (?P<sign>-\s?)?
    (?<![\w.^/])(?<!\d,)(?<![\^_]\{)(?<![\^_]\{-)             # not part of a word, a number, an exponent or an index
    (?>(?P<mixed>\d{1,9})\s(?P<part>\d{1,9})/(?P<of>\d{1,9})(?![\d.,/]*\d)
      |(?P<over>\d{1,400})\s?/\s?(?P<under>\d{1,400})(?![\d.,/]*\d)
      |(?P<value>(?>(?:\d{1,3}(?>(?:,\d{3})+)(?!\d)|\d+)?)(?>(?:\.\d+)?))(?<=\d)
       (?:\s?(?:×|x|\*|\\times|\\cdot)\s?10\^\{?(?P<power>-?\d{1,3})\}?|e(?P<e>[-+]?\d{1,3})(?!\w))?
    )
    (?:(?P<unread>[)}]*\s?\^(?!\s?\{?\s?\\circ)|,(?=\d)|(?-i:[kKM])(?![A-Za-z]))  # a power, 1,5 and 18k
      |(?P<term>\s?(?:√|π|\\?(?:sqrt|pi|squared|cubed|factorial)(?![A-Za-z]))         # 2√3 and 4x: the other letters
         |(?-i:[abefijnoqru-zBDEGHIO-UX-Z])(?![A-Za-z])))?                             # are units, as in 4m
    (?:\s(?P<word>hundred|thousand|million|billion|trillion)\b)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WORDS = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNIT = re.compile(r"(?:\s?[A-Za-z]{2,}\.?(?:\^\{?[23]\}?|[²³])?)*\s?(?:\\?%|°)?\s?\.?")
_NO_UNITS = {*_WORDS, *"pi sqrt sin cos tan cot sec csc log ln exp or and mod dozen squared cubed factorial".split()}
_MOST_CHARACTERS = 1000  # longest number that is parsed
#: Text between two operands or alternatives: an operator or "or", optionally after a unit.
_JOINT = re.compile(
    r"[ \t]*(?:\\?[$€£¥%°!]|[A-Za-z]{1,20}\b)?[ \t]*"
    r"(?:\bor\b|[-+*×÷/≠]|(?<=\s)!=|\bx\b|\\times|\\cdot|\\div|\\pm|\\neq?)[ \t\\$€£¥]*",
    re.IGNORECASE,
)
#: Text before or after a number that is the argument of a root or is combined with a variable.
_OPERATOR = r"\s?(?:[-+*/×÷]|\\times|\\cdot)\s?"
_PART_BEFORE = re.compile(rf"(?:√|\\?\bsqrt(?:\[\d+\])?)[\s({{]*$|(?<![A-Za-z])[knqru-z]{_OPERATOR}$")
_PART_BEHIND = re.compile(rf"{_OPERATOR}[knqru-z](?![A-Za-z])")
_BETWEEN = re.compile(r"\bbetween[ \t\\$€£¥]*$", re.IGNORECASE)
_AND = re.compile(r"[^\d\n]{0,20}\band[ \t\\$€£¥]*", re.IGNORECASE)
#: A number with thousands separators, including Indian grouping.
_THOUSANDS = re.compile(r"[-+]?\s*[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}(?:\.\d*)?")
_MOST_DIGITS = 300  # in a gold number, on either side of the decimal point


def numbers(text: str) -> list[Fraction]:
    r"""Find the numbers stated in `text`, in order.

    Operands ("9 - 2"), alternatives ("7 or 8") and numbers that the text rules out ("not 5") are left out.

    >>> [str(number) for number in numbers(r"$1,250.50 of 3 1/2 cm^2, \frac{2}{3} or −7: 1.5 million, 9 - 2 = 7")]
    ['2501/2', '7/2', '1500000', '7']
    """
    return [value for value in found_numbers(text) if value is not None]


def found_numbers(text: str) -> list[Fraction | None]:
    """Return the numbers in `text`, in order.

    Numbers that the text rules out ("not 4") are left out. Divisions with a whole-number result ("21/3") are also left
    out, with both operands. Numbers that can't be answers are returned as None: powers, roots, operands of other
    calculations ("3 + 4"), and alternatives ("4 or 5").
    """
    text = _spelled(text)
    found: list[Fraction | None] = []
    matches = list(_NUMBER.finditer(text))
    for last, match in zip([None, *matches], matches, strict=False):
        joined = last is not None and _is_joined(text, last, match)
        if joined and found:
            found[-1] = None
        if is_negated(text, *match.span()) or _is_step(match):
            continue
        value = None if joined or _is_part(text, match) else _value(match)
        found.append(-value if value is not None and _is_negative(text, match) else value)
    return found


def has_terms(text: str) -> bool:
    """Whether `text` contains a number that is only part of an expression, as in 4x, 2√3 or x + 4.

    A number does not count if an operator or "or" joins it to another number, as in "2x + 3" or "2x or 3".
    """
    text = _spelled(text)
    matches = list(_NUMBER.finditer(text))
    joined = [False, *(_is_joined(text, last, match) for last, match in pairwise(matches)), False]
    terms = (match["term"] or _is_part(text, match) for match in matches)
    return any(term and not any(sides) for term, sides in zip(terms, pairwise(joined), strict=True))


def _is_joined(text: str, last: re.Match[str], match: re.Match[str]) -> bool:
    """Whether two successive numbers are joined by an operator, "or" or "between … and"."""
    operator = 0 if _is_negative(text, match) else len(match["sign"] or "")
    between = text[last.end() : match.start() + operator]
    if len(between) - operator > 40:
        return False
    is_range = _AND.fullmatch(between) and _BETWEEN.search(text, max(0, last.start() - 15), last.start())
    return bool(_JOINT.fullmatch(between) or is_range)


def _is_part(text: str, match: re.Match[str]) -> bool:
    """Whether a number is the argument of a root (√4) or next to a variable (x + 4)."""
    start, end = match.span()
    before = _PART_BEFORE.search(text, max(0, start - 20), start + len(match["sign"] or ""))
    return bool(before or _PART_BEHIND.match(text, end))


def plain_number(text: str) -> Fraction | None:
    r"""Parse a string that consists of a single number, or return None.

    >>> plain_number(r"-1\frac{4}{5}"), plain_number("5 apples")
    (Fraction(-9, 5), None)
    """
    text = _spelled(text).strip()
    match = _NUMBER.fullmatch(text)
    value = None if match is None else _value(match)
    return None if value is None else -value if text.startswith("-") else value


def number_with_unit(text: str) -> Fraction | None:
    r"""Parse a string that consists of a single number and an optional unit, or return None.

    >>> number_with_unit("5.4 square inches"), number_with_unit("2 pi"), number_with_unit("1 or 2")
    (Fraction(27, 5), None, None)
    """
    text = _spelled(text).strip()
    match = _NUMBER.match(text)
    if match is None or is_negated(text, *match.span()) or not (unit := _UNIT.fullmatch(text, match.end())):
        return None
    return None if _NO_UNITS.intersection(unit[0].lower().split()) else plain_number(match[0])


def _spelled(text: str) -> str:
    if not re.search("[A-Za-z$=]", text):  # here, an exclamation mark is a factorial
        text = re.sub(r"(?<=\d)!", "^!", text)
    for spelling, plain in _SPELLINGS:
        text = spelling.sub(plain, text)
    return text


def _is_step(match: re.Match[str]) -> bool:
    """Whether a match is a division by zero, or a division with a whole-number result, such as "21/3"."""
    over, under = match["over"], match["under"]
    return bool(under) and (int(under) == 0 or int(over) % int(under) == 0)


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the matched number without its sign, or None if the match is too long or can't be an answer."""
    of = match.groupdict()
    is_plain = not (of["unread"] or of["term"] or _is_step(match) or (of["of"] and not int(of["of"])))
    if len(match[0]) > _MOST_CHARACTERS or not is_plain:
        return None
    if of["mixed"]:
        value = int(of["mixed"]) + Fraction(int(of["part"]), int(of["of"]))
    elif of["over"]:
        value = Fraction(int(of["over"]), int(of["under"]))
    else:
        value = Fraction(of["value"].replace(",", "")) * Fraction(10) ** int(of["power"] or of["e"] or 0)
    return value * _WORDS.get((of["word"] or "").lower(), 1)


def _is_negative(text: str, match: re.Match[str]) -> bool:
    """Whether a minus sign makes the number negative. In "7 - 5", the sign means subtraction."""
    before = text[max(0, match.start() - 2) : match.start()]
    last = (before if match["sign"] == "-" else before.rstrip())[-1:]
    return bool(match["sign"]) and not (last.isalnum() or last in (")", "]", "}"))


def gold_number(text: str, where: str) -> str:
    """Convert a gold number to its canonical form. Text up to the last ``####`` is ignored.

    Raises:
        InputError: If the text is not a number, or if the number has more than 300 digits or misplaced commas.

    >>> gold_number("145.0", "row 1"), gold_number("3 apples of 2 each: #### $1,006.", "row 2")
    ('145', '1006')
    """
    plain = text.rsplit("####", 1)[-1].strip().rstrip(".")
    digits = plain.replace("$", "")
    try:
        value = Decimal(digits.replace(",", ""))
        is_number = value.is_finite() and ("," not in digits or _THOUSANDS.fullmatch(digits.strip()) is not None)
    except InvalidOperation:
        is_number = False
    if not is_number or max(len(value.as_tuple().digits), abs(value.adjusted())) > _MOST_DIGITS:
        raise InputError(
            f"Expected the answer in {where} to be a number with at most {_MOST_DIGITS} digits, because the kind is "
            f"`number`, but got {plain[:40]!r}. Correct or remove the row, or set a different `kind`."
        )
    return str(int(value)) if value == value.to_integral_value() else format(value, "f").rstrip("0")
