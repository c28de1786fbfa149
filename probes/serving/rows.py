"""State of an answer that is being generated: its tokens, text and random draws."""

from __future__ import annotations

import random
from collections.abc import Container
from typing import TYPE_CHECKING

from probes.saved.running_confidence import RunningConfidence
from probes.saved.streamed_text import StreamedText
from probes.serving.jobs import AnswerStep

if TYPE_CHECKING:
    from probes.saved.confidence import ConfidentModel
    from probes.serving.jobs import Job


class Row:
    """One answer in a batch.

    `ends` are the ids of end-of-sequence tokens. `context` is the maximum number of tokens in the prompt and
    the answer together.

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
        self._entropies, self._n_shown = list[float](), 0  # entropies of the tokens so far, and number already reported

    def uniform(self) -> float:
        """Return the next random number in [0, 1), or 0 for greedy decoding.

        It depends only on the seed and the number of past draws.
        """
        return self._random.random() if self.job.settings.temperature else 0.0

    def add(self, token: int, entropy: float | None = None) -> str | None:
        """Add a generated token and the entropy of the distribution that predicted it, and report a new `AnswerStep`.

        When the answer ends, the last reported step contains the complete answer. Returns the finish reason, or None if
        the answer continues.
        """
        self.drawn.append(token)
        if entropy is not None:
            self._entropies.append(entropy)
        text = self._text
        text.ended |= token in self._ends
        if not text.ended:
            piece, n = text.add(token), len(self.drawn)
            entropies = self._entropies_of_piece(n if piece else 0)
            self.job.report(AnswerStep(text.shown, piece, *self.confidence.after(n), n, entropies))
        if not text.ended and len(self.drawn) < self._limit:
            return None
        (complete,), (content,) = self._model._contents([self.drawn], self._stop)
        n, piece = len(content), complete[len(text.shown) :]
        numbers = self.confidence.at_end(n)
        self.job.report(AnswerStep(complete, piece, *numbers, n, self._entropies_of_piece(n)))
        return "stop" if text.ended else "length"

    def _entropies_of_piece(self, n: int) -> tuple[float, ...] | None:
        """Return the entropies of the first `n` tokens, except those already reported; None if none were requested."""
        if not self.job.settings.entropy:
            return None
        start, self._n_shown = self._n_shown, max(n, self._n_shown)
        return tuple(self._entropies[start : self._n_shown])
