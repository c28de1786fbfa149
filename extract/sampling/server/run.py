"""One run over the unfinished ranges of a store: hundreds of requests at a time, each reply logged as it arrives."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from extract.errors import InputError
from extract.policy import Decoding
from extract.questions.question import Question
from extract.running.progress import Progress, say, spent
from extract.running.worker import Worker
from extract.sampling.server.client import BudgetSpent, Client, Unanswered
from extract.sampling.server.endpoint import RejectedRequest
from extract.sampling.server.policy import Server, request_for
from extract.sampling.server.preflight import Preflight
from extract.sampling.server.queue import Ask, OpenRange
from extract.sampling.server.redact import public
from extract.store.files import is_finished
from extract.store.shards import SampleRange
from extract.store.store import Store

#: Seconds between two syncs of what arrived to the disk.
_SYNC_EVERY = 1.0
#: After so many rejected questions in a row, without a reply between them, the run stops.
_MOST_REJECTED = 100


@dataclass
class Run:
    """One run over the unfinished `ranges` of a store, in their order; `progress` counts every answer."""

    store: Store
    ranges: Sequence[SampleRange]
    decoding: Decoding
    server: Server
    preflight: Preflight
    progress: Progress
    _client: Client = field(init=False)
    _open: dict[SampleRange, OpenRange] = field(default_factory=dict)
    _completed: set[SampleRange] = field(default_factory=set)  # but for answers to rejected questions
    _rejected: dict[str, str] = field(default_factory=dict)  # the server's words on each rejected question, by id
    _n_arrived: int = 0
    _n_rejected_in_a_row: int = 0
    _unanswered: str = ""  # why the last request that was given up was
    _stopped: Exception | None = None  # why no further request is made

    async def ask_all(self) -> None:
        """Make all requests, many at a time, until all is there or something stops it; `conclude` says what did."""
        requests, syncing = self._requests(), asyncio.create_task(self._sync())
        spending = replace(self.preflight.spending)  # whose event belongs to this loop
        self._client = Client(self.server, self.store.model_id, spending, self.preflight.known_as)
        try:
            async with self._client, asyncio.TaskGroup() as group:
                # more than may be in flight, so that requests that wait to be retried delay no others
                for _ in range(2 * self.server.max_concurrency):
                    group.create_task(self._work(requests))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            syncing.cancel()
            for opened in self._open.values():
                try:
                    opened.log.close()
                except OSError as error:
                    self._stop(error)

    def _stop(self, reason: Exception) -> None:
        """Make no further request; those in flight are awaited, and their answers kept where possible."""
        self._stopped = self._stopped or reason
        self._client.stop()

    def _requests(self) -> Iterator[tuple[OpenRange, Ask]]:
        """All requests, each at its turn."""
        for samples in self.ranges:
            try:
                opened = OpenRange(self.store, samples, self.server.n)
                if not opened.asks:
                    opened.close()
            except (OSError, InputError) as error:
                self._stop(error)
                return
            self._completed.add(samples)
            if opened.asks:
                self._open[samples] = opened
            for ask in opened.asks:
                if self._stopped is not None:
                    self._completed.discard(samples)
                    return
                yield opened, ask

    async def _work(self, requests: Iterator[tuple[OpenRange, Ask]]) -> None:
        """Make one request after another."""
        for opened, ask in requests:
            if not await self._ask(opened, *ask):
                self._completed.discard(opened.samples)
            opened.n_waiting -= 1
            if not opened.n_waiting:
                del self._open[opened.samples]
                try:
                    await asyncio.to_thread(opened.close)
                except (OSError, InputError) as error:
                    self._stop(error)

    async def _ask(self, opened: OpenRange, question: Question, samples: list[int]) -> bool:
        """Log the answers to a question. Where a reply holds too few of them, ask for the others.

        Returns:
            Whether there is nothing more to ask: all answers are there, or the server rejects the question.
        """
        while samples and question.id not in self._rejected:
            try:
                request = request_for(question, samples, self.decoding, self.server)
                reply = self.preflight.replies.pop((question.id, samples[0]), None) or await self._client.ask(request)
                rows = reply.rows(question.id, samples)
                opened.log.append(rows)
            except Unanswered as error:  # also because the client was stopped
                self._unanswered = public(error, question)
                return False
            except RejectedRequest as error:
                n = self._n_rejected_in_a_row = self._n_rejected_in_a_row + (question.id not in self._rejected)
                self._rejected[question.id] = public(error, question)
                if n >= _MOST_REJECTED:
                    self._stop(InputError(f"Expected the server to take most questions, but it rejects {n} in a row."))
                return True
            except (BudgetSpent, InputError, OSError) as error:
                self._stop(error if isinstance(error, OSError) else type(error)(public(error, question)))
                return False
            self._n_rejected_in_a_row = 0
            self._n_arrived, samples = self._n_arrived + len(rows), samples[len(rows) :]
            cost, server = self._client.spending, self.server
            words = spent(cost.prompt_tokens, cost.answer_tokens, server.price_prompt, server.price_answer)
            self.progress.note(f"{words}, {cost.retries} retries" if cost.retries else words)
            self.progress(len(rows), reply.completion_tokens or 0)
        return True

    async def _sync(self) -> None:
        """Sync what arrived again and again, in a thread because a disk may be slow."""
        while True:
            await asyncio.sleep(_SYNC_EVERY)
            try:
                for opened in list(self._open.values()):
                    await asyncio.to_thread(opened.log.sync)
            except OSError as error:
                return self._stop(error)

    def conclude(self, n_missing: int, worker: Worker) -> None:
        """Record rejected questions where the run came to its end, and otherwise say how far it came.

        When it began, `n_missing` answers were missing in the blocks of `worker`.

        Raises:
            InputError: It did not come to its end.
            OSError: Answers could not be kept, for example because the disk is full.
        """
        if isinstance(self._stopped, OSError):
            raise self._stopped
        state = self._state(n_missing, worker)
        if isinstance(self._stopped, InputError):
            raise InputError(f"{self._stopped} {state}")
        if self._stopped is not None:
            scope = f" (each of the {worker.count} workers has its own)" if worker.count > 1 else ""
            raise InputError(f"Expected a budget for all answers{scope}, but {self._stopped} {state}")
        store, n = self.store, self.server.n
        unfinished = [samples for samples in self.ranges if not is_finished(store.samples.file(samples))]
        unfinished = [samples for samples in unfinished if not OpenRange(store, samples, n).close(self._rejected)]
        if unfinished:
            reason = self._unanswered or f"lines of {str(store.samples.log_file(unfinished[0]))!r} are lost"
            raise InputError(
                f"Expected a reply to every request, but some answers are missing: {reason}. Run the same command "
                f"again to ask for them. {state}"
            )
        if self._rejected:
            say(f"sample: {state} Their answers are recorded as rejected, and graded as unknown.")

    def _state(self, n_missing: int, worker: Worker) -> str:
        """How far it came, and what the server rejects, in sentences."""
        line = f"{self._n_arrived:,} of {n_missing:,} answers arrived in this run and are kept"
        if unfinished := [samples.start for samples in self.ranges if samples not in self._completed]:
            others, own = "other " if self._rejected else "", " of this worker" if worker.count > 1 else ""
            line += f"; every {others}question{own} has its first {min(unfinished)} answers"
        if n := len(self._rejected):
            names = ", ".join(map(repr, list(self._rejected)[:10])) + (", …" if n > 10 else "")
            noun, words = "question" if n == 1 else "questions", next(iter(self._rejected.values())).rstrip(".")
            line += f"; the server rejects {n:,} {noun} ({names}), the first so: {words}"
        return f"{line}."
