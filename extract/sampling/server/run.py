"""One run of the server sampler, which sends concurrent requests and logs the replies."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extract.errors import InputError
from extract.policy import Decoding
from extract.questions.question import Question
from extract.running.progress import Progress, say, spent
from extract.sampling.server.client import BudgetSpent, Client, Unanswered
from extract.sampling.server.endpoint import RejectedRequest
from extract.sampling.server.policy import Server, request_for
from extract.sampling.server.preflight import Preflight
from extract.sampling.server.queue import Ask, OpenRange
from extract.sampling.server.redact import public
from extract.store.answer_log import Row
from extract.store.files import is_finished
from extract.store.shards import SampleRange
from extract.store.store import Store

#: Interval between two syncs of the logs to disk, in seconds.
SYNC_SECONDS = 1.0
#: The run stops after this many rejected questions in a row.
MOST_REJECTED = 100


@dataclass
class Run:
    """A run that requests the missing answers in the unfinished ranges of a store.

    Attributes:
        ranges: Unfinished ranges, in the order of the requests.
        wanted: Samples to request, by question id. By default, all samples of the ranges.
        rows: Rows of the answers that have arrived in this run.
        rejected: Dict from the id of each rejected question to the server's message.
    """

    store: Store
    ranges: Sequence[SampleRange]
    decoding: Decoding
    server: Server
    preflight: Preflight
    progress: Progress
    wanted: Mapping[str, range] | None = None
    rows: list[Row] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    _client: Client = field(init=False)
    _open: dict[SampleRange, OpenRange] = field(default_factory=dict)
    _completed: set[SampleRange] = field(default_factory=set)  # may lack answers to rejected questions
    _n_rejected_in_a_row: int = 0
    _unanswered: str = ""  # why the last request was given up
    _stopped: Exception | None = None  # why no further requests are sent

    async def ask_all(self) -> None:
        """Send all requests concurrently, and wait until all have finished or the run stops.

        The caller must then call `conclude`.
        """
        requests, syncing = self._requests(), asyncio.create_task(self._sync())
        # a copy, because its asyncio.Event must belong to this event loop
        self.preflight.spending = replace(self.preflight.spending)
        self._client = Client(self.server, self.store.model_id, self.preflight.spending, self.preflight.known_as)
        try:
            async with self._client, asyncio.TaskGroup() as group:
                # more tasks than concurrent requests, because some wait for a retry
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
        """Stop sending requests. Replies to requests in flight are still awaited."""
        self._stopped = self._stopped or reason
        self._client.stop()

    def _requests(self) -> Iterator[tuple[OpenRange, Ask]]:
        """Yield all requests, opening one range after another."""
        for samples in self.ranges:
            try:
                opened = OpenRange(self.store, samples, self.server.n, self.wanted)
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
        """Send requests one after another, and close each range when all its requests are done."""
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
        """Request answers and log them. Returns True if all answers arrived, or if the question was rejected."""
        while samples and question.id not in self.rejected:
            try:
                request = request_for(question, samples, self.decoding, self.server)
                reply = self.preflight.replies.pop((question.id, samples[0]), None) or await self._client.ask(request)
                rows = reply.rows(question.id, samples)
                opened.log.append(rows)
            except Unanswered as error:  # also raised if the client was stopped
                self._unanswered = public(error, question)
                return False
            except RejectedRequest as error:
                n = self._n_rejected_in_a_row = self._n_rejected_in_a_row + (question.id not in self.rejected)
                self.rejected[question.id] = public(error, question)
                if n >= MOST_REJECTED:
                    self._stop(too_many_rejected(n))
                return True
            except (BudgetSpent, InputError, OSError) as error:
                self._stop(error if isinstance(error, OSError) else type(error)(public(error, question)))
                return False
            self._n_rejected_in_a_row = 0
            self.rows += rows
            samples = samples[len(rows) :]
            cost, server = self._client.spending, self.server
            words = spent(cost.prompt_tokens, cost.answer_tokens, server.price_prompt, server.price_answer)
            self.progress.note(f"{words}, {cost.retries} retries" if cost.retries else words)
            self.progress(len(rows), reply.completion_tokens or 0)
        return True

    async def _sync(self) -> None:
        """Sync the logs to disk at intervals, in a thread."""
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            try:
                for opened in list(self._open.values()):
                    await asyncio.to_thread(opened.log.sync)
            except OSError as error:
                return self._stop(error)

    def conclude(self, n_missing: int, n_workers: int) -> None:
        """Record rejected questions. Raises an error if answers are missing or could not be saved."""
        if isinstance(self._stopped, OSError):
            raise self._stopped
        state = self._state(n_missing, n_workers)
        if isinstance(self._stopped, InputError):
            raise InputError(f"{self._stopped} {state}")
        if self._stopped is not None:
            scope = f" (each of the {n_workers} workers has its own budget)" if n_workers > 1 else ""
            raise InputError(f"Expected the budget to cover all answers{scope}, but {self._stopped} {state}")
        store, n = self.store, self.server.n
        unfinished = [samples for samples in self.ranges if not is_finished(store.samples.file(samples))]
        opened = (OpenRange(store, samples, n, self.wanted) for samples in unfinished)
        unfinished = [one.samples for one in opened if not one.close(self.rejected)]
        if unfinished:
            reason = self._unanswered or f"lines are missing from {str(store.samples.log_file(unfinished[0]))!r}"
            raise InputError(
                f"Expected a reply to every request, but some answers are missing: {reason}. Run the same command "
                f"again to request them. {state}"
            )

    def _state(self, n_missing: int, n_workers: int) -> str:
        line = f"{len(self.rows):,} of {n_missing:,} answers arrived in this run and are kept"
        unfinished = [samples.start for samples in self.ranges if samples not in self._completed]
        if unfinished and self.wanted is None:
            others, own = "other " if self.rejected else "", " of this worker" if n_workers > 1 else ""
            line += f". All {others}questions{own} have at least {min(unfinished)} answers"
        return f"{line}. {describe_rejected(self.rejected)}" if self.rejected else f"{line}."


def describe_rejected(rejected: Mapping[str, str]) -> str:
    """Describe the rejected questions. `rejected` is a dict from question id to the server's message."""
    n, names = len(rejected), ", ".join(map(repr, list(rejected)[:10])) + (", …" if len(rejected) > 10 else "")
    noun, words = "question" if n == 1 else "questions", next(iter(rejected.values())).rstrip(".")
    return f"The server rejected {n:,} {noun} ({names}). Its first message was: {words}."


def say_rejected(rejected: Mapping[str, str]) -> None:
    """Report the rejected questions, if any."""
    if rejected:
        words = "The missing answers are recorded as rejected and graded as unknown."
        say(f"sample: {describe_rejected(rejected)} {words}")


def too_many_rejected(n: int, remedy: str = "") -> InputError:
    """Return the error for `n` rejected questions in a row."""
    return InputError(
        f"Expected most questions to be accepted, but the server rejected {n} in a row. Fix the problem described in "
        f"the server's message{remedy}, and run the command again."
    )
