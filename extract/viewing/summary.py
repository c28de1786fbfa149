"""Counts over the answers of a store, a block of questions at a time, so that no more of them are ever held."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from extract.store.shards import Block, SampleRange
from extract.store.store import Store

Counts = NDArray[np.int64]
#: What a grade says of an answer, in the order in which answers are shown.
MARKS = {True: "right", False: "wrong", None: "unknown"}


@dataclass
class GradeCounts:
    """Grades of one grader, counted for each question.

    Attributes:
        right: [question] right answers.
        wrong: [question] wrong ones.
        unknown: [question] answers that the grader could not decide.
        no_answer: [question] texts in which it found no answer.
    """

    right: Counts
    wrong: Counts
    unknown: Counts
    no_answer: Counts

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """[question] share of right answers among the known ones; NaN where none is known."""
        known = self.right + self.wrong
        return np.divide(self.right, known, out=np.full(len(known), np.nan), where=known > 0)

    def add(self, block: slice, places: NDArray[np.int64], table: pa.Table) -> None:
        """Count the grades of a part of a block, whose rows [row] are of the questions at these places in it."""
        right = table["right"]
        marks = {
            "right": right.fill_null(False),
            "wrong": pc.invert(right).fill_null(False),
            "unknown": pc.is_null(right),
        }
        for name, chosen in {**marks, "no_answer": pc.is_null(table["answer"])}.items():
            counts = getattr(self, name)[block]
            counts += np.bincount(places[chosen.to_numpy()], minlength=len(counts))


class Shown(NamedTuple):
    """A graded answer that is going to be shown: where it is, and what its grader said and took for the answer."""

    part: SampleRange
    question_id: str
    sample: int
    right: bool | None
    answer: str | None


@dataclass
class Summary:
    """What is in a store.

    Attributes:
        n_samples: [question] answers in finished parts.
        n_distinct: [question] different texts among them.
        finish_reasons: Answers by the reason why they ended.
        n_tokens: [answer] tokens of every answer of which they are known.
        grades: By grader.
        n_logged: Answers of unfinished parts, which wait in logs.
        n_logs: Unfinished parts.
        shown: Answers of one grader to be shown, some of each mark.
    """

    n_samples: Counts
    n_distinct: Counts
    finish_reasons: Counter[str] = field(default_factory=Counter)
    n_tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    grades: dict[str, GradeCounts] = field(default_factory=dict)
    n_logged: int = 0
    n_logs: int = 0
    shown: list[Shown] = field(default_factory=list)


def summarize(store: Store, show_of: str | None, n_shown: int) -> Summary:
    """Count what is in a store.

    Args:
        store: The store.
        show_of: Grader of whose answers some are shown; None shows none.
        n_shown: How many.

    Raises:
        Damaged: A file is not as it was written.
    """
    n = len(store.questions)
    summary = Summary(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
    summary.grades = {name: GradeCounts(*np.zeros((4, n), dtype=np.int64)) for name in store.grades.names()}
    graded = {name: set(store.grades.ranges(name)) for name in summary.grades}
    tokens, chosen = [summary.n_tokens], _Chosen(n_shown)
    for number, parts in groupby(store.samples.ranges(), key=lambda part: part.block):
        ids, texts = store.questions.ids(Block(number)), []
        block = slice(number * store.identity["block_size"], number * store.identity["block_size"] + len(ids))
        for part in parts:
            answers = store.samples.read(part)
            places = _places(answers, ids)
            texts.append(pa.table({"question": places, "text": answers["text"]}))
            summary.n_samples[block] += np.bincount(places, minlength=len(ids))
            summary.finish_reasons.update(_value_counts(answers["finish_reason"]))
            tokens.append(answers["n_tokens"].drop_null().to_numpy())
            for name in (name for name, held in graded.items() if part in held):
                grades = store.grades.read(name, part)
                summary.grades[name].add(block, _places(grades, ids), grades)
                if name == show_of:
                    chosen.add(part, grades)
        distinct = pa.concat_tables(texts).group_by("question").aggregate([("text", "count_distinct")])
        summary.n_distinct[block][distinct["question"].to_numpy()] = distinct["text_count_distinct"].to_numpy()
    summary.n_tokens, summary.shown = np.concatenate(tokens), chosen.spread()
    summary.n_logs, summary.n_logged = _logged(store)
    return summary


def _places(table: pa.Table, ids: Sequence[str]) -> NDArray[np.int64]:
    """[row] place of each row's question in its block."""
    places: NDArray[np.int64] = (
        pc.index_in(table["question_id"], pa.array(ids, pa.string())).to_numpy().astype(np.int64)
    )
    return places


def _value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {row["values"]: row["counts"] for row in column.value_counts().to_pylist()}


def _logged(store: Store) -> tuple[int, int]:
    """Unfinished parts, and answers in their logs: a line for what the log is of, then one for each reply."""
    logs = sorted((store.path / "samples").glob("*.jsonl"))
    n_answers = 0
    for log in logs:
        with log.open("rb") as file:
            for line in file:
                with suppress(ValueError, RecursionError):  # a torn line holds no answers
                    rows = json.loads(line)
                    n_answers += len(rows) if isinstance(rows, list) else 0
    return len(logs), n_answers


class _Chosen:
    """Some answers of each mark, by a fixed random number of each answer, so that the same ones are shown again.

    Args:
        n: Most answers of a mark.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_mark: dict[bool | None, list[tuple[float, Shown]]] = {mark: [] for mark in MARKS}

    def add(self, part: SampleRange, grades: pa.Table) -> None:
        """Look at the grades of a part."""
        numbers = np.random.default_rng((part.block, part.start, part.stop)).random(grades.num_rows)
        for mark, held in self._by_mark.items():
            is_mark = pc.is_null(grades["right"]) if mark is None else pc.equal(grades["right"], mark).fill_null(False)
            rows = np.flatnonzero(is_mark.to_numpy())
            rows = rows[np.argsort(numbers[rows])[: self._n]]
            for number, row in zip(numbers[rows].tolist(), grades.take(rows).to_pylist(), strict=True):
                held.append((number, Shown(part, row["question_id"], row["sample"], mark, row["answer"])))
            held.sort(key=lambda numbered: numbered[0])
            del held[self._n :]

    def spread(self) -> list[Shown]:
        """Answers spread evenly over the marks, right ones first, and over different questions if possible."""
        left = {mark: [shown for _, shown in held] for mark, held in self._by_mark.items()}
        taken: dict[bool | None, list[Shown]] = {mark: [] for mark in left}
        seen: set[str] = set()
        while sum(map(len, taken.values())) < self._n and any(left.values()):
            mark = min((mark for mark in left if left[mark]), key=lambda mark: len(taken[mark]))
            of_new = (i for i, graded in enumerate(left[mark]) if graded.question_id not in seen)
            taken[mark].append(left[mark].pop(next(of_new, 0)))
            seen.add(taken[mark][-1].question_id)
        return [shown for held in taken.values() for shown in held]


def texts_of(store: Store, shown: Sequence[Shown]) -> dict[Shown, str]:
    """The texts of chosen answers."""
    texts: dict[Shown, str] = {}
    for part, of_part in groupby(sorted(shown, key=lambda graded: graded.part), key=lambda graded: graded.part):
        rows = store.samples.read(part).select(["question_id", "sample", "text"]).to_pylist()
        text_of = {(row["question_id"], row["sample"]): row["text"] for row in rows}
        texts |= {graded: text_of[graded.question_id, graded.sample] for graded in of_part}
    return texts


def interval(values: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """Mean over questions with Student's 95 % interval, within [0, 1]; None of fewer than two.

    If all values are equal, the interval ends 1 − 0.025^(1/n) from them: with a larger mean, n questions would all be
    at 0 with a probability below 0.025.
    """
    from scipy.special import stdtrit

    known = values[~np.isnan(values)]
    if len(known) < 2:
        return None
    if known.max() == known.min():
        mean, far = float(known[0]), 1 - 0.025 ** (1 / len(known))
        return mean, max(0.0, mean - far), min(1.0, mean + far)
    half: Any = stdtrit(len(known) - 1, 0.975) * known.std(ddof=1) / np.sqrt(len(known))
    mean = float(known.mean())
    return mean, max(0.0, mean - float(half)), min(1.0, mean + float(half))
