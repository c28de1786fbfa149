"""Which of the questions are asked, and in which order: by a hash of seed and id alone."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from extract.errors import InputError, nearest
from extract.hashing import hash_order
from extract.questions.question import Question

_OWN = ("group", "kind", "dataset")


def subset(
    questions: Sequence[Question], n_questions: int | None, seed: int, stratify_by: str | None, name: str
) -> list[Question]:
    """Some of the questions in a seeded order, so that every block mixes the groups.

    Stratified, they come in rounds: each round has the next question of every stratum that has one left. So the first n
    give every stratum the same share as far as it has questions, and the first n are among the first n + 1.

    Args:
        questions: The questions.
        n_questions: How many to take; None takes all.
        seed: Seed of the order.
        stratify_by: `group`, `kind`, `dataset` or a key of `meta`; None takes each question alike.
        name: What the questions are called, for messages.

    Raises:
        InputError: Fewer questions than asked for, or none has a value of `stratify_by`.
    """
    if n_questions is not None and not 1 <= n_questions <= len(questions):
        raise InputError(
            f"Expected `n_questions` to be between 1 and {len(questions)}, the size of {name!r}, but got "
            f"{n_questions}. Ask for fewer, or leave it out for all."
        )
    ordered = [questions[i] for i in hash_order([question.id for question in questions], seed)]
    if stratify_by is not None:
        values = [str(getattr(q, stratify_by) if stratify_by in _OWN else q.meta.get(stratify_by, "")) for q in ordered]
        if not any(values):
            known = [name for name in _OWN if any(getattr(question, name) for question in ordered)]
            known += dict.fromkeys(key for question in ordered for key in question.meta)
            raise InputError(
                f"Expected `stratify_by` to be a field that the questions have a value of, {', '.join(known)}, but got "
                f"{stratify_by!r}.{nearest(stratify_by, known)}"
            )
        next_round: defaultdict[str, count[int]] = defaultdict(count)
        rounds = [next(next_round[value]) for value in values]
        ordered = [ordered[i] for i in sorted(range(len(ordered)), key=rounds.__getitem__)]  # stable
    return ordered[:n_questions]
