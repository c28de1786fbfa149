"""A store's grades as counts of right answers per question."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from extract.errors import InputError
from extract.store.store import Store


@dataclass(frozen=True)
class AnswerTable:
    """One entry an answer, in the order of the store's samples, which is that of a signal of sample scope.

    The token that ended an answer (the end token, or the one that completed a stop text) has no say in the likelihoods; of
    a served model all tokens have, because it is unknown whether that one is among them.

    Attributes:
        question: [row] row of its question in the question table.
        sample: [row] index j of the sample.
        right: [row] 1 where the answer is right.
        known: [row] 1 where it is graded right or wrong.
        answer: What the grader took for the answer; None where it found none.
        n_tokens: [row] tokens that were drawn, the ending one included; NaN where a server did not tell.
        truncated: [row] whether the limit of tokens cut it, which goes with being wrong.
        mean_nll: [row] mean negative log-probability of its tokens, in nats; NaN for an answer without tokens, or
            where a server told none.
        max_nll: [row] the largest one.
    """

    question: NDArray[np.int64]
    sample: NDArray[np.int64]
    right: NDArray[np.int64]
    known: NDArray[np.int64]
    answer: list[str | None]
    n_tokens: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    mean_nll: NDArray[np.float64]
    max_nll: NDArray[np.float64]

    @property
    def held(self) -> NDArray[np.bool_]:
        """[row] whether an answer belongs to the held-out half, on which what the other half says is scored."""
        return self.sample % 2 == 1


@dataclass(frozen=True)
class Asked:
    """What a model said of itself when it was asked about each question, or about each answer.

    Attributes:
        value: [row] a number in [0, 1]; NaN where what it said has none.
        read: [row] tokens that were read for it.
        written: [row] tokens that were written for it.
    """

    value: NDArray[np.float64]
    read: NDArray[np.int64]
    written: NDArray[np.int64]


@dataclass(frozen=True)
class QuestionTable:
    """One entry a question, in the store's order; unknown grades are left out of every count of right answers.

    The consistency half of a question's samples (even j) makes the consistency confidence, the held-out half (odd j)
    is what that confidence and whatever it is compared with are scored on.

    Attributes:
        ids: Question ids.
        groups: Groups of the questions.
        texts: What was asked, for people; nothing of private questions.
        prompt_tokens: [question] prompt length in tokens; NaN where a server did not tell.
        right: [question] right answers.
        known: [question] answers graded right or wrong.
        unknown: [question] answers that the grader could not decide.
        held_right: [question] right answers among the held-out half.
        held_known: [question] known answers among the held-out half.
        held_unknown: [question] unknown answers among the held-out half.
        consistency: [question] share of the most frequent answer in the consistency half; NaN without an answer.
        grader: Whose grades these are.
        answers: Every answer of these questions.
        asked: What the model was asked about each question, by the baseline's name.
    """

    ids: list[str]
    groups: list[str]
    texts: list[str]
    prompt_tokens: NDArray[np.float64]
    right: NDArray[np.int64]
    known: NDArray[np.int64]
    unknown: NDArray[np.int64]
    held_right: NDArray[np.int64]
    held_known: NDArray[np.int64]
    held_unknown: NDArray[np.int64]
    consistency: NDArray[np.float64]
    grader: str
    answers: AnswerTable
    asked: dict[str, Asked]

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
    name = store.grades.choose(grader)
    if store.grades.missing(name):
        raise InputError(
            f"Expected every sample of {str(store.path)!r} to be graded by {name!r}, but some are not. Run `python -m extract grade --store {store.path} --grader {name}`."
        )
    if set(store.grades.ranges(name)) - set(store.samples.ranges()):
        raise InputError(
            f"Expected every grade of {str(store.path)!r} to have its sample, but some samples are gone. Run `python -m extract sample` with the settings of the store again."
        )
    row_of = {question.id: row for row, question in enumerate(store.questions)}
    samples, grades = store.samples.read(), store.grades.read(name)
    answers = _answers(samples, grades, row_of, store.served)
    half = _count(answers, len(row_of), answers.held)
    every = _count(answers, len(row_of), np.ones(len(answers.question), dtype=bool))
    prompt_tokens = np.zeros(len(row_of))
    prompt_tokens[answers.question] = _counts(samples["prompt_tokens"])
    given: list[list[str | None]] = [[] for _ in row_of]
    for row in np.flatnonzero(~answers.held):
        given[answers.question[row]].append(answers.answer[row])
    return QuestionTable(
        ids=list(row_of),
        groups=[question.group for question in store.questions],
        texts=[question.public_prompt for question in store.questions],
        prompt_tokens=prompt_tokens,
        right=every[0],
        known=every[1],
        unknown=every[2],
        held_right=half[0],
        held_known=half[1],
        held_unknown=half[2],
        consistency=np.array([modal_share(one) for one in given]),
        grader=name,
        answers=answers,
        asked={
            baseline: _asked(store.asked.read(baseline), row_of)
            for baseline in store.asked.names("question")
            if not store.asked.missing(baseline)  # else it is still being asked
        },
    )


def _answers(samples: pa.Table, grades: pa.Table, row_of: dict[str, int], served: bool) -> AnswerTable:
    """Samples and grades joined, in the order of the samples."""
    question, sample = _keys(samples, row_of)
    order, order_of_grades = np.lexsort((sample, question)), np.lexsort(_keys(grades, row_of)[::-1])
    grade_of = np.empty(len(order), dtype=np.int64)
    grade_of[order] = order_of_grades
    right = grades["right"].take(grade_of).to_pylist()
    reasons = samples["finish_reason"].to_pylist()
    drawn = [
        np.array([] if logprobs is None else logprobs[: len(logprobs) - (reason == "stop" and not served)])
        for logprobs, reason in zip(samples["logprobs"].to_pylist(), reasons, strict=True)
    ]
    return AnswerTable(
        question=question,
        sample=sample,
        right=np.array([one is True for one in right], dtype=np.int64),
        known=np.array([one is not None for one in right], dtype=np.int64),
        answer=grades["answer"].take(grade_of).to_pylist(),
        n_tokens=_counts(samples["n_tokens"]),
        truncated=np.array([reason == "length" for reason in reasons], dtype=bool),
        mean_nll=np.array([-one.mean() if len(one) else np.nan for one in drawn]),
        max_nll=np.array([-one.min() if len(one) else np.nan for one in drawn]),
    )


def _counts(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """[row] whole numbers as float64, null as NaN."""
    return np.array(column.to_pylist(), dtype=np.float64)


def _keys(table: pa.Table, row_of: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Question row and index of each sample, [row] each."""
    question = np.array([row_of[one] for one in table["question_id"].to_pylist()], dtype=np.int64)
    return question, table["sample"].to_numpy().astype(np.int64)


def _count(answers: AnswerTable, n_questions: int, counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Right, known and unknown answers of each question among those that are counted, [3, question]."""
    kinds = np.stack([answers.right, answers.known, 1 - answers.known]) * counted
    return np.stack([np.bincount(answers.question, kind, n_questions) for kind in kinds]).astype(np.int64)


def _asked(table: pa.Table, row_of: dict[str, int]) -> Asked:
    rows = np.array([row_of[one] for one in table["question_id"].to_pylist()], dtype=np.int64)
    return _scattered(table, rows, len(row_of))


def asked_of_answers(table: QuestionTable, asked: pa.Table) -> Asked:
    """What a model was asked about each answer, [answer] in the order of `table.answers`."""
    row_of = {question: row for row, question in enumerate(table.ids)}
    n_samples = int(table.answers.sample.max()) + 1
    place = np.full((len(table.ids), n_samples), -1)
    place[table.answers.question, table.answers.sample] = np.arange(len(table.answers.question))
    return _scattered(asked, place[_keys(asked, row_of)], len(table.answers.question))


def _scattered(table: pa.Table, rows: NDArray[np.int64], n_rows: int) -> Asked:
    """The columns of an asked table as arrays; NaN and no tokens for rows that it lacks."""
    asked = Asked(np.full(n_rows, np.nan), *np.zeros((2, n_rows), dtype=np.int64))
    asked.value[rows] = np.array(table["value"].to_pylist(), dtype=np.float64)  # null is NaN
    asked.read[rows], asked.written[rows] = table["prompt_tokens"].to_numpy(), table["completion_tokens"].to_numpy()
    return asked


def modal_share(answers: list[str | None]) -> float:
    """Share of the most frequent answer; those that could not be read are each a class of their own. NaN without answers."""
    if not answers:
        return float("nan")
    counted = Counter(answer for answer in answers if answer)
    return max(1, *counted.values()) / len(answers) if counted else 1 / len(answers)
