"""Request queue of a store: its unfinished ranges of samples in a balanced order, and the requests for each range."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from extract.errors import InputError
from extract.questions.question import Question
from extract.running.worker import Worker
from extract.store.answer_log import AnswerLog, Row, logged_ranges, read_log
from extract.store.files import is_finished
from extract.store.samples import REJECTED
from extract.store.shards import SampleRange, missing_ranges, overlap
from extract.store.store import Store


def ranges_to_ask(store: Store, k: int, n: int, damaged: Collection[SampleRange], worker: Worker) -> list[SampleRange]:
    """List the ranges of samples that a worker still has to request, in the order of the requests.

    The first samples of all questions come before the second samples, so that all questions have similar numbers of
    answers whenever a run ends. New ranges have at most `n` samples, with indices below `k`. Ranges that an earlier run
    began, and ranges whose file is `damaged`, keep all their samples, even beyond `k`.

    Raises:
        InputError: If an answer log shares samples with a finished range or another log.
    """
    finished = [samples for samples in store.samples.ranges() if samples not in damaged]
    logged = (samples for samples in logged_ranges(store) if samples not in finished and samples.start < k)
    begun = sorted({*damaged, *logged})
    if clash := overlap([*finished, *begun]):
        logs = [store.samples.log_file(samples) for samples in reversed(clash)]
        log = next((path for path in logs if path.is_file()), logs[0])
        raise InputError(
            f"Expected the files in {str(log.parent)!r} to contain different samples, but {clash[0].stem} and "
            f"{clash[1].stem} overlap. Keep only one of them, for example by deleting {str(log)!r}."
        )
    new = [
        SampleRange(gap.block, start, min(start + n, gap.stop))
        for gap in missing_ranges([*finished, *begun], store.questions.n_blocks, k)
        for start in range(gap.start, gap.stop, n)
    ]
    own = (samples for samples in [*begun, *new] if worker.has(samples.block))
    return sorted(own, key=lambda samples: (samples.start, samples.block))


def delete_finished_logs(store: Store, damaged: Collection[SampleRange], worker: Worker) -> None:
    """Delete the answer logs of a worker's finished ranges. A killed run can leave them behind."""
    for samples in logged_ranges(store):
        if worker.has(samples.block) and samples not in damaged and is_finished(store.samples.file(samples)):
            store.samples.log_file(samples).unlink()


class Ask(NamedTuple):
    """Content of one request: a question and the indices of the requested samples."""

    question: Question
    samples: list[int]


class OpenRange:
    """Unfinished range of samples, with an open log of its answers.

    Args:
        n: Number of answers per request.

    Attributes:
        log: Log of the answers received so far.
        asks: Requests for the missing answers.
        n_waiting: Number of requests that have been neither answered nor abandoned.
    """

    def __init__(self, store: Store, samples: SampleRange, n: int) -> None:
        self._store, self.samples, self.log, self.asks = store, samples, AnswerLog(store, samples), list[Ask]()
        for question in store.questions.block(samples):
            missing = [j for j in range(samples.start, samples.stop) if (question.id, j) not in self.log.answered]
            self.asks += [Ask(question, missing[first : first + n]) for first in range(0, len(missing), n)]
        self.n_waiting = len(self.asks)

    def close(self, rejected: Collection[str] = ()) -> bool:
        """Close the log. If the range is complete, write its table and delete the log. Any thread can call this.

        Args:
            rejected: Ids of questions whose missing answers are recorded as rejected.

        Returns:
            Whether the range is complete.

        Raises:
            InputError: If the table can't be written. In this case, the log is kept.
            OSError: If the log can't be read, synced or deleted.
        """
        ids, indices = self._store.questions.ids(self.samples), range(self.samples.start, self.samples.stop)
        keys = [(id_, j) for id_ in ids for j in indices]
        try:
            # read the file, because this process may have written only part of it
            rows = {(row["question_id"], row["sample"]): row for row in read_log(self._store, self.samples)}
            complete = all(key in rows or key[0] in rejected for key in keys)
            if complete:
                self._store.samples.write(self.samples, [rows.get(key) or _rejected_row(*key) for key in keys])
        finally:
            self.log.close()
        if complete:
            self.log.path.unlink(missing_ok=True)
        return complete


def _rejected_row(question_id: str, sample: int) -> Row:
    unknown = dict.fromkeys(("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens"))
    return {"question_id": question_id, "sample": sample, "text": "", "finish_reason": REJECTED, **unknown}


def first_asks(store: Store, ranges: Sequence[SampleRange], n: int, n_questions: int) -> list[Ask]:
    """Return the first request for each question in `ranges`, for at most `n_questions` questions."""
    asks: dict[str, Ask] = {}
    for samples in ranges:
        opened = OpenRange(store, samples, n)
        opened.log.close()
        for ask in opened.asks:
            asks.setdefault(ask.question.id, ask)
        if len(asks) >= n_questions:
            break
    return list(asks.values())[:n_questions]
