"""Engine behind the server: one thread owns the model and the probe, and batches the requests of all clients."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from extract.errors import InputError
from probes.saved.confidence import ConfidentModel
from probes.saved.novelty import Confidences
from probes.saved.streaming import Step

if TYPE_CHECKING:
    from extract.prompts import Prompt
    from probes.saved.artefact import ConfidenceProbe


class QueueFull(Exception):
    """The queue of an engine is full."""


class EngineClosed(Exception):
    """The engine was closed before a job had ended."""


@dataclass(frozen=True)
class Settings:
    """Settings of one generated answer.

    Attributes:
        max_tokens: Maximum number of tokens. The context of the model can end the answer earlier.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus sampling: probability mass from which tokens are drawn, in (0, 1].
        seed: Seed of the draws. With the same seed, an answer does not depend on the other requests. If None, the
            draws are different in every request.
        stop: Strings that end the answer, in addition to those of the probe.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Job:
    """One generated answer. See `Engine.generate`."""

    def __init__(
        self,
        prompt: list[int],
        settings: Settings,
        on_step: Callable[[Step], None],
        on_end: Callable[[str | BaseException], None],
        backoff: bool,
    ) -> None:
        self.prompt, self.settings, self.backoff = prompt, settings, backoff
        self.on_step, self.on_end = on_step, on_end
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the answer at the next step, from any thread. An answer that has ended is not changed."""
        self.is_cancelled = True


@dataclass
class _Scoring:
    """A waiting request for confidences."""

    prompts: list[list[int]]
    answers: list[str] | None
    backoff: bool
    future: Future[Confidences]


class Engine:
    """Scores and generates answers for many clients. All passes of the model run in one thread.

    Args:
        probe: Trained probe.
        hf_model: The transformers model that the probe was trained on.
        tokenizer: Tokenizer of the model.
        max_batch_size: Maximum number of rows in a pass.
        max_queue: Maximum number of requests that wait.

    Raises:
        InputError: If the probe does not fit the model.
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
        self._model = ConfidentModel(probe, hf_model, tokenizer)
        self._max_batch_size, self._max_queue = max_batch_size, max_queue
        self._waiting: deque[_Scoring | Job] = deque()
        self._running: list[_Scoring | Job] = []
        self._changed, self._is_closed = threading.Condition(), False
        self._counts = dict.fromkeys(("n_requests", "n_rejected", "n_passes", "n_rows", "n_tokens"), 0)
        self._seconds_busy = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a text or chat in the prompt template of the probe.

        Raises:
            InputError: If the prompt is empty or too long for the model.
        """
        return self._model._encode(prompt, None)[0]

    def score(
        self, prompts: Sequence[list[int]], answers: Sequence[str] | None, backoff: bool = True
    ) -> Future[Confidences]:
        """Compute confidences of questions, or of given answers. See `ConfidentModel.score`.

        Args:
            prompts: Token ids of the prompts, as returned by `encode`.
            answers: One answer per prompt if the probe reads answers, and None otherwise.
            backoff: Whether to back off the confidences of novel questions. See `Confidences`.

        Returns:
            Future of the confidences [prompt]. It can be cancelled.

        Raises:
            QueueFull: If too many requests wait.
            EngineClosed: If the engine was closed.
            InputError: If there are no prompts, or `answers` does not fit the probe and the prompts.
        """
        job = _Scoring(list(prompts), None if answers is None else list(answers), backoff, Future())
        self._put(job)
        return job.future

    def generate(
        self,
        prompt: list[int],
        settings: Settings,
        on_step: Callable[[Step], None],
        on_end: Callable[[str | BaseException], None],
        backoff: bool = True,
    ) -> Job:
        """Generate an answer. The callbacks are called in the thread of the engine and must return at once.

        Args:
            prompt: Token ids of the prompt, as returned by `encode`.
            settings: Settings of the answer.
            on_step: Called with each step, as returned by `ConfidentModel.stream`. The last step repeats the complete
                answer.
            on_end: Called once, after the last step, with the finish reason: "stop" (end token or stop string),
                "length" (`max_tokens` or the context of the model) or "cancelled". If the answer failed, it is called
                with the exception instead.
            backoff: Whether to back off the confidence of a novel question. See `Confidences`.

        Raises:
            QueueFull: If too many requests wait.
            EngineClosed: If the engine was closed.
            InputError: If the prompt is empty or too long, or the settings are invalid.
        """
        job = Job(list(prompt), settings, on_step, on_end, backoff)
        self._put(job)
        return job

    def counts(self) -> dict[str, float]:
        """Return counts since the start, by name.

        `queued` and `running` are the current numbers of requests that wait and that are being processed. `n_requests`
        and `n_rejected` count accepted requests and those refused with `QueueFull`. `n_passes` counts passes of the
        model, `n_rows` their rows, `n_tokens` generated tokens, and `seconds_busy` the time spent in passes.
        """
        with self._changed:
            return {
                "queued": len(self._waiting),
                "running": len(self._running),
                **self._counts,
                "seconds_busy": self._seconds_busy,
            }

    def close(self, timeout: float = 10.0) -> None:
        """Refuse further requests, end all jobs with `EngineClosed`, and wait until the thread has ended.

        Args:
            timeout: Maximum time to wait in seconds. The thread can't end during a pass of the model.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _put(self, job: _Scoring | Job) -> None:
        with self._changed:
            if self._is_closed:
                raise EngineClosed("The engine is closed.")
            if len(self._waiting) >= self._max_queue:
                self._counts["n_rejected"] += 1
                raise QueueFull(f"{self._max_queue} requests are waiting. Try again later.")
            self._counts["n_requests"] += 1
            self._waiting.append(job)
            self._changed.notify()

    def _run(self) -> None:
        """Process jobs until the engine is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    break
                job = self._waiting.popleft()
                self._running = [job]
            start = time.perf_counter()
            if isinstance(job, _Scoring):
                self._score(job)
            else:
                self._generate(job)
            with self._changed:
                self._running = []
                self._seconds_busy += time.perf_counter() - start
        error = EngineClosed("The engine is closed.")
        for job in self._waiting:
            if isinstance(job, Job):
                job.on_end(error)
            elif job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)
        self._waiting.clear()

    def _score(self, job: _Scoring) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            found = self._model.score(job.prompts, job.answers, backoff=job.backoff)
        except Exception as error:
            job.future.set_exception(error)
        else:
            self._counts["n_passes"] += 1
            self._counts["n_rows"] += len(job.prompts)
            job.future.set_result(found)

    def _generate(self, job: Job) -> None:
        settings, hf_model = job.settings, self._model._model
        options: dict[str, Any] = {"max_new_tokens": settings.max_tokens, "do_sample": settings.temperature > 0}
        if settings.temperature > 0:
            options |= {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
        stop = [*self._model._stop, *settings.stop]
        options |= {"stop_strings": stop, "tokenizer": self._model.tokenizer} if stop else {}
        if settings.seed is not None:
            torch.manual_seed(settings.seed)
        last: Step | None = None
        try:
            for last in self._model.stream(torch.tensor([job.prompt], device=hf_model.device), job.backoff, **options):
                job.on_step(last)
                self._counts["n_passes"] += 1
                self._counts["n_rows"] += 1
                self._counts["n_tokens"] += 1
                if job.is_cancelled or self._is_closed:
                    break
        except Exception as error:
            job.on_end(error)
            return
        if self._is_closed:
            job.on_end(EngineClosed("The engine is closed."))
        elif job.is_cancelled:
            job.on_end("cancelled")
        else:
            job.on_end("length" if last is None or last.n_tokens >= settings.max_tokens else "stop")


__all__ = ["Engine", "EngineClosed", "InputError", "Job", "QueueFull", "Settings"]
