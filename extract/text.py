"""Comparing texts by their words: the normalisation that the `short` grader and the question sets share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

#: A number with a decimal point or a sign, else a run of letters and digits.
_WORD = re.compile(r"(?<![\w.])-?\d+\.\d+(?!\w)|(?<!\w)-\d+(?!\w)|[^\W_]+")


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
