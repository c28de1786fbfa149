"""What is kept of one layer's attention: sums over its heads and keys, formed a chunk at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from extract.signals.attention_entropy import head_entropies, over_heads
from extract.signals.attention_scores import Chunk, Places, score_chunks
from extract.signals.rollout import column_field, element_field, normalisers


class Fields(NamedTuple):
    """Receptive fields of all keys: `column` [row, alignment, key] and `element` [row, query, key], see `rollout`."""

    column: Tensor
    element: Tensor

    @staticmethod
    def of(places: Places) -> Fields:
        """Those of a pass."""
        return Fields(column_field(places.key, places.n_tokens), element_field(places.query, places.key))


def read_layer(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    places: Places,
    want: Collection[str],
    fields: Fields | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
) -> dict[str, Tensor]:
    """Attention of one layer at `places`, float32 whatever the model's dtype, and 0 behind a row's places.

    Args:
        query: [row, head, token, d_head]; this and what follows as of `score_chunks`.
        key: [row, key head, key, d_head].
        mask: [row, 1, token, key] or None.
        places: Where queries and keys stand.
        want: Among attention_entropy, attention_blocks and attention_macs.
        fields: Receptive fields, for attention_blocks.
        scaling: Multiplies the scores; None for 1/√d_head.
        softcap: Bounds the scores.

    Returns:
        For attention_entropy the names of `over_heads`, [row, query]. For attention_blocks `mean` [row, query, key], the
        mean over heads among the answer's places, and `sums` [row, query, normaliser] of whole rows, see `normalisers`.
        For attention_macs `largest`, as `mean`.
    """
    own = places.rows.n_before + places.index  # keys of the queries' own tokens
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for chunk in score_chunks(query, key, mask, places, scaling, softcap):
        entropies, whole = _over_heads(chunk, places, want)
        for name, values in entropies.items():
            parts[name].append(values)
        if "mean" in whole and fields is not None:
            near = fields.element[:, chunk.queries, : chunk.n_keys]
            parts["sums"].append(normalisers(whole["mean"], fields.column[..., : chunk.n_keys], near))
        columns = own.clamp_max(chunk.n_keys - 1)[:, None].expand(-1, chunk.n_visible.shape[1], -1)
        for name, weights in whole.items():
            parts[name].append(weights.gather(2, columns))
    read = {name: torch.cat(of_chunks, 1) for name, of_chunks in parts.items()}
    behind = ~places.valid
    for name, values in read.items():
        if name in ("mean", "largest"):  # keys behind a row's last token were taken to be that one
            values.tril_()
        values.masked_fill_(behind if values.dim() == 2 else behind[..., None], 0.0)
    return read


def _over_heads(chunk: Chunk, places: Places, want: Collection[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Heads of a chunk taken together: entropies [row, query], and `mean` and `largest` [row, query, key], by name."""
    n_heads, entropies = 0, []
    whole: dict[str, Tensor] = {}
    for scores in chunk.scores:
        n_heads += scores.shape[1]
        if "attention_blocks" in want or "attention_macs" in want:
            weights = scores.softmax(-1)
            if "attention_blocks" in want:
                total = weights.sum(1)
                whole["mean"] = whole["mean"].add_(total) if "mean" in whole else total
            if "attention_macs" in want:
                largest = weights.amax(1)
                whole["largest"] = torch.maximum(whole["largest"], largest) if "largest" in whole else largest
        if "attention_entropy" in want:
            entropies.append(head_entropies(scores, places.sink, chunk.n_visible))  # overwrites the scores
    if "mean" in whole:
        whole["mean"].div_(n_heads)
    return over_heads(entropies) if entropies else {}, whole
