"""The signal `hidden`: the residual stream at named positions of a prompt or of an answer, for every layer."""

from __future__ import annotations

from torch import Tensor

from extract.signals.base import Pass
from extract.signals.positions import ANSWER_POSITIONS, QUESTION_POSITIONS


def question_signal(read: Pass) -> dict[str, Tensor]:
    """Layers at the positions of a prompt: tensors [row, d_model] in the model's dtype by key ``layer/position``."""
    return _by_key(read, list(QUESTION_POSITIONS))


def answer_signal(read: Pass) -> dict[str, Tensor]:
    """Layers at the positions of an answer: tensors [row, d_model] in the model's dtype by key ``layer/position``."""
    return _by_key(read, list(ANSWER_POSITIONS))


def _by_key(read: Pass, positions: list[str]) -> dict[str, Tensor]:
    return {
        f"{layer}/{position}": states[:, i]
        for layer, states in read.states.items()
        for i, position in enumerate(positions)
    }
