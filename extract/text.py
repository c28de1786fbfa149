"""Comparing texts by their words: the normalisation that the `short` grader and the question sets share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable


def normalize(text: str, case_sensitive: bool = False) -> str:
    """Words of `text` separated by single spaces: no accents, no punctuation, lower case unless `case_sensitive`."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text))
    text = "".join(character for character in text if not unicodedata.combining(character))
    text = re.sub(r"[’'`´]", "", text)
    text = re.sub(r"(?<=\b\w)\.(?=\w\b)", "", text)  # D.C. and U.S. are one word
    text = " ".join(re.findall(r"[^\W_]+", text))
    return text if case_sensitive else text.lower()


def contains_answer(text: str, references: Iterable[str], case_sensitive: bool = False) -> bool:
    """Whether any reference stands in `text` as whole words, after `normalize`."""
    padded = f" {normalize(text, case_sensitive)} "
    return any(f" {normalize(reference, case_sensitive)} " in padded for reference in references)
