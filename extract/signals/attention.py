"""The attention signals `attention_entropy`, `macs`, `rollout` and `rollout_max`."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from extract.signals.attention_scores import ENTROPIES, column_field, element_field
from extract.signals.base import Dots, Pass

FIXED_SHARES = {"share_50": 0.5, "share_70": 0.7, "share_90": 0.9}

#: Names of the shares that `attention_shares` returns, in order.
MIXES = (*FIXED_SHARES, "norm", "cosine", "projection")

ALIGNMENTS = ("emit", "token")
FIELDS = ("none", "column", "element")

#: Normalisers of attention rows, in the order of the last axis of `normalisers`.
NORMALISERS = ("column_emit", "column_token", "element")

_TINY = 1e-12
COLUMNS_AT_ONCE = 128  #: Number of columns of the rollout matrix to compute at a time.


def attention_entropy(batch: Pass) -> dict[str, Tensor]:
    """Compute the attention entropies at the positions that predict the answer's tokens.

    The result is a dict from ``layer/name`` to tensors [row, token] in [0, 1]. Layers are numbered from 1.

    - ``normalised``: entropy divided by the logarithm of the number of visible keys, averaged over heads.
    - ``sink_free``: the same average, but without the first token, which many heads use as an attention sink.
    - ``smallest_head``: smallest normalised entropy of any head.
    """
    found: dict[str, Tensor] = {}
    for layer, numbers in enumerate(batch.attention.layers, start=1):
        values = torch.stack([numbers[name] for name in ENTROPIES])[..., : batch.spans.widest].cpu()
        found |= {f"{layer}/{name}": entropy for name, entropy in zip(ENTROPIES, values, strict=True)}
    return found


def macs(batch: Pass) -> dict[str, Tensor]:
    """Compute the attention that each token receives from later tokens (Hu et al. 2025, "MACS", arXiv 2509.17178).

    For each query and layer, let a be the largest attention that any head pays to the token. Each a is replaced with (1
    − ε) a + ε, so that no value is below the floor ε. The geometric mean over the L layers gives one value per query.
    These values are then aggregated over queries (AGG). The result is a dict from ``L/floor_EPS_AGG_ALIGN`` to tensors
    [row, token] float32, where EPS is ε in hundredths.

    - AGG: `rf_mean` and `max` are the mean and the maximum over all queries from the token itself onwards. `last` uses
      only the last query.
    - ALIGN: position that represents a token. `token` is its own position, and `emit` is the position that predicts it.
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


def rollout(batch: Pass) -> dict[str, Tensor]:
    """Compute the influence of each token through all L layers by attention rollout.

    The result is a dict from ``L/MIX_FIELD_AGG_ALIGN`` to non-negative tensors [row, token] float32. A token's
    influences form a column of the rollout matrix R (see `rows_summed`).

    - MIX: how attention is weighted against the residual stream (see `attention_shares`).
    - FIELD: how attention is weighted by the receptive field. `none` leaves it as it is. For `column` and `element`,
      see `column_field` and `element_field`.
    - AGG: how the rows of R are combined. `mean` is the mean of all rows, `rf_mean` is the mean of the rows that see
      the token, and `last` is the last row.
    - ALIGN: position that represents a token. `token` is its own position, and `emit` is the position that predicts it.
      For `emit`, R has no row for the last token of the answer.
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
    """Compute the largest influence of each token on any answer token.

    The result is a dict from ``L/MIX_FIELD_max_ALIGN`` to tensors [row, token] float32. For the names, see `rollout`.
    """
    width, largest = batch.spans.widest, rows_largest(*_rollout_arguments(batch)).cpu()
    return {
        f"{batch.n_layers}/{mix}_{field}_max_{align}": largest[:, f, m, a, a : a + width]
        for f, field in enumerate(FIELDS)
        for m, mix in enumerate(MIXES)
        for a, align in enumerate(ALIGNMENTS)
    }


def _rollout_arguments(batch: Pass) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    layers, places = batch.attention.layers, batch.attention.places
    shares = [torch.stack(list(attention_shares(products).values()), 1) for products in batch.attention.dots]
    means, sums = [layer["mean"] for layer in layers], [layer["sums"] for layer in layers]
    return means, sums, shares, places.query, places.n_tokens, places.valid


def attention_shares(products: Dots) -> dict[str, Tensor]:
    """Compute the share of the attention output in the residual stream.

    A layer adds the attention output o to the residual stream h. The sum is s = h + o, and a is the share of o in s.
    The result maps each of `MIXES` to a tensor [row, query] in [0, 1]. In ``share_50``, ``share_70`` and ``share_90``,
    the share of h (that is, 1 − a) is fixed at 50, 70 and 90 %. The other mixes are:

    - ``norm``: a = ‖o‖ / (‖o‖ + ‖h‖).
    - ``cosine``: a = cos(o, s) / (cos(o, s) + cos(h, s)).
    - ``projection``: a = ⟨o, s⟩ / ⟨s, s⟩.
    """
    h, o = products.hh.sqrt(), products.oo.sqrt()
    os, hs = products.oo + products.ho, products.hh + products.ho  # ⟨o, s⟩ and ⟨h, s⟩
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
    """For the rollout matrix R, compute the sum of its rows and, separately, its last row.

    Attention rollout (Abnar & Zuidema 2020) models each layer as a matrix Â = a Ã + (1 − a) I that mixes the states of
    the tokens. Ã is the attention averaged over heads, and optionally weighted by `column_field` or `element_field`.
    Each row of Ã is scaled to sum to 1. The weight a is the share of attention in the residual stream. R = Â_L … Â_1 is
    the product over L layers. All matrices are lower triangular. Therefore, the columns of R from the last prompt token
    onwards do not depend on earlier queries.

    Args:
        blocks: For each layer, the attention averaged over heads, [row, query, key]. Queries and keys run from the last
            prompt token to the last answer token. Padding queries have attention 0.
        norms: For each layer, the output of `normalisers`, [row, query, normaliser].
        shares: For each layer, the attention shares a, [row, mix, query].
        query: Positions of the queries (see `Places`), [row, query] int64.
        n_tokens: Number of prompt and answer tokens, [row] int64.
        valid: False for padding queries, [row, query] bool.

    Returns:
        [row, field, mix, 2, alignment, key]. The axis of size 2 contains the sum and the last row.
    """
    n = valid.sum(1)
    step = torch.arange(valid.shape[1], device=valid.device)
    final = torch.stack([n - 2, n - 1], 1)[..., None]  # [row, alignment, 1]: the last query of each alignment
    start = torch.stack([step <= final, step == final], 1).float()  # [row, 2, alignment, query]
    column, element = column_field(query, n_tokens), element_field(query, query)
    v = start[:, None, None].repeat(1, len(FIELDS), shares[0].shape[1], 1, 1, 1)
    for block, norm, share in zip(reversed(blocks), reversed(norms), reversed(shares), strict=True):
        block, norm, share = block.to(v.device), norm.to(v.device).mT, share.to(v.device)
        ones = torch.ones_like(norm[:, :2])
        d = torch.stack([ones, norm[:, :2], norm[:, 2:].expand_as(ones)], 1)[:, :, None, None]
        a = share[:, None, :, None, None]
        x = v * a / d.clamp_min(_TINY)
        # the column field scales keys only, so it can be applied after the product
        plain = x[:, :2].flatten(1, 4) @ block
        nearer = x[:, 2:].flatten(1, 4) @ (block * element)
        y = torch.cat([plain, nearer], 1).view_as(v)
        y[:, 1] *= column[:, None, None]
        v = y + v * (1 - a)
    return v


def rows_largest(
    blocks: list[Tensor], norms: list[Tensor], shares: list[Tensor], query: Tensor, n_tokens: Tensor, valid: Tensor
) -> Tensor:
    """Compute the column maxima of the rollout matrix R, [row, field, mix, alignment, key] float32.

    See `rows_summed` for R and the arguments. With `emit` alignment, the last row of R is ignored.
    """
    column, element = column_field(query, n_tokens), element_field(query, query)

    def fielded(name: str, rows: slice) -> Iterator[Tensor]:  # yields Ã [row, query, key] of each layer, for some rows
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
    """Compute the first `size` columns of the product of factors w A + (1 − w) I, [row, query, mix, column].

    `layers` yields the lower triangular matrices A [row, query, query], starting with the rightmost factor. `shares`
    contains the weights w [row, mix, query].
    """
    n_rows, n_mixes, n_queries = shares[0].shape
    width = min(size, n_queries)
    product = shares[0].new_zeros(n_rows, n_queries, n_mixes, width)
    product[:, :width] = torch.eye(width, device=product.device)[:, None]
    for layer, share in zip(layers, shares, strict=True):
        a = share.mT[..., None]  # [row, query, mix, 1]
        for start in reversed(range(0, n_queries, size)):  # a row needs the old values of earlier rows
            stop = min(start + size, n_queries)
            some = slice(start, stop)
            reached = layer[:, some, :stop] @ product[:, :stop].flatten(2)
            residual = product[:, some] * (1 - a[:, some])
            product[:, some] = residual.addcmul_(reached.view_as(residual), a[:, some])
    return product
