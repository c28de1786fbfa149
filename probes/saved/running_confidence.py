"""Confidence in an answer after each of its tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probes.saved.novelty import Confidences
from probes.saved.sequence_head import SequenceHead

if TYPE_CHECKING:
    from probes.saved.artefact import ConfidenceProbe


class RunningConfidence:
    """Confidence for a question, or for an answer after each of its tokens.

    Args:
        probe: Trained probe.
        backoff: Whether to shift the confidences of novel questions. See `Confidences`.
    """

    def __init__(self, probe: ConfidenceProbe, backoff: bool) -> None:
        self.probe, self.backoff = probe, backoff
        self._running = RunningScore(probe)
        #: Scores [1] and features [1, d_model] of the first t tokens of the answer, for t = 1, 2, …
        self._scores, self._features = list[Tensor](), list[Tensor]()
        #: Confidence, novelty and `is_novel` after t tokens of the answer, for t = 0 (only the question), 1, 2, …
        self._found = list[Tensor]()

    @property
    def has_read_prompt(self) -> bool:
        """Whether the prompt has been read."""
        return bool(self._found)

    def after(self, n_drawn: int) -> tuple[float, float, bool, int]:
        """Return `confidence`, `novelty`, `is_novel` and `n_read` of the `Step` after `n_drawn` tokens."""
        n_read = n_drawn - 1 if self.probe.reads_answers else 0
        confidence, novelty, is_novel = self._found[n_read].tolist()
        return confidence, novelty, is_novel == 1, n_read

    def at_end(self, n_tokens: int) -> tuple[float, float, bool, int]:
        """Return the same fields as `after`, for a complete answer with `n_tokens` tokens."""
        n_read = min(n_tokens, len(self._scores))
        if n_read:
            self._found[n_read:] = []
            self._scores[n_read:], self._features[n_read:] = [], []
            _add_scored([self], fraction=1.0, wait=True)
        return self.after(n_read + 1)

    def _update(self, state: Tensor) -> float:
        """Add a token, given its hidden state. Return the estimated fraction of the answer that has been read."""
        self._scores.append(self._running.update(state))
        self._features.append(self._running.features)
        prefixes = self.probe.prefixes
        return 1.0 if prefixes is None else prefixes.expected_fraction(len(self._scores))


def add_prompts(rows: Sequence[RunningConfidence], found: Confidences | None, wait: bool = False) -> None:
    """Record each row's initial confidence (before the first answer token).

    `found` contains the confidences of the questions. If the probe reads answers, `found` is None, and NaN is recorded.
    """
    if found is None:
        for row in rows:
            row._found.append(torch.full((3,), torch.nan))
    else:
        _add(rows, found, wait)


def add_tokens(rows: Sequence[RunningConfidence], states: Mapping[int, Tensor], wait: bool = False) -> None:
    """Update the confidence of each answer with its latest token. Only for probes that read answers.

    Args:
        rows: Running confidences of the answers. All must use the same probe.
        states: Dict from layer to hidden states [row, d_model] of the tokens.
        wait: Whether to wait until the confidences are on the CPU. If False, they are copied asynchronously. They are
            valid once a later copy from the same device has finished, such as the copy for the next token.
    """
    groups = defaultdict[tuple[float, bool], list[RunningConfidence]](list)
    layers = rows[0].probe.layers
    device = states[layers[0]].device
    together = torch.cat([states[layer].to(device) for layer in layers], 1)
    for row, state in zip(rows, together.split(1), strict=True):
        groups[row._update(state), row.backoff].append(row)
    for (fraction, _), members in groups.items():
        _add_scored(members, fraction, wait)


def _add_scored(rows: Sequence[RunningConfidence], fraction: float, wait: bool) -> None:
    """Record each answer's confidence after its latest token. All rows must have the same `backoff`.

    `fraction` is the estimated fraction of each answer that has been read. It is the same for all rows.
    """
    probe, backoff = rows[0].probe, rows[0].backoff
    confidence = probe.calibrated(torch.cat([row._scores[-1] for row in rows]), fraction)
    _add(rows, probe.with_novelty(torch.cat([row._features[-1] for row in rows]), confidence, backoff), wait)


def _add(rows: Sequence[RunningConfidence], found: Confidences, wait: bool) -> None:
    numbers = torch.stack([values.float() for values in found], 1).to("cpu", non_blocking=not wait)
    for row, of_row in zip(rows, numbers, strict=True):
        row._found.append(of_row)


class RunningScore:
    """Score of a partial answer, updated with the hidden state of each token. Only for probes that read answers.

    Attributes:
        features: Features of the tokens so far, from which the novelty is computed, [1, d_model].
    """

    features: Tensor

    def __init__(self, probe: ConfidenceProbe) -> None:
        self._head, self._position = probe.head, probe.position
        self._kept: Tensor | None = None
        self._total: Tensor | None = None
        self._n_tokens = 0

    def update(self, state: Tensor) -> Tensor:
        """Add a token, and return the score of all tokens so far, [1] float32.

        `state` is the hidden state of the token, [1, d_model].
        """
        head, kept = self._head.to(state.device), self._kept
        self._n_tokens += 1
        self._total = state.float() if self._total is None else self._total + state
        mean = (self._total / self._n_tokens).to(state.dtype)  # rounded as in the `hidden` signal
        if isinstance(head, SequenceHead):
            numbers = head.numbers(state)[None]
            self.features, self._kept = mean, numbers if kept is None else torch.cat([kept, numbers], 1)
            return head.pool(self._kept, torch.ones_like(self._kept[..., 0], dtype=torch.bool)) + head.bias
        if self._position == "mean_answer":
            state = mean
        elif self._position == "first_answer":
            self._kept = state = state if kept is None else kept
        self.features = state.float()
        return torch.as_tensor(head(state))
