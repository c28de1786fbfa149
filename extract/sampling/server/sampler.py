"""The server sampler: answers of a model behind an OpenAI-compatible server, each kept as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from extract.errors import InputError
from extract.policy import Decoding
from extract.questions.question import Question
from extract.running.progress import Progress, say, spent
from extract.running.worker import Worker
from extract.sampling.run import damaged_samples
from extract.sampling.server.answer_log import AnswerLog
from extract.sampling.server.answer_rows import rows_of
from extract.sampling.server.asyncio_runner import run_async
from extract.sampling.server.client import BudgetSpent, Client, Stopped, Unanswered
from extract.sampling.server.failures import RefusedRequest
from extract.sampling.server.fd_limit import have_handles
from extract.sampling.server.options import Server
from extract.sampling.server.policy import request_of
from extract.sampling.server.preflight import TRIES, Tried, look_for_variation, try_asks
from extract.sampling.server.queue import Ask, OpenPart, first_asks, n_logged, parts_to_ask, tidy_logs
from extract.sampling.server.redact import public
from extract.store.shards import SampleRange
from extract.store.store import Store

#: Seconds between two times that what arrived is synced to the disk.
_SYNC_EVERY = 1.0
#: So many questions refused in a row, with no reply between them, and the fault is no question's.
_MOST_REFUSED = 100
_SHOWN = 10  # refused questions that are named


def fill_served_samples(
    store: Store, k: int, decoding: Decoding, server: Server, worker: Worker, tried: Tried | None = None
) -> None:
    """Ask for what is missing for k samples of every question.

    Args:
        store: Store of a served model.
        k: Samples of every question.
        decoding: How answers are drawn, as in the store's identity.
        server: Where the model is.
        worker: Whose blocks.
        tried: What `try_new` gave for a new store; None tries the server if something is missing.

    Raises:
        InputError: The server can't be used as asked, a budget is spent, or requests stayed without an answer. All
            answers that came are kept.
    """
    damaged = damaged_samples(store, worker)
    tidy_logs(store, damaged, worker)
    parts = parts_to_ask(store, k, server.per_request, damaged, worker)
    if not parts:
        say(f"sample: all {k} answers to each question are there")
        return
    have_handles(server.in_flight * len(server.urls) + min(2 * server.in_flight, len(parts)))
    if not decoding.temperature and k > 1:
        say(
            f"sample: at temperature 0 the {k} answers to a question mostly are the same, and each costs; --k 1 asks once"
        )
    if tried is None:
        asks = first_asks(store, parts, server.per_request, TRIES * len(server.urls))
        tried = try_asks(asks, store.model_id, decoding, server)
    n_missing = sum(store.questions.n_rows(part) - n_logged(store, part) for part in parts)
    with Progress(f"sample{worker.label}", n_missing, "answers") as progress:
        run = _Run(store, parts, decoding, server, tried, progress)
        run_async(run.ask_all())
    run.conclude(n_missing, worker)
    if decoding.temperature:
        look_for_variation(store, parts[0].block, tried.trial)


@dataclass
class _Run:
    """One run of the sampler.

    Attributes:
        store: The store.
        parts: Parts that are asked for, in this order.
        decoding: How answers are drawn.
        server: The server.
        tried: What its trial gave.
        progress: Told of every answer.
        n_came: Answers that came.
        n_given_up: Answers whose request found no reply.
        reason: Why the last of these did not.
        refused: The server's words on each question that it refuses; nothing further is asked about it.
        stopped: Why no further request is made.
    """

    store: Store
    parts: Sequence[SampleRange]
    decoding: Decoding
    server: Server
    tried: Tried
    progress: Progress
    n_came: int = 0
    n_given_up: int = 0
    reason: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    stopped: Exception | None = None
    _n_refused: int = 0  # questions in a row
    _client: Client | None = None
    _open: dict[SampleRange, OpenPart] = field(default_factory=dict)
    _asked: set[SampleRange] = field(default_factory=set)  # all that the server does not refuse is there

    async def ask_all(self) -> None:
        """Ask for everything, many requests at a time, until all is there or something stops it; `conclude` says what did."""
        requests, syncing = self._requests(), asyncio.create_task(self._sync())
        names = self.store.model_id, self.tried.trial.known_as
        try:
            async with (
                Client(self.server, names[0], self.tried.spending, names[1]) as client,
                asyncio.TaskGroup() as group,
            ):
                self._client = client
                # more than may be in flight, so that what waits to be tried again holds up no others
                for _ in range(2 * self.server.in_flight):
                    group.create_task(self._work(client, requests))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            syncing.cancel()
            for part in self._open.values():
                try:
                    part.log.close()
                except OSError as error:
                    self._stop(error)

    def _stop(self, reason: Exception) -> None:
        """Make no further request; what is in flight is waited for, and kept where it can be."""
        self.stopped = self.stopped or reason
        if self._client is not None:
            self._client.stop()

    def _requests(self) -> Iterator[tuple[OpenPart, Ask]]:
        """Every request that is to be made, as it is its turn."""
        for place in self.parts:
            try:
                part = OpenPart(self.store, place, self.server.per_request)
                if not part.requests:
                    part.close()
            except (OSError, InputError) as error:
                self._stop(error)
                return
            self._asked.add(place)
            if part.requests:
                self._open[place] = part
            for ask in part.requests:
                if self.stopped is not None:
                    self._asked.discard(place)
                    return
                yield part, ask

    async def _work(self, client: Client, requests: Iterator[tuple[OpenPart, Ask]]) -> None:
        """Make one request after another."""
        for part, ask in requests:
            if not await self._ask(client, part, *ask):
                self._asked.discard(part.part)
            part.n_waiting -= 1
            if not part.n_waiting:
                del self._open[part.part]
                try:
                    await asyncio.to_thread(part.close)
                except (OSError, InputError) as error:
                    self._stop(error)

    async def _ask(self, client: Client, part: OpenPart, question: Question, samples: list[int]) -> bool:
        """Keep the answers to a question; where a reply held too few of them, ask for the others.

        Returns:
            Whether there is nothing more to ask: they are all there, or the server refuses the question.
        """
        while samples and question.id not in self.refused:
            try:
                reply = self.tried.replies.pop((question.id, samples[0]), None) or await client.ask(
                    request_of(question, samples, self.decoding, self.server)
                )
                self._n_refused = 0
                rows = rows_of(question.id, samples, reply)
                part.log.append(rows)
            except Stopped:
                return False
            except Unanswered as error:
                self.n_given_up, self.reason = self.n_given_up + len(samples), public(error, question)
                return False
            except RefusedRequest as error:
                self._refuse(question, error)
                return True
            except (BudgetSpent, InputError) as error:
                self._stop(type(error)(public(error, question)))
                return False
            except OSError as error:
                self._stop(error)
                return False
            self.n_came, samples = self.n_came + len(rows), samples[len(rows) :]
            self._show(len(rows), reply.completion_tokens or 0)
        return True

    def _refuse(self, question: Question, error: RefusedRequest) -> None:
        """Give a question up. The server has answered others; it has to answer one now and then."""
        self._n_refused += question.id not in self.refused
        self.refused[question.id] = public(error, question)
        if self._n_refused >= _MOST_REFUSED:
            self._stop(
                InputError(f"Expected the server to take most questions, but it refuses {self._n_refused} in a row.")
            )

    def _show(self, n_answers: int, n_tokens: int) -> None:
        spending, server = self.tried.spending, self.server
        words = spent(spending.prompt_tokens, spending.answer_tokens, server.price_prompt, server.price_answer)
        self.progress.note(f"{words}, {spending.retries} retries" if spending.retries else words)
        self.progress(n_answers, n_tokens)

    async def _sync(self) -> None:
        """Sync what arrived again and again, in a thread because a disk may be slow."""
        while True:
            await asyncio.sleep(_SYNC_EVERY)
            try:
                await asyncio.to_thread(_sync_all, [part.log for part in self._open.values()])
            except OSError as error:
                self._stop(error)
                return

    def conclude(self, n_missing: int, worker: Worker) -> None:
        """Say how far it came, where it did not come to its end.

        Args:
            n_missing: Answers that were missing when it began.
            worker: Whose blocks.

        Raises:
            InputError: It did not.
            OSError: What arrived could not be kept, for example because the disk is full.
        """
        if isinstance(self.stopped, OSError):
            raise self.stopped
        far = self._far(n_missing, worker)
        if isinstance(self.stopped, InputError):
            raise InputError(f"{self.stopped} {far}")
        if self.stopped is not None:
            of = f" (each of the {worker.count} workers has a budget of its own)" if worker.count > 1 else ""
            raise InputError(f"Expected a budget for all answers{of}, but {self.stopped} {far}")
        if self.n_given_up:
            raise InputError(
                f"Expected a reply to every request, but {self.n_given_up:,} answers are missing: {self.reason}. Run the same command again to ask for them. {far}"
            )
        if self.refused:
            raise InputError(
                f"Expected a reply to every question, but {far} The parts that they belong to stay unfinished. Have the server take them and run the same command again, or leave them out of the questions of another --store."
            )
        if left := [log for part in self.parts if (log := self.store.samples.log_file(part)).exists()]:
            raise InputError(
                f"Expected {str(left[0])!r} to hold all answers that came, but some are lost. Run the same command again to ask for them. {far}"
            )

    def _far(self, n_missing: int, worker: Worker) -> str:
        """How far it came, and what the server refuses, in sentences."""
        line = f"{self.n_came:,} of {n_missing:,} answers came in this run and are kept"
        if unfinished := [part.start for part in self.parts if part not in self._asked]:
            others = "other " if self.refused else ""
            whose = " of this worker" if worker.count > 1 else ""
            line += f"; every {others}question{whose} has its first {min(unfinished)} answers"
        if self.refused:
            shown = ", ".join(map(repr, list(self.refused)[:_SHOWN])) + (", …" if len(self.refused) > _SHOWN else "")
            words = next(iter(self.refused.values()))
            line += f"; the server refuses {len(self.refused):,} questions ({shown}), the first of them so: {words.rstrip('.')}"
        return f"{line}."


def _sync_all(logs: Sequence[AnswerLog]) -> None:
    for log in logs:
        log.sync()
