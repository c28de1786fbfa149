"""Requests to the engine: to generate one answer, or to score one or more rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from extract.errors import InputError
from extract.text import one_line
from probes.saved.novelty import Confidences
from probes.saved.streaming import Step

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Settings for generating one answer.

    Attributes:
        max_tokens: Maximum number of tokens, at least 1.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Probability mass of the tokens that can be drawn (nucleus sampling), in (0, 1].
        seed: Seed for sampling. With a seed, the answer does not depend on concurrent requests.
        stop: Strings that end the answer, in addition to the probe's stop strings.
        top_k: How many of the most likely tokens to sample from; 0 means all.
        entropy: Whether to compute the entropies of the tokens. See `AnswerStep`.

    Raises:
        InputError: If a value is invalid.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_k: int = 0
    entropy: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"Expected `max_tokens` to be at least 1, but got {self.max_tokens}.")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise InputError(
                f"Expected `temperature` to be at least 0, but got {self.temperature}. Pass 0 for greedy decoding."
            )
        if not 0 < self.top_p <= 1:
            raise InputError(f"Expected `top_p` to be above 0 and at most 1, but got {self.top_p}.")
        if self.top_k < 0:
            raise InputError(f"Expected `top_k` to be at least 0, but got {self.top_k}. Pass 0 to keep all tokens.")
        if not all(self.stop):
            raise InputError("Expected `stop` to contain only non-empty strings, but one is empty.")


@dataclass(frozen=True)
class AnswerStep(Step):
    """Step of a generated answer. See `Step`.

    Attributes:
        entropies: Next-token entropies in nats for the tokens of `piece`, before temperature, top-p and top-k. None if
            they were not requested. If a token's text is withheld, its entropy comes with a later piece.
    """

    entropies: tuple[float, ...] | None = None


class Job:
    """A request for one generated answer. See `Engine.generate`."""

    def __init__(
        self,
        prompt: list[int],
        settings: Settings,
        on_step: Callable[[AnswerStep], None],
        on_end: Callable[[str | BaseException], None],
        backoff: bool,
    ) -> None:
        self.prompt, self.settings, self.backoff, self.report = prompt, settings, backoff, on_step
        self.is_cancelled, self.has_ended, self._on_end = False, False, on_end

    def cancel(self) -> None:
        """Stop generating the answer at the next step. Any thread can call this method."""
        self.is_cancelled = True

    def end(self, result: str | BaseException) -> None:
        """Report a finish reason or an exception, unless the job has already ended."""
        if not self.has_ended:
            self.has_ended = True
            try:
                self._on_end(result)
            except Exception as error:  # the engine continues with the other jobs
                log_failure("A callback at the end of an answer", error)


class ScoreJob:
    """A request for the confidences of prompts, or of their answers if the probe reads answers.

    `prompts` and `answers` contain token ids. A row is a prompt, followed by its answer if the probe reads answers.

    Attributes:
        rows: Indices of the rows that have not been read, shortest row first.
        future: Future for the confidences. It can be cancelled until it has a result.
    """

    def __init__(self, prompts: list[list[int]], answers: list[list[int]] | None, backoff: bool) -> None:
        self.prompts, self.answers, self.backoff = prompts, answers, backoff
        lengths = [len(prompt) + (0 if answers is None else len(answers[i])) for i, prompt in enumerate(prompts)]
        self.rows = sorted(range(len(prompts)), key=lambda i: lengths[i])
        self.future: Future[Confidences] = Future()
        self._found = dict[int, Confidences]()

    @property
    def has_ended(self) -> bool:
        """Whether the request has completed, failed or been cancelled."""
        return self.future.done()

    def add(self, row: int, found: Confidences) -> None:
        """Add the confidences of one row, as tensors of shape [1].

        The request is complete when all rows have been added.
        """
        self._found[row] = found
        if len(self._found) == len(self.prompts) and self.future.set_running_or_notify_cancel():
            ordered = [self._found[i] for i in range(len(self.prompts))]
            self.future.set_result(Confidences(*map(torch.cat, zip(*ordered, strict=True))))

    def end(self, error: BaseException) -> None:
        """Fail the request with an exception, unless it has already ended."""
        self.rows = []
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def log_failure(what: str, error: BaseException) -> None:
    """Log an exception on one line. The traceback is logged only at DEBUG level."""
    traceback = error if _log.isEnabledFor(logging.DEBUG) else None
    _log.error("%s failed: %s: %s", what, type(error).__name__, one_line(error, 500), exc_info=traceback)


def end_jobs(jobs: Iterable[Job | ScoreJob], error: Exception, what: str) -> None:
    """Log an exception and a description of what failed. Then fail the requests with that exception.

    The traceback is removed from the exception after logging.
    """
    log_failure(what, error)
    error = error.with_traceback(None)
    for job in jobs:
        job.end(error)
