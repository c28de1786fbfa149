"""The graders `short`, `exact`, `contains` and `f1`, which compare an answer's words with those of the references.

`exact`, `contains` and `f1` use the normalisation of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250), whose evaluation
script lowers the case and removes punctuation and articles. Here punctuation of every script is removed, not that of
ASCII alone. Of several references, and of aliases among them, the one that suits the answer best counts.
"""

import re
import string
import unicodedata
from collections import Counter

from extract.grading.base import Grade, from_function
from extract.questions.question import Question
from extract.text import contains_answer, normalize

#: From which token F1 an answer is right: that of Farquhar et al. 2024 (Nature 630, their code's metric "squad").
THRESHOLD = 0.5

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NORMALISED = "lower case, without punctuation and without the articles a, an and the"


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return text.strip().split("\n", 1)[0]


def grade_short(question: Question, text: str) -> Grade:
    """Whether the answer says a reference, and the normalised answer (for counting equal answers)."""
    case_sensitive = bool(question.meta.get("case_sensitive"))
    answer = first_line(text)
    right = contains_answer(answer, question.references, case_sensitive, question.meta.get("rivals", ()))
    return Grade(right, normalize(answer, case_sensitive) or None)


def squad_words(text: str) -> str:
    """Normalised words joined by single spaces. Articles stay where nothing else is there ("The The").

    >>> squad_words(" The  Beatles, of course!")
    'beatles of course'
    """

    def is_punctuation(character: str) -> bool:  # Cf: what can't be seen, such as a byte order mark
        return character in string.punctuation or unicodedata.category(character).startswith(("P", "Cf"))

    words = "".join(character for character in text.lower() if not is_punctuation(character))
    return " ".join(_ARTICLE.sub(" ", words).split()) or " ".join(words.split())


def token_f1(answer: str, reference: str) -> float:
    """Harmonic mean of the precision and the recall of an answer's words, both texts normalised.

    >>> token_f1("lima in peru", "lima")
    0.5
    """
    words, expected = answer.split(), reference.split()
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected)) if shared else 0.0


def _grade(right: bool, answer: str) -> Grade:
    return Grade(right, answer if any(map(str.isalnum, answer)) else None)


def grade_exact(question: Question, text: str) -> Grade:
    """Whether the first line equals a reference."""
    answer = squad_words(first_line(text))
    return _grade(bool(answer) and answer in map(squad_words, question.references), answer)


def grade_contains(question: Question, text: str) -> Grade:
    """Whether the answer says a reference anywhere."""
    answer = squad_words(text)
    matches = (f" {squad_words(reference)} " in f" {answer} " for reference in question.references)
    return _grade(bool(answer) and any(matches), answer)


def grade_f1(question: Question, text: str) -> Grade:
    """Whether the first line shares enough words with a reference."""
    answer = squad_words(first_line(text))
    best = max(token_f1(answer, squad_words(reference)) for reference in question.references)
    return _grade(best >= THRESHOLD, answer)


SHORT = from_function(
    "short",
    grade_short,
    "First line only; Unicode NFKC, accents and case folded away (case kept for case-sensitive questions), possessive "
    "s dropped, punctuation to spaces; right when a reference stands in the answer as whole words and none of the "
    "question's rivals before it.",
    kinds=("short", "cloze"),
)
EXACT = from_function("exact", grade_exact, f"First line only; {_NORMALISED}; right when it equals a reference.")
CONTAINS = from_function(
    "contains", grade_contains, f"The whole answer; {_NORMALISED}; right when a reference stands in it as whole words."
)
_F1_RULE = f"First line only; {_NORMALISED}; right when the F1 of its words and a reference's is at least {THRESHOLD}."
F1 = from_function("f1", grade_f1, _F1_RULE)
