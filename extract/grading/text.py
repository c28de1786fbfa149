"""The `short`, `exact`, `contains` and `f1` graders, which compare the words of an answer with the references.

`exact`, `contains` and `f1` normalise text as SQuAD does (Rajpurkar et al. 2016, arXiv 1606.05250), but also remove
non-ASCII punctuation. An answer is right if it matches any of the references.
"""

import operator
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

from extract.grading.base import Grade, Grader, from_function
from extract.questions.question import Question
from extract.text import contains_answer, normalize

#: Minimum token F1 of a right answer, as in the code of Farquhar et al. 2024 (Nature 630; metric "squad").
THRESHOLD = 0.5

#: Words such as "I" that begin a sentence ("I think"). Elsewhere, these words can be symbols.
_SENTENCE_WORD = re.compile(
    r"(?<![\w'’])(?:A|Am|As|At|Be|He|I|In|No)(?=\s+(?!(?:is|stands|represents|means|for|because|and|or)\b)[a-z])"
)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NORMALISED = "lower case, without punctuation and without the articles a, an and the"


def first_line(text: str) -> str:
    """Return the first line that is not blank."""
    return text.strip().split("\n", 1)[0]


def _grade_short(question: Question, text: str) -> Grade:
    """Grade by whole-word matches with the references. The parsed answer is the normalised first line."""
    case_sensitive = bool(question.meta.get("case_sensitive"))
    answer = compared = first_line(text)
    if case_sensitive:
        compared = _SENTENCE_WORD.sub(lambda match: "" if match[0] in question.references else match[0], answer)
    right = contains_answer(compared, question.references, case_sensitive, question.meta.get("rivals", ()))
    return Grade(right, normalize(answer, case_sensitive) or None)


def _squad_words(text: str) -> str:
    """Reduce a string to words. Articles are removed unless there are no other words."""
    punctuation = ("P", "Cf")  # Cf: invisible characters
    kept = (c for c in text.lower() if not (c in string.punctuation or unicodedata.category(c).startswith(punctuation)))
    words = "".join(kept)
    return " ".join(_ARTICLE.sub(" ", words).split()) or " ".join(words.split())


def token_f1(answer: str, reference: str) -> float:
    """Compute the harmonic mean of word precision and word recall of two normalised strings.

    >>> token_f1("lima in peru", "lima")
    0.5
    """
    words, expected = answer.split(), reference.split()
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected)) if shared else 0.0


def _by_words(name: str, is_right: Callable[[str, str], bool], rule: str, read: Callable[[str], str] = str) -> Grader:
    """Build a grader that compares an answer with each reference, word by word.

    The function `read` extracts the part of the answer to compare. By default, this is the whole answer.
    """

    def grade(question: Question, text: str) -> Grade:
        answer = _squad_words(read(text))
        right = bool(answer) and any(is_right(answer, _squad_words(reference)) for reference in question.references)
        return Grade(right, answer if any(map(str.isalnum, answer)) else None)

    return from_function(name, grade, rule)


SHORT = from_function(
    "short",
    _grade_short,
    "The first line is right if it contains a reference as whole words and no rival of the question precedes it. "
    "Unicode compatibility variants, accents, punctuation and the possessive s are ignored, and so is case unless the "
    "question is case-sensitive. In case-sensitive questions, the references A, Am, As, At, Be, He, I, In and No don't "
    "count if a lower-case word follows, as in 'I think', unless it is is, stands, represents, means, for, because, "
    "and, or.",
    kinds=("short", "cloze"),
)
EXACT = _by_words(
    "exact", operator.eq, f"First line only; {_NORMALISED}; right when it equals a reference.", first_line
)
CONTAINS = _by_words(
    "contains",
    lambda answer, reference: f" {reference} " in f" {answer} ",
    f"The whole answer; {_NORMALISED}; right when a reference stands in it as whole words.",
)
F1 = _by_words(
    "f1",
    lambda answer, reference: token_f1(answer, reference) >= THRESHOLD,
    f"First line only; {_NORMALISED}; right when the F1 of its words and a reference's is at least {THRESHOLD}.",
    first_line,
)
