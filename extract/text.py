"""Text helpers for messages and graders."""

import re
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence

#: A decimal or negative number, or a run of letters and digits.
_WORD = re.compile(r"(?<![\w.])-?\d+\.\d+(?!\w)|(?<!\w)-\d+(?!\w)|[^\W_]+")
#: Words between a negation and the negated value: "I don't think that the answer is 5".
FILLERS = (
    r"(?:\s+(?:be|(?:think|believe|say)(?=\s+(?:that|it|this|the)\b|\s*$)|that|it|it's|this|is|was|the|(?-i:an?)"
    r"|equal|to|\w+ly|(?:correct|right|best)(?!\s*:|\s+(?:is|are)\b)|answers?|results?|options?|choices?|letter))*"
)
#: Brackets, quotes and markup around a value.
OPENING = r"(?:[\s\"'“(\[*$]|\\[(\[]|\\f?box(?:ed)?\s*\{)*"
_CLOSING = r"(?:[\"'”)\]}*$]|\\[)\]])*"
_NEGATED_BEFORE = re.compile(
    r"(?:\b(?:not|cannot|neither|nor|never|unlike|unlikely|rather than|instead of)|n['’]t)"
    rf"{FILLERS}{OPENING}$|(?:≠|(?<=\s)!=|\\neq?)[\s${{]*$",
    re.IGNORECASE,
)
_GAP = r"(?:(?:\s|\\text\s*\{)+|(?<=\d))"
_NOT = r"(?:(?:is|was|does|did|could|would|should|must|may|might)(?:\s+not|n['’]t)|cannot|can['’]t|can not|won['’]t)"
_NEGATED_BEHIND = re.compile(
    rf"{_CLOSING}(?:,?{_GAP}[a-z]{{2,20}}{_CLOSING})?{_GAP}"  # a unit, "which" or "that"
    r"(?:(?:is|was|seems|looks|(?:would|must|has to)\s+be)\s+(?:\w+ly\s+)?(?:wrong|incorrect|false|impossible|unlikely)"
    rf"|{_NOT}(?:\s+(?:be|the|an?|my|\w+ly|correct|right|final|best))*"
    r"(?:\s+(?:answer|solution|result|correct|right|true|possible|valid|it|work|fit)\b|\s*(?:[.,;!]|$)))"
    rf"|{_CLOSING}\s*(?:\?\s*no\b(?! (?:doubt|question))|[:–—(-]\s*(?:wrong|incorrect)\b"
    r"|≠|(?<=\s)!=|\\neq?(?![A-Za-z]))",
    re.IGNORECASE,
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def one_line(text: object, longest: int | None = None, keep_end: bool = False) -> str:
    r"""Convert a string or an error to one line with only printable characters and single spaces.

    `longest` is the maximum length in characters. With `keep_end`, a longer string is shortened in the middle.

    >>> one_line("a\tb\n\nc"), one_line("abcdefghi", 6), one_line("The answer, after all, is 7.", 16, keep_end=True)
    ('a b c', 'abcde…', 'The answ … is 7.')
    """
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    if longest is None or len(line) <= longest:
        return line
    end = longest // 3 if keep_end else 0
    return f"{line[: longest - end - 3]} … {line[-end:]}" if keep_end else f"{line[: longest - 1]}…"


def shown(value: object) -> str:
    """Return the ``repr`` of a value on one line. Large values are shortened.

    >>> shown({"numbers": list(range(10_000))})
    "{'numbers': [0, 1, 2, 3, 4, 5, ...]}"
    """
    return _SHORT.repr(value)


def valid_text(text: str) -> str:
    """Replace unpaired surrogates, which can't be written to a file, with U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def normalize(text: str, case_sensitive: bool = False) -> str:
    """Return a string without accents or punctuation, in lower case unless `case_sensitive` is true.

    >>> normalize("It's São Paulo, in the U.S. of -3.5!")
    'it sao paulo in the us of -3.5'
    """
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text))
    text = "".join(character for character in text if not unicodedata.combining(character))
    text = re.sub(r"[’'`´](s\b)?", "", text)
    text = re.sub(r"(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)", "", text)  # D.C. and U.S. are one word each
    text = " ".join(_WORD.findall(text))
    return text if case_sensitive else text.lower()


def is_negated(text: str, start: int, end: int) -> bool:
    """Whether `text` negates the value ``text[start:end]``, as in "it can't be 4" or "4 is wrong".

    A negation follows the value directly, or precedes it by at most 80 characters. "4 are wrong" describes a count and
    is not a negation.

    >>> [is_negated(text, at := text.index("4"), at + 1) for text in ("It can't be 4.", "4 is wrong", "4, not 5")]
    [True, True, False]
    """
    return bool(_NEGATED_BEFORE.search(text, max(0, start - 80), start) or _NEGATED_BEHIND.match(text, end))


def contains_answer(
    text: str, references: Iterable[str], case_sensitive: bool = False, rivals: Iterable[str] = ()
) -> bool:
    """Whether `text` contains a reference as whole words, with no rival before it.

    All strings are normalised. `rivals` are wrong answers to the same question ("Asia" for "Africa"). They can also be
    longer phrases that contain a reference but mean something else ("South Africa").

    >>> contains_answer("That would be Lima.", ["lima"])
    True
    >>> contains_answer("Limassol", ["Lima"])
    False
    >>> contains_answer("Asia, not Africa", ["Africa"], rivals=["Asia"])
    False
    """
    padded = f" {normalize(text, case_sensitive)} "

    def first(phrases: Iterable[str]) -> int:
        places = [padded.find(f" {normalize(phrase, case_sensitive)} ") for phrase in phrases]
        return min((place for place in places if place >= 0), default=len(padded))

    return first(references) < first(rivals)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as a text table. Only the first column is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("   ".join(cells).rstrip())
    return lines
