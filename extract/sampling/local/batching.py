"""Batches, padding, and the common prefix of prompts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: The length of a common prefix is a multiple of this.
_PREFIX_STEP = 16


def left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompt ids and mask, both [question, token] int64, padded on the left to the longest prompt."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


def common_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Longest common prefix of all prompts that leaves at least one token of each.

    Its length is a multiple of 16, so that equal first words of some questions rarely change it.
    """
    first, last = min(map(list, prompts)), max(map(list, prompts))  # the prefix common to these two is common to all
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    length = min(shared, min(map(len, prompts)) - 1)
    return list(first[: length - length % _PREFIX_STEP])


class Row(NamedTuple):
    """Answer to draw: its temperature and its sample index."""

    temperature: float
    sample: int


def rows_of(temperatures: Sequence[float], samples: range) -> list[Row]:
    """Answers to draw per question. In a grid, temperature 0 is drawn once, because its answers are equal."""
    once = len(temperatures) > 1
    return [Row(t, j) for t in temperatures for j in (samples[:1] if once and t == 0 else samples)]


def batches(lengths: Sequence[int], n_rows: int, max_rows: int) -> Iterator[list[int]]:
    """Batches of question indices, shortest prompts first: `n_rows` answers per question, at most `max_rows` in all."""
    by_length = sorted(range(len(lengths)), key=lambda i: lengths[i])
    n_questions = max(1, max_rows // n_rows)
    return (by_length[start : start + n_questions] for start in range(0, len(by_length), n_questions))
