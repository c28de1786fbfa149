"""Log-probabilities of continuations by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.inference_mode()
def by_hand(model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
    """Score each continuation in a pass of its own, in float64."""
    sums = []
    for continuation in continuations:
        logits = model(torch.tensor([[*prompt, *continuation]])).logits[0].double()
        logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        sums.append(sum(float(logprobs[t, token]) for t, token in enumerate(continuation)))
    return sums
