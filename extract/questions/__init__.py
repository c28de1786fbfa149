"""Question sets by name, by file, or by their id on the Hugging Face Hub. A new set is one entry in `SETS`."""

from collections.abc import Mapping
from typing import Any

from extract.questions.question import Question, questions_hash
from extract.questions.sets import SETS
from extract.questions.source import find_source
from extract.questions.subset import subset


def load_questions(
    questions: str,
    n_questions: int | None = None,
    seed: int = 0,
    stratify_by: str | None = None,
    fields: Mapping[str, Any] | None = None,
    split: str | None = None,
    revision: str | None = None,
) -> list[Question]:
    """Load a question set and take a seeded subset of it.

    Args:
        questions: Name of a set, NAME=PATH for a set's own file, path of a ``.jsonl``, ``.json``, ``.csv`` or
            ``.parquet`` file, or an id on the Hugging Face Hub with an optional ``:CONFIG``.
        n_questions: How many to take; None takes all. The choice depends on `seed` and each id alone.
        seed: Seed of the order, of the subset and of shuffled options.
        stratify_by: Field whose values get equal shares of n_questions, see `subset`.
        fields: Which columns make up a question, see `by_fields`; None for those of the set, or for our own form.
        split: Split of a Hub set; None takes the set's own.
        revision: Commit of a Hub set; None takes the set's own.

    Returns:
        Questions in a seeded order, so that every block mixes the groups.

    Raises:
        InputError: Unknown set, unreadable file, unreachable Hub, or fewer questions than asked for.

    >>> few, more = (load_questions("facts", n_questions=n) for n in (2, 3))
    >>> more[:2] == few
    True
    """
    source = find_source(questions, fields, split, revision)
    return subset(source.questions(seed), n_questions, seed, stratify_by, questions)


__all__ = ["SETS", "Question", "load_questions", "questions_hash"]
