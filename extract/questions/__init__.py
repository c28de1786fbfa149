"""Load question sets by name, from a file, or from the Hugging Face Hub."""

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
    """Load a question set, or a random subset of it.

    Args:
        questions: Name of a set, NAME=PATH for a local copy of a set, path to a ``.jsonl``, ``.json``, ``.csv`` or
            ``.parquet`` file, or a Hugging Face Hub id with an optional ``:CONFIG``.
        n_questions: Number of questions; None for all.
        seed: Seed for the order, the subset and the shuffling of options.
        stratify_by: See `subset`.
        fields: Mapping from question fields to columns (see `by_fields`).
        split: Hub split; None for the default of the set.
        revision: Hub commit; None for the default of the set.

    Returns:
        Questions in a seeded random order. A smaller subset is a prefix of a larger one.

    Raises:
        InputError: If the set is unknown, the file or the Hub can't be read, or there are too few questions.

    >>> few, more = (load_questions("facts", n_questions=n) for n in (2, 3))
    >>> more[:2] == few
    True
    """
    source = find_source(questions, fields, split, revision)
    return subset(source.questions(seed), n_questions, seed, stratify_by, questions)


__all__ = ["SETS", "Question", "load_questions", "questions_hash"]
