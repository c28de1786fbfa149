"""Engine of the server: one thread batches the requests of all clients."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from extract.errors import InputError
from probes.saved.confidence import ConfidentModel
from probes.saved.streaming import check_streamable
from probes.serving.generation import Batch
from probes.serving.jobs import AnswerStep, Job, ScoreJob, Settings, end_jobs
from probes.serving.scoring import Scorer

if TYPE_CHECKING:
    from extract.prompts import Prompt
    from probes.saved.artefact import ConfidenceProbe
    from probes.saved.novelty import Confidences

__all__ = ["Engine", "EngineClosed", "Job", "QueueFull", "Settings"]


class QueueFull(Exception):
    """The queue of an engine is full."""


class EngineClosed(Exception):
    """The engine was closed before the request was complete."""


class Engine:
    """Scores and generates answers for many clients.

    All forward passes run in one thread. This thread alternates between scoring, prefilling new prompts, and generating
    the next token of each answer. If a pass fails, its requests fail with the same exception, and the engine continues.
    Options in the model's generation config, such as a repetition penalty, are ignored.

    Args:
        probe: Trained probe.
        hf_model: The transformers model that the probe was trained on. Nothing else may use it at the same time.
        tokenizer: Tokenizer of the model.
        max_batch_size: Maximum number of rows in a forward pass.
        max_queue: Maximum number of waiting requests.

    Raises:
        InputError: If the model differs from the probe's model.
    """

    def __init__(
        self,
        probe: ConfidenceProbe,
        hf_model: Any,
        tokenizer: Any,
        *,
        max_batch_size: int = 32,
        max_queue: int = 256,
    ) -> None:
        self._max_batch_size, self._max_queue = max_batch_size, max_queue
        self._to_score, self._to_generate = deque[ScoreJob](), deque[Job]()
        self._running: list[Job | ScoreJob] = []
        self._changed, self._is_closed, self._seconds_busy = threading.Condition(), False, 0.0
        self._counts = dict.fromkeys(("n_requests", "n_rejected", "n_passes", "n_rows", "n_tokens"), 0)
        attached: Future[None] = Future()
        # torch starts OpenMP threads for each thread that runs a model, so the engine's thread attaches the probe
        parts = (attached, probe, hf_model, tokenizer)
        self._thread = threading.Thread(target=self._run, args=parts, name="engine", daemon=True)
        self._thread.start()
        attached.result()

    def encode(self, prompt: Prompt) -> list[int]:
        """Convert a string or chat to token ids, using the probe's prompt template.

        Raises:
            InputError: If the prompt is empty or too long for the model.
        """
        return self._model._encode(prompt, None)[0]

    def score(
        self, prompts: Sequence[list[int]], answers: Sequence[str] | None, backoff: bool = True
    ) -> Future[Confidences]:
        """Return a future with the confidences [prompt] of the questions, or of the `answers` if given.

        `prompts` are token ids from `encode`. See `ConfidentModel.score` for the other arguments.

        Raises:
            QueueFull: If too many requests are waiting.
            EngineClosed: If the engine was closed.
            InputError: If there are no prompts, if any prompt is empty, is too long or contains unknown tokens, or if
                `answers` does not match the probe or the prompts.
        """
        from extract.models.loading import check_prompts

        prompts = [list(prompt) for prompt in prompts]
        if not prompts:
            raise InputError("Expected `prompts` to contain at least one question, but it is empty. Pass a question.")
        contents = self._model._encode_answers(answers, len(prompts))
        check_prompts(self._model._model, prompts)
        if contents is not None:
            sequences = [prompt + content for prompt, content in zip(prompts, contents, strict=True)]
            check_prompts(self._model._model, sequences, name="prompt and answer")
        job = ScoreJob(prompts, contents, backoff)
        self._put(job, self._to_score)
        return job.future

    def generate(
        self,
        prompt: list[int],
        settings: Settings,
        on_step: Callable[[AnswerStep], None],
        on_end: Callable[[str | BaseException], None],
        backoff: bool = True,
    ) -> Job:
        """Queue the generation of an answer, and return its job.

        The callbacks run in the engine's thread and must return at once.

        Args:
            prompt: Token ids of the prompt, as returned by `encode`.
            settings: Settings of the answer.
            on_step: Called with each step (see `ConfidentModel.stream`). If it raises an exception, generation ends
                with that exception.
            on_end: Called once, after the last step, with the finish reason or, on failure, the exception. The reasons
                are "stop" (end-of-sequence token or stop string), "length" (`max_tokens` or the context of the model)
                and "cancelled".
            backoff: Whether to shift the confidence for a novel question. See `Confidences`.

        Raises:
            QueueFull, EngineClosed: See `score`.
            InputError: If the prompt is empty or leaves no room for an answer, or if the probe reads token signals
                pooled over the answer.
        """
        from extract.models.loading import check_prompts

        check_streamable(self._model.probe)
        check_prompts(self._model._model, [prompt], n_further=1)
        job = Job(list(prompt), settings, on_step, on_end, backoff)
        self._put(job, self._to_generate)
        return job

    def counts(self) -> dict[str, float]:
        """Return a dict with the counts of requests, passes, rows and tokens.

        `queued` and `running` are the current numbers of requests. `n_rejected` counts requests refused with
        `QueueFull`. `n_passes` counts the batches that the model processed, and `n_rows` counts their rows. `n_tokens`
        includes end-of-sequence tokens and stop strings. `seconds_busy` is the total processing time.
        """
        with self._changed:
            queued = len(self._to_score) + len(self._to_generate)
            running = sum(not job.has_ended for job in self._running)
            return {"queued": queued, "running": running, **self._counts, "seconds_busy": self._seconds_busy}

    @property
    def is_closed(self) -> bool:
        """Whether the engine refuses requests because it was closed or its thread failed."""
        return self._is_closed

    def close(self, timeout: float = 10.0) -> None:
        """Refuse new requests, end unfinished ones with `EngineClosed`, and wait for the engine's thread to finish.

        The thread can't stop during a forward pass, so the wait is limited to `timeout` seconds.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _put(self, job: Any, queue: deque[Any]) -> None:
        with self._changed:
            if self._is_closed:
                raise EngineClosed("The engine is closed.")
            if len(self._to_score) + len(self._to_generate) >= self._max_queue:
                self._counts["n_rejected"] += 1
                raise QueueFull(f"{self._max_queue} requests are waiting. Try again later.")
            self._counts["n_requests"] += 1
            queue.append(job)
            self._changed.notify()

    # The methods below run in the engine's thread.

    def _run(self, attached: Future[None], *parts: Any) -> None:
        """Attach the probe, and process requests until the engine is closed."""
        try:
            self._model = ConfidentModel(*parts)
            # the first call sets options of the tokenizer, so it must not run in several threads at once
            self._model.tokenizer("a", add_special_tokens=False)
            self._model.starts.read()
            self._batch = Batch(self._model, self._max_batch_size)
            self._scorer = Scorer(self._model, self._max_batch_size)
        except BaseException as error:
            attached.set_exception(error)
            return
        attached.set_result(None)
        try:
            while (joining := self._next_requests()) is not None:
                start = time.perf_counter()
                if n_rows := self._scorer.step():
                    self._count(n_rows)
                self._join(joining)
                self._step()
                with self._changed:
                    self._seconds_busy += time.perf_counter() - start
        finally:
            self._end_all(EngineClosed("The engine was closed."))

    def _next_requests(self) -> list[Job] | None:
        """Wait for requests, and forward scoring requests to the scorer.

        Returns the answers to generate next, or None if the engine is closed.
        """
        with self._changed:
            self._running = [job for job in self._running if not job.has_ended]
            self._changed.wait_for(
                lambda: self._is_closed or self._to_score or self._to_generate or self._scorer.jobs or self._batch.rows
            )
            if self._is_closed:
                return None
            cancelled = [job for job in self._to_generate if job.is_cancelled]
            for job in cancelled:
                self._to_generate.remove(job)
            joining = self._batch.fitting(self._to_generate)
            for job in joining:
                self._to_generate.remove(job)
            while self._to_score and len(self._scorer.jobs) < self._max_batch_size:
                scoring = self._to_score.popleft()
                if not scoring.has_ended:  # cancelled
                    self._scorer.jobs.append(scoring)
                    self._running.append(scoring)
            self._running += joining
        for job in cancelled:  # without the lock, because `end` calls a callback
            job.end("cancelled")
        return joining

    def _join(self, jobs: Sequence[Job]) -> None:
        """Prefill the prompts of new jobs."""
        if jobs:
            try:
                self._batch.join(jobs)
                self._count(len(jobs), n_tokens=len(jobs))
            except Exception as error:  # ends only the answers of this pass; the engine continues
                end_jobs(jobs, error, f"Reading {len(jobs)} prompts")

    def _step(self) -> None:
        """Remove cancelled answers, and generate one token for each remaining answer."""
        try:
            self._batch.drop_cancelled()
            if n_rows := len(self._batch.rows):
                self._batch.step()
                self._count(n_rows, n_tokens=n_rows)
        except Exception as error:  # ends only the answers of this pass; the engine continues
            end_jobs([row.job for row in self._batch.rows], error, "Generating answers")
            self._batch.clear()

    def _count(self, n_rows: int, n_tokens: int = 0) -> None:
        with self._changed:
            self._counts["n_passes"] += 1
            self._counts["n_rows"] += n_rows
            self._counts["n_tokens"] += n_tokens

    def _end_all(self, error: EngineClosed) -> None:
        with self._changed:
            self._is_closed = True  # `close` was not called if the thread failed
            waiting: list[Job | ScoreJob] = [*self._to_score, *self._to_generate]
            self._to_score.clear()
            self._to_generate.clear()
        for job in waiting:
            job.end(error)
        self._scorer.fail(error)
        self._batch.fail(error)
