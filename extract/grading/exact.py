"""The graders `exact`, `contains` and `f1`, by the normalisation of SQuAD.

Rajpurkar et al. 2016 (arXiv 1606.05250), whose evaluation script lowers the case, takes punctuation and articles away and
joins what is left by single spaces. Here punctuation of every script is taken away, not that of ASCII alone. Of several
references, and of aliases among them, the one that suits the answer best counts.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter

from extract.grading.base import Grade
from extract.grading.short import first_line
from extract.questions.question import Question

_NORMALISED = "lower case, without punctuation and without the articles a, an and the"
EXACT_RULE = f"First line only; {_NORMALISED}; right when it equals a reference."
CONTAINS_RULE = f"The whole answer; {_NORMALISED}; right when a reference stands in it as whole words."
F1_RULE = f"First line only; {_NORMALISED}; right when the F1 of its words and a reference's is at least 0.5."
#: From which token F1 an answer counts as right: that of Farquhar et al. 2024 (Nature 630, their code's metric "squad").
THRESHOLD = 0.5

_ARTICLE = re.compile(r"\b(a|an|the)\b")


def squad_words(text: str) -> str:
    """Normalised words joined by single spaces. Articles stay where nothing else is there ("The The").

    >>> squad_words(" The  Beatles, of course!")
    'beatles of course'
    """
    kept = "".join(one for one in text.lower() if not _is_punctuation(one))
    return " ".join(_ARTICLE.sub(" ", kept).split()) or " ".join(kept.split())


def _is_punctuation(character: str) -> bool:
    """Also what can't be seen, such as a mark of byte order."""
    return (
        character in string.punctuation
        or unicodedata.category(character)[0] == "P"
        or unicodedata.category(character) == "Cf"
    )


def token_f1(answer: str, reference: str) -> float:
    """Harmonic mean of the precision and the recall of an answer's words, both texts normalised.

    >>> token_f1("lima in peru", "lima")
    0.5
    """
    words, expected = answer.split(), reference.split()
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected)) if shared else 0.0


def _said(answer: str) -> str | None:
    return answer if any(map(str.isalnum, answer)) else None


def grade_exact(question: Question, text: str) -> Grade:
    """Whether the first line equals a reference."""
    answer = squad_words(first_line(text))
    return Grade(bool(answer) and answer in map(squad_words, question.references), _said(answer))


def grade_contains(question: Question, text: str) -> Grade:
    """Whether the answer says a reference anywhere."""
    answer = squad_words(text)
    said = (f" {squad_words(reference)} " in f" {answer} " for reference in question.references)
    return Grade(bool(answer) and any(said), _said(answer))


def grade_f1(question: Question, text: str) -> Grade:
    """Whether the first line shares enough words with a reference."""
    answer = squad_words(first_line(text))
    best = max(token_f1(answer, squad_words(reference)) for reference in question.references)
    return Grade(best >= THRESHOLD, _said(answer))
