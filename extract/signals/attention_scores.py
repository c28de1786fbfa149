"""Attention scores of chosen queries, a chunk at a time: what a model's attention has before its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.token_spans import Rows

#: Score of a key that a query can't see. Its exponential is exactly 0, and 0 times it is 0 and not NaN as with −inf.
HIDDEN = -1e30

#: Scores in memory at a time on a CPU, where they should stay in the cache.
_CACHED = 1 << 19

#: Scores in memory at a time on a GPU, where every chunk costs launches, for each of at most 8 rows.
_OF_ROW = 1 << 23


@dataclass(frozen=True)
class Places:
    """Where queries of interest and keys stand, in one pass over a batch.

    A place counts a row's tokens from 0, with those that were read before the pass and without padding.

    Attributes:
        index: [row, query] int64, each query among the tokens of the pass.
        query: [row, query] int64, its place.
        key: [row, key] int64, the place of each key.
        valid: [row, query] bool, whether the row has so many queries; what is said of the others is 0.
        n_tokens: [row] int64 N, tokens of prompt and answer.
        sink: [row] int64, the key at place 0.
        rows: What the places are of.
    """

    index: Tensor
    query: Tensor
    key: Tensor
    valid: Tensor
    n_tokens: Tensor
    sink: Tensor
    rows: Rows

    @staticmethod
    def of(rows: Rows, n_queries: int, n_keys: int, last: bool, device: torch.device) -> Places:
        """Places of a pass over `n_queries` tokens of a row, with `n_keys` keys.

        Args:
            rows: Where the answers stand.
            n_queries: Tokens of the pass.
            n_keys: Keys, those that were there before first.
            last: Whether to look at y_n's own place too, one more than those that drew y_1 … y_n.
            device: Where to put the tensors.
        """
        first, n_answer = torch.tensor(rows.first), torch.tensor(rows.n_tokens)
        pad = torch.tensor(rows.n_pad or [0] * len(first))
        step = torch.arange(rows.widest + last)
        key = torch.arange(n_keys).expand(len(first), -1)
        return Places(
            index=query_index(rows, last).clamp_max(n_queries - 1).to(device),
            query=(rows.n_before + first - pad)[:, None].add(step).to(device),
            key=torch.where(key < rows.n_before, key, key - pad[:, None]).to(device),
            valid=(step < (n_answer + last)[:, None]).to(device),
            n_tokens=(rows.n_before + first - pad + 1 + n_answer).to(device),
            sink=(pad * (rows.n_before == 0)).to(device),
            rows=rows,
        )


def query_index(rows: Rows, last: bool) -> Tensor:
    """[row, query] int64 indices into a pass's tokens of what drew y_1 … y_n, and with `last` of y_n's own place.

    Rows with fewer tokens have indices behind them.
    """
    return torch.tensor(rows.first)[:, None] + torch.arange(rows.widest + last)


class Chunk(NamedTuple):
    """Scores of some queries.

    Attributes:
        queries: Which.
        n_keys: Keys that any of them can see; those behind are left out.
        n_visible: [row, query] int64 keys that each can see.
        scores: [row, head, query, key] float32 of some heads at a time, `HIDDEN` where a query can't see a key.
    """

    queries: slice
    n_keys: int
    n_visible: Tensor
    scores: Iterator[Tensor]


def score_chunks(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    places: Places,
    scaling: float | None = None,
    softcap: float | None = None,
) -> Iterator[Chunk]:
    """The scores that a causal attention function computes, of the queries at `places` alone.

    Args:
        query: [row, head, token, d_head], any float dtype.
        key: [row, key head, key, d_head]; each key head serves as many successive heads.
        mask: [row, 1, token, key], bool (true: visible) or added to the scores; None lets every token see those before it.
        places: Where to look.
        scaling: Multiplies the scores; None for 1/√d_head.
        softcap: Scores s become softcap · tanh(s / softcap).

    Raises:
        InputError: A mask that differs between heads.
    """
    (n_rows, n_heads, _, d_head), n_key_heads = query.shape, key.shape[1]
    if mask is not None and mask.shape[1] != 1:
        raise InputError(
            f"Expected one attention mask for all heads, but got {mask.shape[1]}. This architecture's attention can't be read; use another model."
        )
    at = places.index[:, None, :, None].expand(-1, n_heads, -1, d_head)
    queries = query.gather(2, at).float() * (d_head**-0.5 if scaling is None else scaling)
    queries = queries.unflatten(1, (n_key_heads, -1))  # [row, key head, head of it, query, d_head]
    keys = key.float().mT
    n_queries, row = places.index.shape[1], n_rows * (n_heads // n_key_heads) * key.shape[2]
    budget = _CACHED if query.device.type == "cpu" else _OF_ROW * min(n_rows, 8)
    n_groups = min(n_key_heads, max(1, budget // (row * min(n_queries, 32))))
    size = min(n_queries, max(1, budget // (row * n_groups)))

    def of_heads(part: slice, n_keys: int, sight: _Sight) -> Iterator[Tensor]:
        for group in range(0, n_key_heads, n_groups):
            some = slice(group, group + n_groups)
            of_some = queries[:, some, :, part]
            scores = of_some.flatten(2, 3) @ keys[:, some, :, :n_keys]
            scores = scores.unflatten(2, of_some.shape[2:4]).flatten(1, 2)
            if softcap is not None:
                scores = scores.div_(softcap).tanh_().mul_(softcap)
            yield sight.hide(scores)

    start_of_last = places.rows.n_before + max(places.rows.first)
    for start in range(0, n_queries, size):
        part = slice(start, min(start + size, n_queries))
        n_keys = min(start_of_last + part.stop, key.shape[2])
        sight = _causal(places, part, n_keys) if mask is None else _masked(mask, places, part, n_keys)
        yield Chunk(part, n_keys, sight.n_visible, of_heads(part, n_keys, sight))


class _Sight(NamedTuple):
    """What the queries of a chunk see of the keys from `start` on; all see those before.

    Attributes:
        start: First key that `hidden` is of.
        hidden: [row, query, key − start] bool.
        bias: As `hidden`, float32, added to the scores.
        n_visible: [row, query] int64.
    """

    start: int
    hidden: Tensor
    bias: Tensor | None
    n_visible: Tensor

    def hide(self, scores: Tensor) -> Tensor:
        """Scores [row, head, query, key] with the mask applied, in place."""
        tail = scores[..., self.start :]
        if self.bias is not None:
            tail += self.bias[:, None]
        tail.masked_fill_(self.hidden[:, None], HIDDEN)
        return scores


def _causal(places: Places, part: slice, n_keys: int) -> _Sight:
    own = places.rows.n_before + places.index[:, part]  # the key of the query's own token
    start = min(places.rows.n_before + min(places.rows.first) + part.start + 1, n_keys)
    return _Sight(start, torch.arange(start, n_keys, device=own.device) > own[..., None], None, own + 1)


def _masked(mask: Tensor, places: Places, part: slice, n_keys: int) -> _Sight:
    index = places.index[:, part]
    row = torch.arange(len(index), device=mask.device)[:, None]
    rows = mask[:, 0, :, :n_keys].expand(len(index), -1, -1)[row, index]
    if mask.dtype == torch.bool:
        return _Sight(0, ~rows, None, rows.sum(-1))
    hidden = rows <= torch.finfo(mask.dtype).min / 2
    return _Sight(0, hidden, rows.float().masked_fill(hidden, 0.0), (~hidden).sum(-1))
