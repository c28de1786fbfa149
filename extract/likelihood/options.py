"""Candidate answers to questions (continuations of the prompt), and scores based on their log-probabilities."""

from collections.abc import Callable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from extract.errors import InputError
from extract.questions.question import Question

#: The continuations of a `choice` question: the letters or the texts of its options.
Continuations = Literal["letters", "texts"]
Values = NDArray[np.float64]


class Normalisation(NamedTuple):
    """Method that computes the score of a continuation from its log-probability.

    Attributes:
        label: Name in tables.
        metric: Corresponding accuracy metric of lm-evaluation-harness, or "".
        score: Function that maps a row of the `likelihood` table to float64 scores [continuation].
    """

    label: str
    metric: str
    score: Callable[[Mapping[str, Any]], Values]


def _per(length: Callable[[Mapping[str, Any]], Sequence[int]]) -> Callable[[Mapping[str, Any]], Values]:
    return lambda row: np.divide(row["logprobs"], length(row))


#: Lengths exclude the space before a continuation, as in lm-evaluation-harness.
NORMALISATIONS = {
    "sum": Normalisation("whole continuation", "acc", lambda row: np.array(row["logprobs"])),
    "token": Normalisation("per token", "", _per(lambda row: row["n_tokens"])),
    "character": Normalisation("per character", "acc_norm", _per(lambda row: [*map(len, row["continuations"])])),
    "byte": Normalisation("per byte", "acc_bytes", _per(lambda row: row["n_bytes"])),
    "pmi": Normalisation(
        "relative to unconditional", "acc_mutual_info", lambda row: np.subtract(row["logprobs"], row["unconditional"])
    ),
}


def continuations_of(question: Question, form: Continuations) -> tuple[list[str], int | None]:
    """Return a question's continuations, and the index of the right one (None if unknown).

    The continuations are the question's `choices`. A question without `choices` has a single continuation, its first
    reference. For kind `choice`, `form` selects the letters or the texts of the choices. Raises an `InputError` if the
    question has neither choices nor references.

    >>> question = Question("1", "mine", "Which is odd?", references=("B", "3"), kind="choice", choices=("2", "3"))
    >>> continuations_of(question, "letters"), continuations_of(question, "texts")
    ((['A', 'B'], 1), (['2', '3'], 1))
    """
    choices, letters = list(question.choices), list(ascii_uppercase[: len(question.choices)])
    if not (choices or question.references):
        raise InputError(
            f"Expected every question to have `choices` or references, but question {question.id!r} has neither. "
            "Make a store whose questions have `choices` or references."
        )
    if not choices:
        return [question.references[0]], 0
    if question.kind == "choice":
        target = letters.index(question.references[0]) if question.references else None
        return letters if form == "letters" else choices, target
    return choices, next((i for i, choice in enumerate(choices) if choice in question.references), None)


def probability(logprobs: Sequence[float]) -> float | None:
    """Return the most likely continuation's share of the total probability of all continuations.

    The result is None for a single continuation.

    >>> round(probability([-1.0, -2.0]), 4), probability([-1.0])
    (0.7311, None)
    """
    return float(softmax(logprobs).max()) if len(logprobs) > 1 else None


def right(rows: Sequence[Mapping[str, Any]], normalisation: str) -> Values:
    """For each question, return 1 if the highest-scoring continuation is right, and 0 if it is wrong.

    The shape of the result is [question], and its dtype is float64. A value is NaN if the right continuation is
    unknown, or if there is only one continuation.
    """
    score = NORMALISATIONS[normalisation].score
    graded = [len(row["continuations"]) > 1 and row["target"] is not None for row in rows]
    hits = (score(row).argmax() == row["target"] if known else np.nan for row, known in zip(rows, graded, strict=True))
    return np.array([*hits], dtype=np.float64)
