"""The attention signals `attention_entropy`, `macs`, `rollout` and `rollout_max`.

Rollout: each layer mixes the states by Â = a Ã + (1 − a) I, where Ã is the mean attention over heads (Abnar & Zuidema
2020), and all layers together by R = Â_L … Â_1. These matrices are lower triangular. The answer's columns of R
therefore depend only on the answer's rows and columns of Ã, and the prompt enters only through the row normalisers. A
sum over the rows of R is a vector that is propagated from the last layer to the first, in n² instead of n³.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from extract.signals.attention_scores import ENTROPIES, column_field, element_field
from extract.signals.base import Dots, Pass

#: Residual shares that are equal for all tokens, by name.
FIXED_SHARES = {"share_50": 0.5, "share_70": 0.7, "share_90": 0.9}

#: Names of the shares returned by `attention_shares`, in order.
MIXES = (*FIXED_SHARES, "norm", "cosine", "projection")

ALIGNMENTS = ("emit", "token")
FIELDS = ("none", "column", "element")

#: Normalisers of a row of attention, in the order of the last axis of `normalisers`.
NORMALISERS = ("column_emit", "column_token", "element")

_TINY = 1e-12
COLUMNS_AT_ONCE = 128  #: Columns of R computed at a time.


def attention_entropy(batch: Pass) -> dict[str, Tensor]:
    """Attention entropies at the place that drew each token: [row, token] in [0, 1] by ``layer/name``, layers from 1.

    - ``normalised``: mean over heads of the entropy divided by the logarithm of the number of visible keys.
    - ``sink_free``: the same without the first token.
    - ``smallest_head``: the smallest normalised entropy of any head.
    """
    found: dict[str, Tensor] = {}
    for layer, numbers in enumerate(batch.attention.layers, start=1):
        values = torch.stack([numbers[name] for name in ENTROPIES])[..., : batch.spans.widest].cpu()
        found |= {f"{layer}/{name}": entropy for name, entropy in zip(ENTROPIES, values, strict=True)}
    return found


def macs(batch: Pass) -> dict[str, Tensor]:
    """Attention that a token receives from later tokens in all layers (Hu et al. 2025, "MACS", arXiv 2509.17178).

    Each layer contributes the attention a of its strongest head, raised by a floor ε to (1 − ε) a + ε. The signal is
    the geometric mean over layers, [row, token] by ``L/floor_EPS_AGG_ALIGN``. It is computed from sums of logarithms,
    because the product over many layers underflows.

    AGG `rf_mean` and `max` aggregate over the places that see a token, from its own to the last one of the answer.
    `last` is the value of the last place. ALIGN `emit` uses the places that drew y_1 … y_n, `token` their own places.
    """
    found: dict[str, Tensor] = {}
    width, valid = batch.spans.widest, batch.attention.places.valid[:, 1:]
    n = valid.sum(1)
    row, step = torch.arange(len(n), device=n.device), torch.arange(width, device=n.device)
    n_see = (n[:, None] - step).clamp_min(1)
    for floor, logs in batch.attention.floors.items():
        means = (logs / batch.n_layers).exp()
        for start, align in enumerate(ALIGNMENTS):
            block = means[:, start : start + width, start : start + width]
            seen = block.tril().masked_fill(~valid[..., None], 0.0)
            received = {"rf_mean": seen.sum(1) / n_see, "max": seen.amax(1), "last": seen[row, n - 1]}
            found |= {f"{batch.n_layers}/floor_{floor}_{name}_{align}": one.cpu() for name, one in received.items()}
    return found


# Rollout


def rollout(batch: Pass) -> dict[str, Tensor]:
    """Influence of each token through all layers: [row, token] float32, at least 0, by ``L/MIX_FIELD_AGG_ALIGN``.

    - MIX: share of the residual stream, equal for all tokens (share_50, …) or from `attention_shares`.
    - FIELD: receptive field that divides attention.
    - AGG: aggregation over the rows of R: `mean` over all T, `rf_mean` over rows that see the token, `last` row.
    - ALIGN: `emit` is the influence of the place that drew y_t, among the tokens without y_n; `token` is the influence
      of the place of y_t, among all tokens.
    """
    places, width = batch.attention.places, batch.spans.widest
    sums = rows_summed(*_rollout_arguments(batch)).cpu()
    place = places.query.cpu()[:, None, None]
    n_tokens = torch.stack([places.n_tokens - 1, places.n_tokens], 1)[..., None, None].cpu()
    found = {}
    for a, align in enumerate(ALIGNMENTS):
        total, last = sums[..., a, a : a + width].unbind(3)  # [row, field, mix, token]
        T, j = n_tokens[:, a, None], place[..., a : a + width]
        by_aggregation = {"mean": total / T, "rf_mean": total / (T - j).clamp_min(1), "last": last}
        for aggregation, values in by_aggregation.items():
            for f, field in enumerate(FIELDS):
                for m, mix in enumerate(MIXES):
                    found[f"{batch.n_layers}/{mix}_{field}_{aggregation}_{align}"] = values[:, f, m]
    return found


def rollout_max(batch: Pass) -> dict[str, Tensor]:
    """Like `rollout`, by ``L/MIX_FIELD_max_ALIGN``: the largest influence of a token on any place."""
    width, largest = batch.spans.widest, rows_largest(*_rollout_arguments(batch)).cpu()
    return {
        f"{batch.n_layers}/{mix}_{field}_max_{align}": largest[:, f, m, a, a : a + width]
        for f, field in enumerate(FIELDS)
        for m, mix in enumerate(MIXES)
        for a, align in enumerate(ALIGNMENTS)
    }


def _rollout_arguments(batch: Pass) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    """Arguments of `rows_summed` and `rows_largest`."""
    layers, places = batch.attention.layers, batch.attention.places
    shares = [torch.stack(list(attention_shares(products).values()), 1) for products in batch.attention.dots]
    means, sums = [layer["mean"] for layer in layers], [layer["sums"] for layer in layers]
    return means, sums, shares, places.query, places.n_tokens, places.valid


def attention_shares(products: Dots) -> dict[str, Tensor]:
    """Share a of attention in h + o, [row, token] in [0, 1], by mix; the share of the residual stream is 1 − a.

    ``norm`` compares ‖o‖ with ‖h‖, and ``cosine`` compares their cosines with h + o. ``projection`` is the length of
    o's projection onto h + o, divided by the length of h + o.
    """
    h, o = products.hh.sqrt(), products.oo.sqrt()
    os, hs = products.oo + products.ho, products.hh + products.ho  # with the sum s = h + o
    cosine_o, cosine_h = os / o.clamp_min(_TINY), hs / h.clamp_min(_TINY)  # each times ‖s‖
    shares = {
        "norm": o / (o + h).clamp_min(_TINY),
        "cosine": cosine_o / (cosine_o + cosine_h).clamp_min(_TINY),
        "projection": os / (os + hs).clamp_min(_TINY),
    }
    fixed = {name: torch.full_like(h, 1 - residual) for name, residual in FIXED_SHARES.items()}
    return fixed | {name: share.clamp(0, 1) for name, share in shares.items()}


def rows_summed(
    blocks: list[Tensor], norms: list[Tensor], shares: list[Tensor], query: Tensor, n_tokens: Tensor, valid: Tensor
) -> Tensor:
    """Sum of the rows of R, and its last row: [row, field, mix, 2, alignment, key] float32.

    Args:
        blocks: Mean attention over heads by layer, [row, query, key], among the places of the answer, from the one that
            drew y_1 to that of y_n; 0 where `valid` is False.
        norms: Row normalisers by layer, [row, query, normaliser], see `normalisers`.
        shares: Attention shares by layer, [row, mix, query].
        query: Places, [row, query] int64.
        n_tokens: Number of tokens of prompt and answer, [row] int64.
        valid: Whether a row has the query, [row, query] bool.
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
        x = v * a / d.clamp_min(_TINY)
        # the column field scales keys only, so it shares the matrix product with the plain attention
        plain = x[:, :2].flatten(1, 4) @ block
        nearer = x[:, 2:].flatten(1, 4) @ (block * element)
        y = torch.cat([plain, nearer], 1).view_as(v)
        y[:, 1] *= column[:, None, None]
        v = y + v * (1 - a)
    return v


def rows_largest(
    blocks: list[Tensor], norms: list[Tensor], shares: list[Tensor], query: Tensor, n_tokens: Tensor, valid: Tensor
) -> Tensor:
    """Largest entry of each column of R: [row, field, mix, alignment, key] float32. Arguments as in `rows_summed`.

    R = Â_L … Â_1 is computed from the first layer on, in groups of columns, without the zeros above the diagonal. Both
    alignments share one R, `emit` without its last row. Only the column field differs between them.
    """
    column, element = column_field(query, n_tokens), element_field(query, query)

    def fielded(name: str, rows: slice) -> Iterator[Tensor]:  # Ã [row, query, key] of each layer, at some places
        for block, norm in zip(blocks, norms, strict=True):
            part = block[:, rows, rows].to(column.device)
            if name != "none":
                normaliser = norm[:, rows, NORMALISERS.index(name), None].to(column.device)
                align = name.removeprefix("column_")
                near = element[:, rows, rows]
                weight = column[:, ALIGNMENTS.index(align), None, rows] if align in ALIGNMENTS else near
                part = part * weight / normaliser.clamp_min(_TINY)
            yield part

    n_rows, n_queries = valid.shape
    size = math.ceil(n_queries / max(1, round(n_queries / COLUMNS_AT_ONCE)))
    in_emit = valid & valid.roll(-1, 1)
    in_emit[:, -1] = False
    largest = valid.new_zeros(n_rows, len(FIELDS), shares[0].shape[1], 2, n_queries, dtype=torch.float32)
    for first in range(0, n_queries, size):
        columns, rows = slice(first, first + size), slice(first, None)
        for name in ("none", *NORMALISERS):
            field, _, only = name.partition("_")
            some_shares = [share[..., rows].to(valid.device) for share in shares]
            product = _columns_of_product(fielded(name, rows), some_shares, size)
            for a, seen in enumerate((in_emit, valid)):
                if only in ("", ALIGNMENTS[a]):
                    maxima = product.masked_fill(~seen[:, rows, None, None], 0.0).amax(1)
                    largest[:, FIELDS.index(field), :, a, columns] = maxima
    return largest


def _columns_of_product(layers: Iterable[Tensor], shares: list[Tensor], size: int) -> Tensor:
    """First `size` columns of the product of a A + (1 − a) I over layers, [row, query, mix, column], first rightmost.

    `layers` yields A, [row, query, query] lower triangular; `shares` holds a, [row, mix, query]. Rows are multiplied in
    groups of `size`.
    """
    n_rows, n_mixes, n_queries = shares[0].shape
    width = min(size, n_queries)
    product = shares[0].new_zeros(n_rows, n_queries, n_mixes, width)
    product[:, :width] = torch.eye(width, device=product.device)[:, None]
    for layer, share in zip(layers, shares, strict=True):
        a = share.mT[..., None]  # [row, query, mix, 1]
        for start in reversed(range(0, n_queries, size)):  # a row needs the old values of the rows above it
            stop = min(start + size, n_queries)
            some = slice(start, stop)
            reached = layer[:, some, :stop] @ product[:, :stop].flatten(2)
            residual = product[:, some] * (1 - a[:, some])
            product[:, some] = residual.addcmul_(reached.view_as(residual), a[:, some])
    return product
