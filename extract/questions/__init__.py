"""Question sets: built-in ones by name, others from a file. A new set is one function and one entry in `SETS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from extract.errors import InputError, nearest
from extract.hashing import hash_order
from extract.questions.facts import facts
from extract.questions.files import read_jsonl
from extract.questions.question import Question, check_questions, questions_hash

SETS: dict[str, Callable[[], list[Question]]] = {"facts": facts}


def load_questions(questions: str, n_questions: int | None = None, seed: int = 0) -> list[Question]:
    """Load a question set and take a seeded subset of it.

    Args:
        questions: Name of a built-in set or path of a ``.jsonl`` file.
        n_questions: How many to take; None takes all. The choice depends on `seed` and each id alone.
        seed: Seed of the order and of the subset.

    Returns:
        Questions in a seeded order, so that every block mixes the groups.

    Raises:
        InputError: Unknown set, unreadable file, or fewer questions than asked for.

    >>> few, more = (load_questions("facts", n_questions=n) for n in (2, 3))
    >>> more[:2] == few
    True
    """
    if questions in SETS:
        loaded = list(check_questions(SETS[questions](), f"the set {questions!r}"))
    elif "/" in questions or "." in questions:
        loaded = read_jsonl(Path(questions))
    else:
        raise InputError(
            f"Expected `questions` to be one of {', '.join(SETS)} or a .jsonl file, but got {questions!r}.{nearest(questions, SETS)}"
        )
    if n_questions is not None and not 1 <= n_questions <= len(loaded):
        raise InputError(
            f"Expected `n_questions` to be between 1 and {len(loaded)}, the size of {questions!r}, but got {n_questions}. Ask for fewer, or leave it out for all."
        )
    order = hash_order([question.id for question in loaded], seed)
    return [loaded[i] for i in order[:n_questions]]


__all__ = ["SETS", "Question", "load_questions", "questions_hash"]
