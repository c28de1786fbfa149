"""A store's grades as counts of right answers per question."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extract.errors import InputError
from extract.inspection import choose_grader
from extract.store import Store


@dataclass(frozen=True)
class QuestionTable:
    """One entry a question, in the store's order; unknown grades are left out of every count of right answers.

    The consistency half of a question's samples (even j) makes the consistency confidence, the held-out half (odd j)
    is what that confidence and whatever it is compared with are scored on.

    Attributes:
        ids: Question ids.
        groups: Groups of the questions.
        texts: What was asked, for people.
        prompt_tokens: [question] prompt length in tokens.
        right: [question] right answers.
        known: [question] answers graded right or wrong.
        unknown: [question] answers that the grader could not decide.
        held_right: [question] right answers among the held-out half.
        held_known: [question] known answers among the held-out half.
        held_unknown: [question] unknown answers among the held-out half.
        consistency: [question] share of the most frequent answer in the consistency half; NaN without an answer.
        grader: Whose grades these are.
    """

    ids: list[str]
    groups: list[str]
    texts: list[str]
    prompt_tokens: NDArray[np.int64]
    right: NDArray[np.int64]
    known: NDArray[np.int64]
    unknown: NDArray[np.int64]
    held_right: NDArray[np.int64]
    held_known: NDArray[np.int64]
    held_unknown: NDArray[np.int64]
    consistency: NDArray[np.float64]
    grader: str

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """[question] expected accuracy p̂ = right / known; NaN where nothing is known."""
        with np.errstate(invalid="ignore"):
            return self.right / self.known


def load_table(store: Store, grader: str | None = None) -> QuestionTable:
    """Count a store's grades.

    Raises:
        InputError: No grades, or several graders and none named, samples without a grade, or a file that is damaged.
    """
    name = choose_grader(store, grader)
    if store.ungraded_parts(name):
        raise InputError(
            f"Expected every sample of {str(store.path)!r} to be graded by {name!r}, but some are not. Run `python -m extract grade --store {store.path} --grader {name}`."
        )
    if set(store.graded_parts(name)) - set(store.parts()):
        raise InputError(
            f"Expected every grade of {str(store.path)!r} to have its sample, but some samples are gone. Run `python -m extract sample` with the settings of the store again."
        )
    row_of = {question.id: row for row, question in enumerate(store.questions)}
    counts = np.zeros((6, len(row_of)), dtype=np.int64)  # right, known, unknown, and the same of the held-out half
    answers: list[list[str]] = [[] for _ in row_of]
    for grade in store.grades(name).to_pylist():
        row, right, held = row_of[grade["question_id"]], grade["right"], grade["sample"] % 2 == 1
        kinds = [right is True, right is not None, right is None]
        counts[:, row] += [*kinds, *(held and kind for kind in kinds)]
        if not held:
            answers[row].append(grade["answer"])
    prompt_tokens = np.zeros(len(row_of), dtype=np.int64)
    for sample in store.samples().select(["question_id", "prompt_tokens"]).to_pylist():
        prompt_tokens[row_of[sample["question_id"]]] = sample["prompt_tokens"]
    return QuestionTable(
        ids=list(row_of),
        groups=[question.group for question in store.questions],
        texts=[question.text or str(question.messages[-1]["content"]) for question in store.questions],
        prompt_tokens=prompt_tokens,
        right=counts[0],
        known=counts[1],
        unknown=counts[2],
        held_right=counts[3],
        held_known=counts[4],
        held_unknown=counts[5],
        consistency=np.array([modal_share(given) for given in answers]),
        grader=name,
    )


def modal_share(answers: list[str]) -> float:
    """Share of the most frequent answer; empty ones are each a class of their own. NaN without answers."""
    if not answers:
        return float("nan")
    counted = Counter(answer for answer in answers if answer)
    return max(1, *counted.values()) / len(answers) if counted else 1 / len(answers)
