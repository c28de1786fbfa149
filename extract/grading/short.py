"""The `short` grader: an answer is right when it says one of the accepted forms as whole words."""

from __future__ import annotations

from extract.grading.base import Grade
from extract.questions.question import Question
from extract.text import contains_answer, normalize

RULE = (
    "First line only; Unicode NFKC, accents and case folded away (case kept for case-sensitive questions), possessive s dropped, "
    "punctuation to spaces; right when a reference stands in the answer as whole words and none of the question's rivals before it."
)


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return text.strip().split("\n", 1)[0]


def grade_short(question: Question, text: str) -> Grade:
    """Whether the answer says a reference, and the normalised answer (for counting equal answers)."""
    case_sensitive = bool(question.meta.get("case_sensitive"))
    answer = first_line(text)
    right = contains_answer(answer, question.references, case_sensitive, question.meta.get("rivals", ()))
    return Grade(right, normalize(answer, case_sensitive) or None)
