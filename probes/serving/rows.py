"""An answer that is being generated: its tokens, its text, its draws and its end."""

from __future__ import annotations

import random
from collections.abc import Container
from typing import TYPE_CHECKING

from probes.saved.running_confidence import RunningConfidence
from probes.saved.streamed_text import StreamedText
from probes.saved.streaming import Step

if TYPE_CHECKING:
    from probes.saved.confidence import ConfidentModel
    from probes.serving.jobs import Job


class Row:
    """One answer of a batch.

    Args:
        model: Model with an attached probe.
        job: Request for the answer.
        ends: End tokens.
        context: Maximum number of tokens in a prompt and its answer.

    Attributes:
        drawn: Token ids of the answer so far.
        confidence: Confidence of the answer so far.
    """

    def __init__(self, model: ConfidentModel, job: Job, ends: Container[int], context: float) -> None:
        self.job, self.drawn, self.confidence = job, list[int](), RunningConfidence(model.probe, job.backoff)
        self._model, self._ends, self._stop = model, ends, [*model._stop, *job.settings.stop]
        self._limit = min(job.settings.max_tokens, context - len(job.prompt))
        self._text = StreamedText(model.tokenizer, self._stop)
        self._random = random.Random(job.settings.seed)

    def uniform(self) -> float:
        """Return the next uniform number in [0, 1). It depends only on the seed and the number of draws so far."""
        return self._random.random() if self.job.settings.temperature else 0.0

    def add(self, token: int) -> str | None:
        """Add a drawn token and report the step. At the end of the answer, also report the last step.

        Returns:
            The finish reason, or None if the answer continues.
        """
        self.drawn.append(token)
        text = self._text
        text.ended |= token in self._ends
        if not text.ended:
            piece, n = text.add(token), len(self.drawn)
            self.job.report(Step(text.shown, piece, *self.confidence.after(n), n))
        if not text.ended and len(self.drawn) < self._limit:
            return None
        (complete,), (content,) = self._model._contents([self.drawn], self._stop)
        numbers = self.confidence.at_end(len(content))
        self.job.report(Step(complete, complete[len(text.shown) :], *numbers, len(content)))
        return "stop" if text.ended else "length"
