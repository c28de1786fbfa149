"""Texts: on one line for messages, and compared by their words for graders and question sets."""

import re
import reprlib
import unicodedata
from collections.abc import Iterable

#: A number with a decimal point or a sign, else a run of letters and digits.
_WORD = re.compile(r"(?<![\w.])-?\d+\.\d+(?!\w)|(?<!\w)-\d+(?!\w)|[^\W_]+")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def one_line(text: object, longest: int | None = None, keep_end: bool = False) -> str:
    r"""A text, or what an error says, on one line: printable characters and single spaces.

    Args:
        text: The text; anything else is converted by ``str``.
        longest: Most characters of the line; None shortens nothing.
        keep_end: Whether a text that is too long loses its middle, and not its end.

    >>> one_line("a\tb\n\nc"), one_line("abcdefghi", 6), one_line("The answer, after all, is 7.", 16, keep_end=True)
    ('a b c', 'abcde…', 'The answ … is 7.')
    """
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    if longest is None or len(line) <= longest:
        return line
    end = longest // 3 if keep_end else 0
    return f"{line[: longest - end - 3]} … {line[-end:]}" if keep_end else f"{line[: longest - 1]}…"


def shown(value: object) -> str:
    """The ``repr`` of a value for a message: on one line, and short however large the value is.

    >>> shown({"numbers": list(range(10_000))})
    "{'numbers': [0, 1, 2, 3, 4, 5, ...]}"
    """
    return _SHORT.repr(value)


def normalize(text: str, case_sensitive: bool = False) -> str:
    """Words of `text` separated by single spaces: no accents, no punctuation, lower case unless `case_sensitive`.

    >>> normalize("It's São Paulo, in the U.S. of -3.5!")
    'it sao paulo in the us of -3.5'
    """
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text))
    text = "".join(character for character in text if not unicodedata.combining(character))
    text = re.sub(r"[’'`´](s\b)?", "", text)
    text = re.sub(r"(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)", "", text)  # D.C. and U.S. are one word
    text = " ".join(_WORD.findall(text))
    return text if case_sensitive else text.lower()


def contains_answer(
    text: str, references: Iterable[str], case_sensitive: bool = False, rivals: Iterable[str] = ()
) -> bool:
    """Whether `text` says any reference as whole words, after `normalize`, and no rival before it.

    Args:
        text: What is searched.
        references: What counts.
        case_sensitive: Whether case must agree.
        rivals: Other answers to the same question ("Asia" beside "Africa"), and longer phrases that hold a reference
            and mean something else ("South Africa"). The first that is said decides.

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
