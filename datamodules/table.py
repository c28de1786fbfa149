"""Tables of a store's questions and answers, with grades, likelihoods and model-based baselines."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.semantic import clusters_of
from datamodules.splits import split_questions
from extract.errors import InputError
from extract.store.samples import WITHOUT_ANSWER
from extract.store.shards import SampleRange
from extract.store.store import Store


@dataclass(frozen=True)
class AnswerTable:
    """Table with one row per answer, in the order of `store.samples`.

    Log-probabilities exclude the end-of-sequence token. All arrays have shape [row]. Texts are read from the
    store on first use.

    Attributes:
        question: Index of the answer's question in the question table.
        sample: Sample index j of the answer.
        right: 1 if the answer is right, else 0.
        known: 1 if the answer's grade is known, else 0.
        answer_class: Class of the normalised answer, comparable only within a question; 0 if the grader found no answer
            or an empty answer.
        n_tokens: Number of generated tokens, including the end-of-sequence token; NaN if unknown.
        truncated: Whether the answer was truncated at the token limit.
        mean_nll: Mean negative log-probability of the tokens in nats; NaN without tokens or log-probabilities.
        max_nll: Largest negative log-probability of a token in nats; NaN in the same cases as `mean_nll`.
        sequence_nll: Sum of the negative log-probabilities in nats; NaN in the same cases as `mean_nll`.
        rejected: Whether the answer is missing because a server rejected the question or an imported log lacks the
            answer.
        ranges: Ranges of samples that the table contains, in row order.
    """

    question: NDArray[np.int64]
    sample: NDArray[np.int32]
    right: NDArray[np.int32]
    known: NDArray[np.int32]
    answer_class: NDArray[np.int32]
    n_tokens: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    mean_nll: NDArray[np.float64]
    max_nll: NDArray[np.float64]
    sequence_nll: NDArray[np.float64]
    rejected: NDArray[np.bool_]
    store: Store
    grader: str
    ranges: list[SampleRange]

    @cached_property
    def text(self) -> list[str]:
        """Text of each answer, [row]."""
        return [text for part in self.ranges for text in self.store.samples.read(part)["text"].to_pylist()]

    @cached_property
    def answer(self) -> list[str | None]:
        """Normalised answers that the grader found, [row]; None if it found none."""
        grades = pa.concat_tables(self.store.grades.read(self.grader, part) for part in self.ranges)
        grades = _align(grades, self.question, self.sample, _ids(self.store))
        return list(grades["answer"].to_pylist())

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Whether the sample index j of each answer is odd, [row].

        Methods that read answers use only answers with even j, and are evaluated on answers with odd j.
        """
        return self.sample % 2 == 1

    def rows_by_question(self, n_questions: int, included: NDArray[np.bool_] | None = None) -> list[NDArray[np.int64]]:
        """Return the rows of each question's answers, excluding rejected answers.

        If a mask `included` [row] is passed, rows outside it are also left out.
        """
        rows = np.flatnonzero(~self.rejected if included is None else ~self.rejected & included)
        rows = rows[np.argsort(self.question[rows], kind="stable")]
        return np.split(rows, np.searchsorted(self.question[rows], np.arange(1, n_questions)))


@dataclass(frozen=True)
class QuestionTable:
    """Table with one row per question, in the store's order. All arrays have shape [question].

    Attributes:
        prompt_tokens: Prompt length in tokens; NaN if unknown.
        right: Number of right answers.
        known, unknown: Number of answers with a known grade, and number with an unknown grade.
        held_right, held_known, held_unknown: The same three counts for answers with odd sample indices j.
        consistency: Relative frequency of the most frequent answer among those with even j; NaN if there are none.
        asked: Dict from baseline name to table, for the model-based baselines at question scope. The columns are
            `value` (in [0, 1] or null), `prompt_tokens` and `completion_tokens`. Incomplete baselines are left out.
    """

    ids: list[str]
    groups: list[str]
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
    asked: dict[str, pa.Table]

    @cached_property
    def texts(self) -> list[str]:
        """Texts of the questions for display. Private questions are replaced with a placeholder."""
        return [question.public_prompt for question in self.answers.store.questions]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Estimate of the expected accuracy, p̂ = right / known, [question]; NaN if no grade is known."""
        with np.errstate(invalid="ignore"):
            return self.right / self.known

    @property
    def wrong_classes(self) -> NDArray[np.int64]:
        """Number of distinct wrong answers, [question]. Each unreadable answer counts as distinct."""
        answers = self.answers
        wrong = np.flatnonzero(answers.known > answers.right)
        classes = np.where(answers.answer_class > 0, answers.answer_class, ~np.arange(len(answers.question)))
        distinct = np.unique(np.stack([answers.question[wrong], classes[wrong]]), axis=1)
        return np.bincount(distinct[0], minlength=len(self.ids))

    def with_grades(self, kept: NDArray[np.bool_]) -> "QuestionTable":
        """Return a copy in which the grades outside the mask `kept` [answer] are unknown."""
        answers = replace(self.answers, right=self.answers.right * kept, known=self.answers.known * kept)
        counts: Any = _count_grades(answers, len(self.ids))
        return replace(self, answers=answers, **counts)


def load_table(store: Store, grader: str | None = None) -> QuestionTable:
    """Read a store's questions and samples with the grades of one grader, by default the store's only grader.

    Raises:
        InputError: If there are no grades, if `grader` is None but there are several graders, if a sample has no grade,
            if sampling stopped early, or if a file is damaged.
    """
    grader = store.grades.choose(grader)
    if store.grades.missing(grader):
        raise InputError(
            f"Expected every sample of '{store.path}' to be graded by {grader!r}, but some are not. "
            f"Run `python -m extract grade --store {store.path} --grader {grader}`."
        )
    if stopped := store.samples.stopped():
        rule, k = (store.samples.stopping(stopped[0]) or {})["rule"], max(part.stop for part in stopped)
        raise InputError(
            f"Expected the same number of answers to each question in '{store.path}', but sampling stopped early (rule "
            f"{rule}), which biases all accuracies. Complete the store with `python -m extract sample --k {k}`, "
            "without --stop. Then grade it again."
        )
    if set(store.grades.ranges(grader)) - set(store.samples.ranges()):
        raise InputError(
            f"Expected a sample for every grade in '{store.path}', but some samples are missing. "
            "Run `python -m extract sample` again with the store's settings."
        )
    ids, ranges = _ids(store).to_pylist(), store.samples.ranges()
    blocks = [_columns(store, grader, [*parts]) for _, parts in groupby(ranges, lambda part: part.block)]
    columns: Any = {name: np.concatenate([block.pop(name) for block in blocks]) for name in [*blocks[0]]}
    prompt_tokens = np.zeros(len(ids))
    prompt_tokens[columns["question"]] = columns.pop("prompt_tokens")
    answers = AnswerTable(**columns, store=store, grader=grader, ranges=ranges)
    other_half = answers.rows_by_question(len(ids), ~answers.held_out)
    return QuestionTable(
        ids=ids,
        groups=[*map(sys.intern, store.questions.table["group"].to_pylist())],
        prompt_tokens=prompt_tokens,
        consistency=np.array([modal_share(answers.answer_class[rows].tolist()) for rows in other_half]),
        grader=grader,
        answers=answers,
        asked={name: store.asked.read(name) for name in store.asked.names("question") if not store.asked.missing(name)},
        **_count_grades(answers, len(ids)),
    )


def _ids(store: Store) -> pa.Array:
    return store.questions.table["question_id"].combine_chunks()


def _count_grades(answers: AnswerTable, n_questions: int) -> dict[str, NDArray[np.int64]]:
    """Count the right answers, known grades and unknown grades of each question.

    The counts are computed for all answers, and for those with odd sample index j.
    """
    kinds = {"right": answers.right, "known": answers.known, "unknown": 1 - answers.known}
    return {
        f"{half}{kind}": np.bincount(answers.question, values * included, n_questions).astype(np.int64)
        for half, included in (("", True), ("held_", answers.held_out))
        for kind, values in kinds.items()
    }


def _columns(store: Store, grader: str, parts: Sequence[SampleRange]) -> dict[str, NDArray[np.generic]]:
    """Read the columns of `AnswerTable` and the prompt lengths for one block of questions."""
    samples = pa.concat_tables(store.samples.read(part).drop_columns(["text", "token_ids"]) for part in parts)
    ids, first = pa.array(store.questions.ids(parts[0]), pa.string()), parts[0].block * store.questions.block_size
    question, sample = _keys(samples, ids)
    grades = pa.concat_tables(store.grades.read(grader, part) for part in parts)
    grades = _align(grades, question, sample, ids)
    found = pa.chunked_array([pa.array([""]), *grades["answer"].fill_null("").chunks])  # the empty answer is class 0
    of_reason = {
        reason: pc.equal(samples["finish_reason"], reason).fill_null(False).to_numpy()
        for reason in ("stop", "length", *WITHOUT_ANSWER)
    }
    return {
        "question": question + first,
        "sample": sample,
        "right": grades["right"].fill_null(False).to_numpy().astype(np.int32),
        "known": grades["right"].is_valid().to_numpy().astype(np.int32),
        "answer_class": found.combine_chunks().dictionary_encode().indices.to_numpy()[1:],
        "n_tokens": samples["n_tokens"].to_numpy().astype(np.float64),
        "truncated": of_reason["length"],
        **_likelihoods(samples["logprobs"], of_reason["stop"] & store.samples.provides.end_token),
        "rejected": np.any([of_reason[reason] for reason in WITHOUT_ANSWER], axis=0),
        "prompt_tokens": samples["prompt_tokens"].to_numpy(),
    }


def _likelihoods(logprobs: pa.ChunkedArray, ended: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    """Compute the likelihood columns of `AnswerTable`. Where `ended` is true, the row's last token is excluded."""
    n_tokens = pc.list_value_length(logprobs).fill_null(0).to_numpy()
    ended = ended & (n_tokens > 0)
    values = np.delete(pc.list_flatten(logprobs).to_numpy().astype(np.float64), n_tokens.cumsum()[ended] - 1)
    n_tokens = n_tokens - ended
    first = n_tokens.cumsum() - n_tokens

    def reduce(ufunc: np.ufunc, initial: float) -> NDArray[np.float64]:
        started = np.insert(values, first, initial)  # answers without tokens also need a value
        return np.where(n_tokens > 0, -ufunc.reduceat(started, first + np.arange(len(first))), np.nan)

    total = reduce(np.add, 0)
    return {"mean_nll": total / n_tokens, "max_nll": reduce(np.minimum, np.inf), "sequence_nll": total}


def _keys(table: pa.Table, ids: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return pc.index_in(table["question_id"], ids).to_numpy().astype(np.int64), table["sample"].to_numpy()


def _align(table: pa.Table, question: NDArray[np.int64], sample: NDArray[np.int32], ids: pa.Array) -> pa.Table:
    """Reorder the rows of `table` so that row i belongs to question `question[i]` and sample `sample[i]`."""
    order = np.empty(len(question), dtype=np.int64)
    order[np.lexsort((sample, question))] = np.lexsort(_keys(table, ids)[::-1])
    return table.take(order)


def asked_of_answers(store: Store, table: QuestionTable, name: str) -> NDArray[np.float64]:
    """Read the values of a model-based baseline, [row], in the order of `table.answers`. Missing values are NaN."""
    asked = _align(store.asked.read(name, "sample"), table.answers.question, table.answers.sample, _ids(store))
    return asked["value"].to_numpy().astype(np.float64)


def modal_share(answers: Sequence[str | int | None]) -> float:
    """Compute the relative frequency of the most frequent answer. It is NaN if there are no answers.

    `answers` [sample] contains normalised answers or classes, as in `clusters_of`. Each unreadable answer counts as
    distinct.
    """
    return max(Counter(clusters_of(answers)).values()) / len(answers) if answers else float("nan")


def split_rows(table: QuestionTable, questions: Tensor, fractions: Sequence[float], seed: int = 0) -> list[Tensor]:
    """Split rows of the question table into parts, as in `split_questions`.

    `questions` [question] int64 contains the indices of the rows.
    """
    ids, groups = ([column[row] for row in questions.tolist()] for column in (table.ids, table.groups))
    part = torch.tensor(split_questions(ids, groups, fractions, seed))
    return [questions[part == number] for number in range(len(fractions))]
