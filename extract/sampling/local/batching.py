"""Pad prompts, find their common prefix, and list the answers to draw."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: By default, the length of a common prefix in tokens is a multiple of this number.
_PREFIX_STEP = 16


def left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad prompts on the left to equal lengths. Returns ids and mask, both [question, token] int64."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


def common_prefix(prompts: Sequence[Sequence[int]], step: int = _PREFIX_STEP) -> list[int]:
    """Find the longest common prefix that is shorter than every prompt.

    Its length is rounded down to a multiple of `step`, so that different batches usually share one prefix.
    """
    first, last = min(map(list, prompts)), max(map(list, prompts))  # a prefix of these two is a prefix of all prompts
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    length = min(shared, min(map(len, prompts)) - 1)
    return list(first[: length - length % step])


class Row(NamedTuple):
    """Temperature and sample index of an answer to draw."""

    temperature: float
    sample: int


def rows_of(temperatures: Sequence[float], samples: range) -> list[Row]:
    """List the answers to draw for each question.

    If there are several temperatures, only one answer is drawn at temperature 0.
    """
    once = len(temperatures) > 1
    return [Row(t, j) for t in temperatures for j in (samples[:1] if once and t == 0 else samples)]
