"""Attention scores of selected queries, computed in chunks and reduced over heads and keys."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.base import Places

#: Score of a hidden key, which the query can't see. Unlike −∞, this score has a finite product with 0.
HIDDEN = -1e30

ENTROPIES = ("normalised", "sink_free", "smallest_head")

#: Number of scores in memory at a time on a CPU.
CACHED_SCORES = 1 << 19

#: Number of scores per row in memory at a time on a GPU. More than 8 rows count as 8.
_SCORES_PER_ROW = 1 << 23


def read_layer(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    places: Places,
    needs: Collection[str],
    scaling: float | None = None,
    softcap: float | None = None,
) -> dict[str, Tensor]:
    """Compute the attention of one layer for the queries at `places`. Results for padding queries are 0.

    Args:
        query: Queries, [row, head, token, d_head] of any float dtype.
        key: Keys, [row, key head, key, d_head].
        mask: Mask, [row, 1, token, key], or None for causal attention. A bool mask is True for visible keys. A float
            mask is added to the scores.
        needs: Any of `attention_entropy`, `attention_blocks` and `attention_macs`.
        scaling: Factor by which the scores are multiplied. None for 1/√d_head.
        softcap: Soft cap of the scores: s becomes softcap · tanh(s / softcap). None for no cap.

    Returns:
        Dict of float32 tensors. Each element of `needs` adds the following entries:

        - `attention_entropy`: the three `ENTROPIES`, [row, query].
        - `attention_blocks`: `mean` (attention averaged over heads, [row, query, key]) and `sums` (result of
          `normalisers` for all keys, [row, query, normaliser]).
        - `attention_macs`: `largest` (largest attention of any head, [row, query, key]).

        `mean` and `largest` cover only the attention to the tokens at `places`.

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
        if name in ("mean", "largest"):  # indices past a row's last key were clamped to that key
            values.tril_()
        values.masked_fill_(behind if values.dim() == 2 else behind[..., None], 0.0)
    return layer


def _over_heads(
    chunks: Iterable[Tensor], n_visible: Tensor, needs: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute attention statistics over all heads. `chunks` yields the scores of groups of heads.

    Returns a dict of entropies [row, query], and a dict of `mean` and `largest` [row, query, key].
    """
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
    """Yield the scores of the queries at `places`, in chunks.

    Yields:
        - the slice of queries,
        - the number of keys that each query sees, [row, query] int64,
        - the number of keys for which scores are computed,
        - an iterator over groups of heads, which yields scores [row, head, query, key] float32. Keys that a query can't
          see have the score `HIDDEN`.
    """
    (n_rows, n_heads, _, d_head), n_key_heads = query.shape, key.shape[1]
    if mask is not None and mask.shape[1] != 1:
        raise InputError(
            f"Expected one attention mask shared by all heads, but got {mask.shape[1]} masks. The attention of this "
            "architecture can't be read. Use another model."
        )
    at = places.index[:, None, :, None].expand(-1, n_heads, -1, d_head)
    queries = query.gather(2, at).float() * (d_head**-0.5 if scaling is None else scaling)
    queries = queries.unflatten(1, (n_key_heads, -1))  # [row, key head, its query heads, query, d_head]
    keys = key.float().mT
    n_queries, row = places.index.shape[1], n_rows * (n_heads // n_key_heads) * key.shape[2]
    budget = CACHED_SCORES if query.device.type == "cpu" else _SCORES_PER_ROW * min(n_rows, 8)
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
    """Return the number of keys that each query in `part` sees, a mask of hidden keys, and a bias or None.

    The returned mask and bias have shape [row, query, key]. A mask with fewer than `n_keys` keys covers only the last
    keys. All earlier keys are visible.
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
    """Compute normalised attention entropies with and without the first token, which many heads use as a sink.

    Each entropy is divided by the logarithm of the number of visible keys. With only one visible key, the result is 0.
    The entropy over all keys is H = h(p) + (1 − p) H'. Here, p is the weight of the first token, h is the binary
    entropy, and H' is the entropy without the first token.

    Args:
        scores: Attention scores, [row, head, query, key] float32. They are `HIDDEN` for keys that a query can't see.
            The tensor is overwritten.
        n_visible: Number of keys that each query sees, [row, query] int64.

    Returns:
        Both entropies, [row, head, query] in [0, 1].
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
    """Compute the column field [row, alignment, key] float32: 1 divided by the number of queries that see a key.

    A key at position j is seen by T − j queries. T is `n_tokens` for the alignment `token`, and `n_tokens` − 1 for
    `emit`.

    Args:
        key: Positions j of the keys, [row, key] int64.
        n_tokens: Number of prompt and answer tokens, [row] int64.
    """
    n_seeing = torch.stack([n_tokens - 1, n_tokens], 1)[..., None] - key[:, None]
    return 1 / n_seeing.clamp_min(1).float()


def element_field(query: Tensor, key: Tensor) -> Tensor:
    """Compute the element field [row, query, key] float32: weights that depend on the distance between query and key.

    For a query at position i and a key at position j, the weight is 1 / (i − j + 1) if j ≤ i, and 1 otherwise.
    """
    return (query.float()[..., None] - key.float()[:, None] + 1).clamp_min_(1).reciprocal_()


def normalisers(mean: Tensor, column: Tensor, element: Tensor) -> Tensor:
    """Compute weighted sums of the attention over keys, one for each of `NORMALISERS`.

    The result has shape [row, query, normaliser] and dtype float32.

    Args:
        mean: Mean attention over heads, [row, query, key].
        column: `column_field` of the keys.
        element: `element_field` of queries and keys.
    """
    return torch.cat([mean @ column.mT, (mean * element).sum(-1, keepdim=True)], 2)
