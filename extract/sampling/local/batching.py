"""Which prompts and answers go together: batches, padding, and what all prompts begin with."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: A common prefix is cut to a multiple of this.
_PREFIX_STEP = 16


def left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompt ids and mask, both [question, token] int64, padded on the left to the longest prompt."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


def common_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Tokens that all prompts begin with, as many as leave one token of each.

    A multiple of 16, so that the words that some questions begin with by chance seldom change it.
    """
    first, last = min(map(list, prompts)), max(map(list, prompts))  # what these two share, all share
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    length = min(shared, min(map(len, prompts)) - 1)
    return list(first[: length - length % _PREFIX_STEP])


class Row(NamedTuple):
    """An answer to be drawn: at which temperature, and its index j."""

    temperature: float
    sample: int


def rows_of(temperatures: Sequence[float], samples: range) -> list[Row]:
    """The answers that are drawn to each question; of several temperatures, 0 gives equal answers and is drawn once."""
    once = len(temperatures) > 1
    return [Row(t, j) for t in temperatures for j in (samples[:1] if once and t == 0 else samples)]


def batches(lengths: Sequence[int], n_rows: int, max_rows: int) -> Iterator[list[int]]:
    """Questions that are answered together, shortest prompts first: at most `max_rows` answers, `n_rows` to each."""
    by_length = sorted(range(len(lengths)), key=lambda i: lengths[i])
    n_questions = max(1, max_rows // n_rows)
    return (by_length[start : start + n_questions] for start in range(0, len(by_length), n_questions))
