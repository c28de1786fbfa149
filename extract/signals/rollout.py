"""The signals `rollout` and `rollout_max`: how much of each token reaches the last layer along attention and residual.

A layer mixes states by Â = a Ã + (1 − a) I, Ã attention's mean over heads (Abnar & Zuidema 2020), and all layers by
R = Â_L … Â_1. Everything is lower triangular, so that the answer's columns of R depend on the answer's rows and columns
of Ã alone; the prompt is in what normalises a row. And a sum over the rows of R is a vector that goes through the layers
from the last to the first: n² and not n³.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from extract.signals.base import Pass
from extract.signals.mixing import MIXES, attention_shares

ALIGNMENTS = ("emit", "token")
FIELDS = ("none", "column", "element")

#: What normalises a row, in the order of `normalisers`' last axis.
NORMALISERS = ("column_emit", "column_token", "element")


def column_field(key: Tensor, n_tokens: Tensor) -> Tensor:
    """1 / (T − j), [row, alignment, key]: one over the queries that see a key. T is N − 1 for `emit`, N for `token`.

    Args:
        key: [row, key] int64 places j.
        n_tokens: [row] int64 N.
    """
    n_seeing = torch.stack([n_tokens - 1, n_tokens], 1)[..., None] - key[:, None]
    return 1 / n_seeing.clamp_min(1).float()


def element_field(query: Tensor, key: Tensor) -> Tensor:
    """1 / (i − j + 1), [row, query, key], of places i [row, query] and j [row, key]; 1 where j > i."""
    return (query.float()[..., None] - key.float()[:, None] + 1).clamp_min_(1).reciprocal_()


def normalisers(mean: Tensor, column: Tensor, element: Tensor) -> Tensor:
    """What rows of attention sum to under each receptive field, [row, query, normaliser], in the order of `NORMALISERS`.

    Args:
        mean: [row, query, key] attention, mean over heads, over all keys.
        column: [row, alignment, key] as `column_field` gives.
        element: [row, query, key] as `element_field` gives.
    """
    return torch.cat([mean @ column.mT, (mean * element).sum(-1, keepdim=True)], 2)


def rollout(read: Pass) -> dict[str, Tensor]:
    """Influence of each token: [row, token] float32, at least 0, by ``L/MIX_FIELD_AGG_ALIGN``.

    MIX is the residual's share, the same for all tokens (share_50, share_70, share_90) or as in `mixing`; FIELD the
    receptive field that attention is divided by; AGG how rows of R become one number: `mean` over all T, `rf_mean`
    over those that see the token, `last`. `emit` is the influence of the place that drew y_t, among the tokens without
    y_n; `token` that of y_t's own place, among all.
    """
    places, layers = read.the_attention.places, _layers(read)
    sums = rows_summed(*layers, places.query, places.n_tokens, places.valid).cpu()
    width, place = read.rows.widest, places.query.cpu()[:, None, None]
    n_tokens = torch.stack([places.n_tokens - 1, places.n_tokens], 1)[..., None, None].cpu()
    found = {}
    for a, align in enumerate(ALIGNMENTS):
        mean, newest = sums[..., a, a : a + width].unbind(3)  # [row, field, mix, token]
        T, j = n_tokens[:, a, None], place[..., a : a + width]
        of_name = {"mean": mean / T, "rf_mean": mean / (T - j).clamp_min(1), "last": newest}
        for agg, values in of_name.items():
            for f, field in enumerate(FIELDS):
                for m, mix in enumerate(MIXES):
                    found[f"{read.n_layers}/{mix}_{field}_{agg}_{align}"] = values[:, f, m]
    return found


def rows_summed(
    blocks: list[Tensor], norms: list[Tensor], shares: list[Tensor], query: Tensor, n_tokens: Tensor, valid: Tensor
) -> Tensor:
    """Rows of R summed, and the last row: [row, field, mix, 2, alignment, key].

    Args:
        blocks: [row, query, key] by layer, attention's mean over heads among the answer's places, from the one that
            drew y_1 to y_n's own; 0 where `valid` is not.
        norms: [row, query, normaliser] by layer, see `normalisers`.
        shares: [row, mix, query] by layer, attention's shares.
        query: [row, query] int64 places.
        n_tokens: [row] int64 N.
        valid: [row, query] bool, a row's queries.
    """
    n = valid.sum(1)
    step = torch.arange(valid.shape[1], device=valid.device)
    final = torch.stack([n - 2, n - 1], 1)[..., None]  # [row, alignment, 1]: the last query of each
    start = torch.stack([step <= final, step == final], 1).float()  # [row, 2, alignment, query]
    column, element = column_field(query, n_tokens), element_field(query, query)
    v = start[:, None, None].repeat(1, len(FIELDS), shares[0].shape[1], 1, 1, 1)
    for block, norm, share in zip(reversed(blocks), reversed(norms), reversed(shares), strict=True):
        block, norm, share = block.to(v.device), norm.to(v.device).mT, share.to(v.device)
        ones = torch.ones_like(norm[:, :2])
        d = torch.stack([ones, norm[:, :2], norm[:, 2:].expand_as(ones)], 1)[:, :, None, None]
        a = share[:, None, :, None, None]
        x = v * a / d.clamp_min(1e-12)
        # the column field is a factor of a key, so that it shares the product with no field at all
        plain = x[:, :2].flatten(1, 4) @ block
        nearer = x[:, 2:].flatten(1, 4) @ (block * element)
        y = torch.cat([plain, nearer], 1).view_as(v)
        y[:, 1] *= column[:, None, None]
        v = y + v * (1 - a)
    return v


def _layers(read: Pass) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of each layer, what `rows_summed` and `rows_largest` take: attention's mean over heads, row sums and shares."""
    of = read.the_attention
    shares = [attention_shares(dots) for dots in of.dots]
    return (
        [layer["mean"] for layer in of.layers],
        [layer["sums"] for layer in of.layers],
        [torch.stack([of_layer[mix] for mix in MIXES], 1) for of_layer in shares],
    )


def rollout_max(read: Pass) -> dict[str, Tensor]:
    """As `rollout`, by ``L/MIX_FIELD_max_ALIGN``: the largest influence that a token has on any of the places."""
    places, layers, width = read.the_attention.places, _layers(read), read.rows.widest
    largest = rows_largest(*layers, places.query, places.n_tokens, places.valid).cpu()
    return {
        f"{read.n_layers}/{mix}_{field}_max_{align}": largest[:, f, m, a, a : a + width]
        for f, field in enumerate(FIELDS)
        for m, mix in enumerate(MIXES)
        for a, align in enumerate(ALIGNMENTS)
    }


def rows_largest(
    blocks: list[Tensor],
    norms: list[Tensor],
    shares: list[Tensor],
    query: Tensor,
    n_tokens: Tensor,
    valid: Tensor,
    size: int = 128,
) -> Tensor:
    """Largest entry of each column of R, [row, field, mix, alignment, key]; arguments as of `rows_summed`.

    R = Â_L … Â_1 is formed from the first layer on, `size` columns at a time, and what is 0 above the diagonal is left out.
    One R serves both alignments, the first without its last row, but for the column field, which differs between them.
    """
    column, element = column_field(query, n_tokens), element_field(query, query)
    n_rows, n_queries = valid.shape
    size = math.ceil(n_queries / max(1, round(n_queries / size)))
    in_emit = valid & valid.roll(-1, 1)
    in_emit[:, -1] = False
    found = valid.new_zeros(n_rows, len(FIELDS), shares[0].shape[1], 2, n_queries, dtype=torch.float32)
    for first in range(0, n_queries, size):
        columns, rows = slice(first, first + size), slice(first, None)
        for name in ("none", *NORMALISERS):
            field, _, only = name.partition("_")
            layers = _fielded(blocks, norms, name, rows, column, element)
            product = _columns_of_product(layers, [share[..., rows].to(valid.device) for share in shares], size)
            for a, seen in enumerate((in_emit, valid)):
                if only in ("", ALIGNMENTS[a]):
                    largest = product.masked_fill(~seen[:, rows, None, None], 0.0).amax(1)
                    found[:, FIELDS.index(field), :, a, columns] = largest
    return found


def _fielded(
    blocks: list[Tensor], norms: list[Tensor], name: str, rows: slice, column: Tensor, element: Tensor
) -> Iterator[Tensor]:
    """Ã [row, query, key] of each layer, from a place on, under a receptive field of `NORMALISERS` or ``none``."""
    for block, norm in zip(blocks, norms, strict=True):
        part = block[:, rows, rows].to(column.device)
        if name != "none":
            normaliser = norm[:, rows, NORMALISERS.index(name), None].to(column.device)
            align = name.removeprefix("column_")
            weight = column[:, ALIGNMENTS.index(align), None, rows] if align in ALIGNMENTS else element[:, rows, rows]
            part = part * weight / normaliser.clamp_min(1e-12)
        yield part


def _columns_of_product(layers: Iterable[Tensor], shares: list[Tensor], size: int) -> Tensor:
    """First `size` columns of the product of a A + (1 − a) I over `layers`, the first one rightmost: [row, query, mix, column].

    Args:
        layers: A, [row, query, query] lower triangular, by layer.
        shares: a, [row, mix, query] by layer.
        size: Columns, and rows that are multiplied at a time.
    """
    n_rows, n_mixes, n_queries = shares[0].shape
    width = min(size, n_queries)
    product = shares[0].new_zeros(n_rows, n_queries, n_mixes, width)
    product[:, :width] = torch.eye(width, device=product.device)[:, None]
    for layer, share in zip(layers, shares, strict=True):
        a = share.mT[..., None]  # [row, query, mix, 1]
        for start in reversed(range(0, n_queries, size)):  # a row needs those above it as they were
            stop = min(start + size, n_queries)
            some = slice(start, stop)
            reached = layer[:, some, :stop] @ product[:, :stop].flatten(2)
            kept = product[:, some] * (1 - a[:, some])
            product[:, some] = kept.addcmul_(reached.view_as(kept), a[:, some])
    return product
