"""Count the answers of a store, one block of questions at a time."""

import heapq
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import stdtrit

from extract.store.samples import SKIPPED, WITHOUT_ANSWER
from extract.store.shards import Block, SampleRange
from extract.store.store import Store

Counts = NDArray[np.int64]
MARKS = {True: "right", False: "wrong", None: "unknown"}


@dataclass
class GradeCounts:
    """Numbers of right, wrong and unknown grades from one grader. Each attribute is [question] int64.

    `no_answer` counts the known grades for which the grader could not parse an answer. These grades are also included
    in `right` or `wrong`.
    """

    right: Counts
    wrong: Counts
    unknown: Counts
    no_answer: Counts

    @property
    def n_known(self) -> Counts:
        """Number of answers with a known grade, [question] int64."""
        return self.right + self.wrong

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Fraction of right answers among known grades, [question] float64; NaN if no grade is known."""
        return np.divide(self.right, self.n_known, out=np.full(len(self.right), np.nan), where=self.n_known > 0)

    def add(self, places: pa.ChunkedArray, grades: pa.Table) -> None:
        """Add a table of grades. `places` contains the question index of each row."""
        right = grades["right"]
        chosen = (right, pc.invert(right), pc.is_null(right), pc.and_(pc.is_valid(right), pc.is_null(grades["answer"])))
        for counts, mask in zip((self.right, self.wrong, self.unknown, self.no_answer), chosen, strict=True):
            np.add.at(counts, places.filter(mask).to_numpy(), 1)


class Shown(NamedTuple):
    """Example of a graded answer.

    `answer` is the answer that the grader extracted from the text. It is None if the grader extracted nothing.
    """

    part: SampleRange
    question_id: str
    sample: int
    right: bool | None
    answer: str | None

    def text(self, store: Store) -> str:
        """Read the full text of the answer from the store."""
        rows = store.samples.read(self.part)
        of_question = rows.filter(pc.equal(rows["question_id"], self.question_id))
        return str(of_question["text"].filter(pc.equal(of_question["sample"], self.sample))[0].as_py())


@dataclass
class Summary:
    """Counts of a store's answers, [question] int64 unless noted.

    Attributes:
        n_samples: Number of answers in finished sample ranges, excluding skipped samples.
        n_texts: Number of these answers that are neither rejected nor missing.
        n_distinct: Number of distinct texts.
        finish_reasons: Total number of answers for each finish reason.
        n_tokens: Length in tokens of each answer with a known length, [answer] int32.
        n_without_ids: Total number of answers whose token ids are unknown.
        grades: Counts for each grader.
        n_logs: Total number of unfinished sample ranges.
        n_logged: Total number of answers in the logs of these ranges.
        shown: Example answers.
    """

    n_samples: Counts
    n_texts: Counts
    n_distinct: Counts
    finish_reasons: Counter[str]
    n_tokens: NDArray[np.int32]
    n_without_ids: int
    grades: dict[str, GradeCounts]
    n_logs: int
    n_logged: int
    shown: list[Shown]


def summarize(store: Store, show_of: str | None, n_shown: int) -> Summary:
    """Count the answers of a store, and draw `n_shown` examples.

    The examples are drawn from the answers that the grader `show_of` has graded. Each example includes its grade. If
    `show_of` is None, no examples are drawn.

    Raises:
        Damaged: If a file is damaged.
    """
    n, block_size = len(store.questions), store.identity["block_size"]
    n_samples, n_texts, n_distinct = np.zeros((3, n), dtype=np.int64)
    counts = {name: GradeCounts(*np.zeros((4, n), dtype=np.int64)) for name in store.grades.names()}
    graded = {name: set(store.grades.ranges(name)) for name in counts}
    reasons: Counter[str] = Counter()
    n_without_ids = 0
    tokens = [np.empty(0, dtype=np.int32)]
    drawn: dict[bool | None, list[tuple[float, Shown]]] = {mark: [] for mark in MARKS}
    for number, parts in groupby(store.samples.ranges(), key=lambda part: part.block):
        ids, texts = pa.array(store.questions.ids(Block(number)), pa.string()), []
        for part in parts:
            answers = store.samples.read(part)
            skipped = _keys(answers.filter(pc.equal(answers["finish_reason"], SKIPPED)))
            answers = _without(skipped, answers)
            places = pc.add(pc.index_in(answers["question_id"], ids), number * block_size)
            np.add.at(n_samples, places.to_numpy(), 1)
            reasons.update(answers["finish_reason"].to_pylist())
            tokens.append(answers["n_tokens"].drop_null().to_numpy())
            has_answer = pc.invert(pc.is_in(answers["finish_reason"], pa.array(WITHOUT_ANSWER)))
            np.add.at(n_texts, places.filter(has_answer).to_numpy(), 1)
            texts.append(pa.table({"question": places, "text": answers["text"]}).filter(has_answer))
            n_without_ids += answers["token_ids"].filter(has_answer).null_count
            for name in (name for name in counts if part in graded[name]):
                grades = _without(skipped, store.grades.read(name, part))
                counts[name].add(pc.add(pc.index_in(grades["question_id"], ids), number * block_size), grades)
                if name == show_of:
                    _draw(drawn, n_shown, part, grades)
        distinct = pa.concat_tables(texts).group_by("question").aggregate([("text", "count_distinct")])
        n_distinct[distinct["question"].to_numpy()] = distinct["text_count_distinct"].to_numpy()
    shown = _spread({mark: [answer for _, answer in of_mark] for mark, of_mark in drawn.items()}, n_shown)
    return Summary(
        n_samples, n_texts, n_distinct, reasons, np.concatenate(tokens), n_without_ids, counts, *_logged(store), shown
    )


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["question_id"].to_pylist(), table["sample"].to_pylist(), strict=True))


def _without(skipped: list[tuple[str, int]], table: pa.Table) -> pa.Table:
    """Remove the rows of skipped samples."""
    absent = set(skipped)
    return table.filter(pa.array([key not in absent for key in _keys(table)])) if absent else table


def _logged(store: Store) -> tuple[int, int]:
    """Count the unfinished sample ranges, and the answers in their logs."""
    logs, n_answers = list((store.path / "samples").glob("*.jsonl")), 0
    for line in (line for log in logs for line in log.read_bytes().splitlines()):
        with suppress(ValueError, RecursionError):  # an incomplete line has no answers
            rows = json.loads(line)
            n_answers += len(rows) if isinstance(rows, list) else 0
    return len(logs), n_answers


def _draw(drawn: dict[bool | None, list[tuple[float, Shown]]], n: int, part: SampleRange, grades: pa.Table) -> None:
    """Add random answers from a range to `drawn`. At most `n` answers of each grade are kept."""
    numbers = np.random.default_rng((part.block, part.start, part.stop)).random(grades.num_rows)
    ordered = grades.append_column("number", pa.array(numbers)).sort_by("number")
    for mark, of_mark in drawn.items():
        is_mark = pc.is_null(ordered["right"]) if mark is None else pc.equal(ordered["right"], mark)
        for row in ordered.filter(is_mark).slice(0, n).to_pylist():
            of_mark.append((row["number"], Shown(part, row["question_id"], row["sample"], mark, row["answer"])))
        drawn[mark] = heapq.nsmallest(n, of_mark, key=lambda numbered: numbered[0])


def _spread(left: dict[bool | None, list[Shown]], n: int) -> list[Shown]:
    """Choose `n` answers, divided evenly among the grades. If possible, each belongs to a different question."""
    taken: dict[bool | None, list[Shown]] = {mark: [] for mark in left}
    seen: set[str] = set()
    while sum(map(len, taken.values())) < n and any(left.values()):
        mark = min((mark for mark in left if left[mark]), key=lambda mark: len(taken[mark]))
        of_new = (i for i, graded in enumerate(left[mark]) if graded.question_id not in seen)
        taken[mark].append(left[mark].pop(next(of_new, 0)))
        seen.add(taken[mark][-1].question_id)
    return [answer for of_mark in taken.values() for answer in of_mark]


def interval(values: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """Return the mean of `values` [question] and its 95 % interval (Student's t). NaN values are left out.

    The interval is clipped to [0, 1]. If all n values are equal, the half-width is 1 − 0.025^(1/n). If they are all 0
    or all 1, this is the exact binomial bound. The result is None if n < 2.
    """
    known = values[~np.isnan(values)]
    n = len(known)
    if n < 2:
        return None
    equal, mean = known.min() == known.max(), float(known.mean())
    half: Any = 1 - 0.025 ** (1 / n) if equal else stdtrit(n - 1, 0.975) * known.std(ddof=1) / np.sqrt(n)
    return mean, max(0.0, mean - float(half)), min(1.0, mean + float(half))
