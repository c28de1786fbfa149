"""Attention of the answers' queries: scores in chunks, and the sums over heads and keys that are kept."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.base import Places

#: Score of a hidden key. Its exponential is exactly 0, and unlike −inf it gives 0 and not NaN when multiplied by 0.
HIDDEN = -1e30

#: Mean entropy over heads with and without the first token, and the smallest entropy of a head.
ENTROPIES = ("normalised", "sink_free", "smallest_head")

#: Scores in memory at a time on a CPU, chosen to fit into its cache.
_CACHED = 1 << 19

#: Scores in memory at a time on a GPU, per row for at most 8 rows, because each chunk has a launch cost.
_OF_ROW = 1 << 23


def read_layer(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    places: Places,
    needs: Collection[str],
    scaling: float | None = None,
    softcap: float | None = None,
) -> dict[str, Tensor]:
    """Attention of one layer at `places`, float32 for any dtype of the model, and 0 after the places of a row.

    Args:
        query: [row, head, token, d_head], any float dtype.
        key: [row, key head, key, d_head]. Each key head serves an equal number of successive heads.
        mask: [row, 1, token, key], bool (True: visible) or added to the scores; None for causal attention.
        needs: Among attention_entropy, attention_blocks and attention_macs.
        scaling: Factor of the scores; None for 1/√d_head.
        softcap: Caps scores s to softcap · tanh(s / softcap).

    Returns:
        For attention_entropy, the three `ENTROPIES`, [row, query]. For attention_blocks, `mean` [row, query, key], the
        mean over heads among the answer's places, and `sums` [row, query, normaliser] of whole rows, see `normalisers`.
        For attention_macs, `largest` [row, query, key], the maximum over heads.

    Raises:
        InputError: If the mask differs between heads.
    """
    own = places.spans.n_before + places.index  # key of each query's own token
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for queries, n_visible, n_keys, scores in _score_chunks(query, key, mask, places, scaling, softcap):
        entropies, whole = _over_heads(scores, n_visible, needs)
        for name, values in entropies.items():
            parts[name].append(values)
        if "mean" in whole:
            j = torch.arange(n_keys, device=own.device)[None]
            column, element = column_field(j, places.n_tokens), element_field(places.query[:, queries], j)
            parts["sums"].append(normalisers(whole["mean"], column, element))
        columns = own.clamp_max(n_keys - 1)[:, None].expand(-1, n_visible.shape[1], -1)
        for name, weights in whole.items():
            parts[name].append(weights.gather(2, columns))
    layer = {name: torch.cat(chunks, 1) for name, chunks in parts.items()}
    behind = ~places.valid
    for name, values in layer.items():
        if name in ("mean", "largest"):  # keys after a row's last token were clamped to it
            values.tril_()
        values.masked_fill_(behind if values.dim() == 2 else behind[..., None], 0.0)
    return layer


def _over_heads(
    chunks: Iterable[Tensor], n_visible: Tensor, needs: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Entropies [row, query] by name; `mean` and `largest` over heads [row, query, key] by name."""
    n_heads, entropies = 0, []
    whole: dict[str, Tensor] = {}
    for scores in chunks:
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
            entropies.append(head_entropies(scores, n_visible))  # overwrites the scores
    if "mean" in whole:
        whole["mean"].div_(n_heads)
    if not entropies:
        return {}, whole
    of_heads, sink_free = (torch.cat(some_heads, 1) for some_heads in zip(*entropies, strict=True))
    return dict(zip(ENTROPIES, (of_heads.mean(1), sink_free.mean(1), of_heads.amin(1)), strict=True)), whole


def _score_chunks(
    query: Tensor, key: Tensor, mask: Tensor | None, places: Places, scaling: float | None, softcap: float | None
) -> Iterator[tuple[slice, Tensor, int, Iterator[Tensor]]]:
    """Scores of a causal attention function, for chunks of the queries at `places`.

    Yields the slice of queries, the number of keys that each sees [row, query] int64, the largest such number, and the
    scores [row, head, query, key] float32 of groups of heads, with `HIDDEN` for hidden keys.
    """
    (n_rows, n_heads, _, d_head), n_key_heads = query.shape, key.shape[1]
    if mask is not None and mask.shape[1] != 1:
        raise InputError(
            f"Expected one attention mask for all heads, but got {mask.shape[1]}. Use another model, because the "
            "attention of this architecture can't be read."
        )
    at = places.index[:, None, :, None].expand(-1, n_heads, -1, d_head)
    queries = query.gather(2, at).float() * (d_head**-0.5 if scaling is None else scaling)
    queries = queries.unflatten(1, (n_key_heads, -1))  # [row, key head, head of it, query, d_head]
    keys = key.float().mT
    n_queries, row = places.index.shape[1], n_rows * (n_heads // n_key_heads) * key.shape[2]
    budget = _CACHED if query.device.type == "cpu" else _OF_ROW * min(n_rows, 8)
    n_groups = min(n_key_heads, max(1, budget // (row * min(n_queries, 32))))
    size = min(n_queries, max(1, budget // (row * n_groups)))

    def of_heads(part: slice, n_keys: int, hidden: Tensor, bias: Tensor | None) -> Iterator[Tensor]:
        for group in range(0, n_key_heads, n_groups):
            some = slice(group, group + n_groups)
            of_some = queries[:, some, :, part]
            scores = of_some.flatten(2, 3) @ keys[:, some, :, :n_keys]
            scores = scores.unflatten(2, of_some.shape[2:4]).flatten(1, 2)
            if softcap is not None:
                scores = scores.div_(softcap).tanh_().mul_(softcap)
            tail = scores[..., n_keys - hidden.shape[-1] :]
            if bias is not None:
                tail += bias[:, None]
            tail.masked_fill_(hidden[:, None], HIDDEN)
            yield scores

    start_of_last = places.spans.n_before + max(places.spans.first)
    for start in range(0, n_queries, size):
        part = slice(start, min(start + size, n_queries))
        n_keys = min(start_of_last + part.stop, key.shape[2])
        n_visible, hidden, bias = _visibility(mask, places, part, n_keys)
        yield part, n_visible, n_keys, of_heads(part, n_keys, hidden, bias)


def _visibility(mask: Tensor | None, places: Places, part: slice, n_keys: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Visibility of the first `n_keys` keys for a part of the queries.

    Returns the number of keys that each query sees, [row, query] int64; whether each of the last keys is hidden,
    [row, query, key] bool; and the bias of their scores, float32, or None.
    """
    index = places.index[:, part]
    if mask is None:
        own = places.spans.n_before + index  # key of each query's own token
        start = min(places.spans.n_before + min(places.spans.first) + part.start + 1, n_keys)
        return own + 1, torch.arange(start, n_keys, device=own.device) > own[..., None], None
    row = torch.arange(len(index), device=mask.device)[:, None]
    rows = mask[:, 0, :, :n_keys].expand(len(index), -1, -1)[row, index]
    if mask.dtype == torch.bool:
        return rows.sum(-1), ~rows, None
    hidden = rows <= torch.finfo(mask.dtype).min / 2
    return (~hidden).sum(-1), hidden, rows.float().masked_fill(hidden, 0.0)


def head_entropies(scores: Tensor, n_visible: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies of softmax(`scores`), divided by the log of the number of visible keys; 0 for one key.

    With p the weight of the first token, H' the entropy among the others and h the binary entropy,
    H = h(p) + (1 − p) H'. H' is computed from the other scores alone, so it is exact even if p is 1 in float32.

    Args:
        scores: [row, head, query, key] float32, `HIDDEN` for keys that a query can't see. Overwritten.
        n_visible: Number of keys that each query sees, [row, query] int64.

    Returns:
        [row, head, query] float32 in [0, 1] over all visible keys, and the same without the first token, which many
        heads use as an attention sink.
    """
    of_first = scores[..., 0].clone()
    scores[..., 0] = HIDDEN
    top = scores.amax(-1, keepdim=True)
    shifted = scores.sub_(top)
    weights = shifted.exp()
    total = weights.sum(-1)
    others = total.log() - weights.mul_(shifted).sum(-1) / total
    n_others = n_visible[:, None] - (of_first > HIDDEN / 2).long()
    lead = of_first - (top[..., 0] + total.log())
    share = lead.sigmoid(), (-lead).sigmoid()
    whole = torch.special.entr(share[0]) + torch.special.entr(share[1]) + share[1] * others

    def normalised(entropy: Tensor, n_keys: Tensor) -> Tensor:
        return torch.where(n_keys > 1, entropy / n_keys.clamp_min(2).log(), 0.0).clamp(0, 1)

    return normalised(whole, n_visible[:, None]), normalised(others, n_others)


def column_field(key: Tensor, n_tokens: Tensor) -> Tensor:
    """Column field 1 / (T − j), [row, alignment, key], of places j [row, key]; T is `n_tokens`, less 1 for `emit`."""
    n_seeing = torch.stack([n_tokens - 1, n_tokens], 1)[..., None] - key[:, None]
    return 1 / n_seeing.clamp_min(1).float()


def element_field(query: Tensor, key: Tensor) -> Tensor:
    """Element field 1 / (i − j + 1), [row, query, key], of places i [row, query] and j [row, key]; 1 if j > i."""
    return (query.float()[..., None] - key.float()[:, None] + 1).clamp_min_(1).reciprocal_()


def normalisers(mean: Tensor, column: Tensor, element: Tensor) -> Tensor:
    """Row sums of attention under both fields, [row, query, normaliser] in the order of `NORMALISERS`.

    Args:
        mean: Mean attention over heads, [row, query, key].
        column: `column_field` of the keys, [row, alignment, key].
        element: `element_field` of queries and keys, [row, query, key].
    """
    return torch.cat([mean @ column.mT, (mean * element).sum(-1, keepdim=True)], 2)
