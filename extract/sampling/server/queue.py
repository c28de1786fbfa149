"""What is still to be asked for a store: its unfinished parts in a balanced order, and of each the questions and samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from extract.errors import InputError
from extract.questions.question import Question
from extract.running.worker import Worker
from extract.sampling.server.answer_log import AnswerLog
from extract.store.files import is_finished
from extract.store.shards import SampleRange, missing_ranges, overlap, range_of
from extract.store.store import Store


def parts_to_ask(
    store: Store, k: int, per_request: int, damaged: Collection[SampleRange], worker: Worker
) -> list[SampleRange]:
    """A worker's unfinished parts for k samples of every question, the first samples of all blocks before the second ones.

    However it ends, every question then has about as many answers as any other. A part that an earlier run began keeps
    its samples, also where they reach beyond k.

    Args:
        store: The store.
        k: Samples of every question.
        per_request: Samples of a part that nobody began.
        damaged: Finished parts that have to be made again.
        worker: Whose blocks.

    Raises:
        InputError: A log of answers that a finished part or another log holds too.
    """
    finished = [part for part in store.samples.ranges() if part not in damaged]
    begun = sorted({*damaged, *(part for part in logged_parts(store) if part not in finished and part.start < k)})
    _check_apart([*finished, *begun], store)
    new = [
        SampleRange(gap.block, start, min(start + per_request, gap.stop))
        for gap in missing_ranges([*finished, *begun], store.questions.n_blocks, k)
        for start in range(gap.start, gap.stop, per_request)
    ]
    own = (part for part in [*begun, *new] if worker.has(part.block))
    return sorted(own, key=lambda part: (part.start, part.block))


def _check_apart(ranges: list[SampleRange], store: Store) -> None:
    if clash := overlap(ranges):
        before, part = clash
        logs = [store.samples.log_file(samples) for samples in (part, before)]
        log = next((path for path in logs if path.is_file()), logs[0])
        raise InputError(
            f"Expected the files in {str(log.parent)!r} to hold different samples, but {before.stem} and {part.stem} "
            f"share some. Delete {str(log)!r} to keep the other."
        )


def logged_parts(store: Store) -> list[SampleRange]:
    """Parts with a log of answers.

    Raises:
        Damaged: A log of another name than a part's.
    """
    return sorted(range_of(path, store.questions.n_blocks) for path in log_files(store))


def log_files(store: Store) -> list[Path]:
    """The logs of answers in a store."""
    return sorted((store.path / "samples").glob("*.jsonl"))


def tidy_logs(store: Store, damaged: Collection[SampleRange], worker: Worker) -> None:
    """Delete the logs of a worker's finished parts, which an earlier run had no time for."""
    for path in log_files(store):
        part = range_of(path, store.questions.n_blocks)
        if worker.has(part.block) and part not in damaged and is_finished(store.samples.file(part)):
            path.unlink()


def n_logged(store: Store, part: SampleRange) -> int:
    """Answers of a part that an earlier run logged."""
    if not store.samples.log_file(part).is_file():
        return 0
    log = AnswerLog(store.samples.log_file(part), store.sha256, part, store.questions.ids(part))
    log.close()
    return len(log.held)


class Ask(NamedTuple):
    """What one request asks for: some answers to a question."""

    question: Question
    samples: list[int]


class OpenPart:
    """A part whose answers are being asked for.

    Args:
        store: The store.
        part: The part.
        per_request: Most answers of one request.

    Attributes:
        part: The part.
        log: Its answers so far.
        requests: What is missing, a request each.
        n_waiting: Requests that are neither answered nor given up.
    """

    def __init__(self, store: Store, part: SampleRange, per_request: int) -> None:
        self._store, self.part = store, part
        questions = store.questions.block(part)
        self.log = AnswerLog(store.samples.log_file(part), store.sha256, part, [question.id for question in questions])
        self.requests = list(self._requests(questions, per_request))
        self.n_waiting = len(self.requests)

    def _requests(self, questions: list[Question], per_request: int) -> Iterator[Ask]:
        for question in questions:
            missing = [j for j in range(self.part.start, self.part.stop) if (question.id, j) not in self.log.held]
            for first in range(0, len(missing), per_request):
                yield Ask(question, missing[first : first + per_request])

    def close(self) -> None:
        """Close the log; of a part that is whole, write the table first, and then delete the log. For any thread.

        Raises:
            InputError: The table can't be written. The log stays.
            OSError: The log can't be read, synced or deleted.
        """
        n_rows = self._store.questions.n_rows(self.part)
        try:
            # what the file holds counts, and not what this process believes that it wrote
            rows = self.log.rows() if len(self.log.held) == n_rows else []
            whole = len(rows) == n_rows
            if whole:
                self._store.samples.write(self.part, rows)
        finally:
            self.log.close()
        if whole:
            self.log.path.unlink()


def first_asks(store: Store, parts: Sequence[SampleRange], per_request: int, n: int) -> list[Ask]:
    """What the first requests about `n` questions ask for, in some parts; fewer where fewer questions lack answers."""
    asks: dict[str, Ask] = {}
    for place in parts:
        part = OpenPart(store, place, per_request)
        part.log.close()
        for ask in part.requests:
            asks.setdefault(ask.question.id, ask)
        if len(asks) >= n:
            break
    return list(asks.values())[:n]
