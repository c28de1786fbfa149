"""Unfinished ranges of a store, and the requests for each range."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from extract.questions.question import Question
from extract.running.worker import Worker
from extract.store.answer_log import AnswerLog, finish_range, logged_ranges, unfinished_ranges
from extract.store.samples import REJECTED
from extract.store.shards import SampleRange
from extract.store.store import Store


def ranges_to_ask(store: Store, k: int, n: int, damaged: Collection[SampleRange], worker: Worker) -> list[SampleRange]:
    """List the ranges of samples that a worker still has to request.

    Ranges are sorted by their first sample index, then by block. New ranges have at most `n` samples, with indices
    below `k`. Damaged ranges and ranges begun by an earlier run can exceed these limits.
    """
    ranges = unfinished_ranges(store, k, damaged, worker)
    begun = {*damaged, *logged_ranges(store)}
    parts = [
        SampleRange(samples.block, start, min(start + n, samples.stop))
        for samples in ranges
        if samples not in begun
        for start in range(samples.start, samples.stop, n)
    ]
    return sorted([*begun.intersection(ranges), *parts], key=lambda samples: (samples.start, samples.block))


class Ask(NamedTuple):
    """Content of one request: a question and the indices of the requested samples."""

    question: Question
    samples: list[int]


class OpenRange:
    """Unfinished range of samples, with an open log of its answers.

    `wanted` contains the samples to request, by question id. By default, these are all samples of the range. `n` is the
    number of answers per request.

    Attributes:
        asks: Requests for the missing answers.
        n_waiting: Number of requests that have not been completed yet.
    """

    def __init__(self, store: Store, samples: SampleRange, n: int, wanted: Mapping[str, range] | None = None) -> None:
        self._store, self.samples, self._wanted = store, samples, wanted
        self.log, self.asks = AnswerLog(store, samples), list[Ask]()
        every = range(samples.start, samples.stop)
        for question in store.questions.block(samples):
            asked = every if wanted is None else wanted.get(question.id, ())
            missing = [j for j in asked if (question.id, j) not in self.log.answered]
            self.asks += [Ask(question, missing[first : first + n]) for first in range(0, len(missing), n)]
        self.n_waiting = len(self.asks)

    def close(self, rejected: Collection[str] = ()) -> bool:
        """Close the log. Any thread can call this method.

        If the whole range was requested and no sample is missing, the samples are written to the store. The log is then
        deleted. Unanswered samples of questions in `rejected` are marked as rejected and do not count as missing.

        Returns whether all requested samples have been answered or rejected.
        """
        self.log.close()
        if self._wanted is None:
            return finish_range(self._store, self.samples, dict.fromkeys(rejected, REJECTED))
        keys = ((id_, j) for id_, indices in self._wanted.items() for j in indices)
        return all(key in self.log.answered or key[0] in rejected for key in keys)


def first_asks(store: Store, ranges: Sequence[SampleRange], n: int, n_questions: int) -> list[Ask]:
    """Return the first request for each question in `ranges`, up to `n_questions` questions."""
    asks: dict[str, Ask] = {}
    for samples in ranges:
        opened = OpenRange(store, samples, n)
        opened.log.close()
        for ask in opened.asks:
            asks.setdefault(ask.question.id, ask)
        if len(asks) >= n_questions:
            break
    return list(asks.values())[:n_questions]
