"""Token sequences of different lengths in batches, padded on the right.

A causal model never looks to the right, so neither a mask nor the padding's value matters to what is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sequences, shortest first, in batches of at most `batch_tokens` tokens with padding, or of one sequence.

    >>> list(by_length([3, 1, 2, 9], batch_tokens=6))
    [[1, 2], [0], [3]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and lengths[i] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids [row, token] int64."""
    longest = max(map(len, sequences))
    return torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sequences], device=device)
