"""Attention scores of an answer's queries, a chunk at a time, and the sums over heads and keys that are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.attention_math import HIDDEN, head_entropies, normalisers, over_heads
from extract.signals.spans import Places

#: Scores in memory at a time on a CPU, where they should stay in the cache.
_CACHED = 1 << 19

#: Scores in memory at a time on a GPU, where every chunk costs launches, for each of at most 8 rows.
_OF_ROW = 1 << 23


def read_layer(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    places: Places,
    needs: Collection[str],
    fields: tuple[Tensor, Tensor] | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
) -> dict[str, Tensor]:
    """Attention of one layer at `places`, float32 whatever the model's dtype, and 0 behind a row's places.

    Args:
        query: [row, head, token, d_head], any float dtype.
        key: [row, key head, key, d_head]; each key head serves as many successive heads.
        mask: [row, 1, token, key], bool (true: visible) or added to the scores; None for causal attention.
        places: Where the queries and keys are.
        needs: Among attention_entropy, attention_blocks and attention_macs.
        fields: Receptive fields of all keys, from `column_field` and `element_field`, for attention_blocks.
        scaling: Multiplies the scores; None for 1/√d_head.
        softcap: Scores s become softcap · tanh(s / softcap).

    Returns:
        For attention_entropy the names of `over_heads`, [row, query]. For attention_blocks `mean` [row, query, key],
        the mean over heads among the answer's places, and `sums` [row, query, normaliser] of whole rows,
        see `normalisers`. For attention_macs `largest` [row, query, key], the maximum over heads.

    Raises:
        InputError: If the mask differs between heads.
    """
    own = places.spans.n_before + places.index  # keys of the queries' own tokens
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for chunk in _score_chunks(query, key, mask, places, scaling, softcap):
        entropies, whole = _over_heads(chunk, places, needs)
        for name, values in entropies.items():
            parts[name].append(values)
        if "mean" in whole and fields is not None:
            column, element = fields[0][..., : chunk.n_keys], fields[1][:, chunk.queries, : chunk.n_keys]
            parts["sums"].append(normalisers(whole["mean"], column, element))
        columns = own.clamp_max(chunk.n_keys - 1)[:, None].expand(-1, chunk.n_visible.shape[1], -1)
        for name, weights in whole.items():
            parts[name].append(weights.gather(2, columns))
    layer = {name: torch.cat(chunks, 1) for name, chunks in parts.items()}
    behind = ~places.valid
    for name, values in layer.items():
        if name in ("mean", "largest"):  # keys behind a row's last token were taken to be that one
            values.tril_()
        values.masked_fill_(behind if values.dim() == 2 else behind[..., None], 0.0)
    return layer


def _over_heads(chunk: Chunk, places: Places, needs: Collection[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Entropies [row, query], and `mean` and `largest` over heads [row, query, key], by name."""
    n_heads, entropies = 0, []
    whole: dict[str, Tensor] = {}
    for scores in chunk.scores:
        n_heads += scores.shape[1]
        if "attention_blocks" in needs or "attention_macs" in needs:
            weights = scores.softmax(-1)
            if "attention_blocks" in needs:
                total = weights.sum(1)
                whole["mean"] = whole["mean"].add_(total) if "mean" in whole else total
            if "attention_macs" in needs:
                largest = weights.amax(1)
                whole["largest"] = torch.maximum(whole["largest"], largest) if "largest" in whole else largest
        if "attention_entropy" in needs:
            entropies.append(head_entropies(scores, places.sink, chunk.n_visible))  # overwrites the scores
    if "mean" in whole:
        whole["mean"].div_(n_heads)
    return over_heads(entropies) if entropies else {}, whole


class Chunk(NamedTuple):
    """Scores of some queries.

    Attributes:
        queries: Which queries.
        n_keys: Keys that any of them can see; those behind are left out.
        n_visible: [row, query] int64, number of keys that each can see.
        scores: [row, head, query, key] float32 of some heads at a time, `HIDDEN` where a query can't see a key.
    """

    queries: slice
    n_keys: int
    n_visible: Tensor
    scores: Iterator[Tensor]


def _score_chunks(
    query: Tensor, key: Tensor, mask: Tensor | None, places: Places, scaling: float | None, softcap: float | None
) -> Iterator[Chunk]:
    """The scores that a causal attention function computes, of the queries at `places`; arguments as of `read_layer`."""
    (n_rows, n_heads, _, d_head), n_key_heads = query.shape, key.shape[1]
    if mask is not None and mask.shape[1] != 1:
        raise InputError(
            f"Expected one attention mask for all heads, but got {mask.shape[1]}. This architecture's attention can't "
            "be read; use another model."
        )
    at = places.index[:, None, :, None].expand(-1, n_heads, -1, d_head)
    queries = query.gather(2, at).float() * (d_head**-0.5 if scaling is None else scaling)
    queries = queries.unflatten(1, (n_key_heads, -1))  # [row, key head, head of it, query, d_head]
    keys = key.float().mT
    n_queries, row = places.index.shape[1], n_rows * (n_heads // n_key_heads) * key.shape[2]
    budget = _CACHED if query.device.type == "cpu" else _OF_ROW * min(n_rows, 8)
    n_groups = min(n_key_heads, max(1, budget // (row * min(n_queries, 32))))
    size = min(n_queries, max(1, budget // (row * n_groups)))

    def of_heads(part: slice, n_keys: int, visibility: _Visibility) -> Iterator[Tensor]:
        for group in range(0, n_key_heads, n_groups):
            some = slice(group, group + n_groups)
            of_some = queries[:, some, :, part]
            scores = of_some.flatten(2, 3) @ keys[:, some, :, :n_keys]
            scores = scores.unflatten(2, of_some.shape[2:4]).flatten(1, 2)
            if softcap is not None:
                scores = scores.div_(softcap).tanh_().mul_(softcap)
            yield visibility.hide(scores)

    start_of_last = places.spans.n_before + max(places.spans.first)
    for start in range(0, n_queries, size):
        part = slice(start, min(start + size, n_queries))
        n_keys = min(start_of_last + part.stop, key.shape[2])
        visibility = _causal(places, part, n_keys) if mask is None else _masked(mask, places, part, n_keys)
        yield Chunk(part, n_keys, visibility.n_visible, of_heads(part, n_keys, visibility))


class _Visibility(NamedTuple):
    """Which keys the queries of a chunk see from `start` on; all see those before.

    Attributes:
        start: First key that `hidden` covers.
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


def _causal(places: Places, part: slice, n_keys: int) -> _Visibility:
    own = places.spans.n_before + places.index[:, part]  # the key of the query's own token
    start = min(places.spans.n_before + min(places.spans.first) + part.start + 1, n_keys)
    return _Visibility(start, torch.arange(start, n_keys, device=own.device) > own[..., None], None, own + 1)


def _masked(mask: Tensor, places: Places, part: slice, n_keys: int) -> _Visibility:
    index = places.index[:, part]
    row = torch.arange(len(index), device=mask.device)[:, None]
    rows = mask[:, 0, :, :n_keys].expand(len(index), -1, -1)[row, index]
    if mask.dtype == torch.bool:
        return _Visibility(0, ~rows, None, rows.sum(-1))
    hidden = rows <= torch.finfo(mask.dtype).min / 2
    return _Visibility(0, hidden, rows.float().masked_fill(hidden, 0.0), (~hidden).sum(-1))
