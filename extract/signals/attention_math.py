"""Numbers of attention weights, as pure functions: entropies, rollout, MACS, and how attention and residual stream mix.

Rollout: a layer mixes states by Â = a Ã + (1 − a) I, Ã attention's mean over heads (Abnar & Zuidema 2020), and all
layers by R = Â_L … Â_1. All of them are lower triangular, so that the answer's columns of R depend on the answer's rows
and columns of Ã alone; the prompt is in what normalises a row. A sum over the rows of R is a vector that goes through
the layers from the last to the first: n² and not n³.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from extract.signals.base import Dots

#: Score of a key that a query can't see. Its exponential is exactly 0, and 0 times it is 0 and not NaN as with −inf.
HIDDEN = -1e30

#: Names of the numbers that `over_heads` returns.
ENTROPIES = ("normalised", "sink_free", "smallest_head")

#: Floors of MACS in hundredths; 20 is the paper's 1 − α.
FLOORS = (1, 20)

#: Residual shares that are the same for all tokens, by name.
FIXED_SHARES = {"share_50": 0.5, "share_70": 0.7, "share_90": 0.9}

#: Names of the shares that `attention_shares` returns, in order.
MIXES = (*FIXED_SHARES, "norm", "cosine", "projection")

ALIGNMENTS = ("emit", "token")
FIELDS = ("none", "column", "element")

#: What normalises a row of attention, in the order of `normalisers`' last axis.
NORMALISERS = ("column_emit", "column_token", "element")

_TINY = 1e-12
_COLUMNS = 128  #: Columns of R that are formed at a time.


# Entropy


def head_entropies(scores: Tensor, n_visible: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies of softmax(`scores`) over the log of the number of keys that each query sees; 0 with one key.

    With p the weight of the first token and H' the entropy of the others among themselves, H = h(p) + (1 − p) H', h the
    entropy of a coin. H' comes from the other scores alone, so that it is exact even where p is 1 in float32.

    Args:
        scores: [row, head, query, key] float32, `HIDDEN` where a query can't see a key. Overwritten.
        n_visible: [row, query] int64, number of keys that each query sees.

    Returns:
        [row, head, query] float32 in [0, 1], over all visible keys; and the same without the first token, which many
        heads attend to when nothing else matters.
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


def over_heads(entropies: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """[row, query] by name: mean over heads with and without the first token, and the smallest head's entropy."""
    whole, sink_free = (torch.cat(some_heads, 1) for some_heads in zip(*entropies, strict=True))
    return dict(zip(ENTROPIES, (whole.mean(1), sink_free.mean(1), whole.amin(1)), strict=True))


# MACS


def received(block: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """What each key receives from the queries that see it, [row, key]: mean, maximum, and that of the last query.

    Args:
        block: [row, query, key] at least 0; a query sees the keys up to its own.
        valid: [row, query] bool, true for a row's queries, which come first.
    """
    seen = block.tril().masked_fill(~valid[..., None], 0.0)
    n = valid.sum(1)
    n_see = (n[:, None] - torch.arange(block.shape[2], device=n.device)).clamp_min(1)
    row = torch.arange(len(block), device=n.device)
    return {"rf_mean": seen.sum(1) / n_see, "max": seen.amax(1), "last": seen[row, n - 1]}


# Mixing of attention and residual stream


def dots(h: Tensor, o: Tensor) -> Dots:
    """Dot products of h and o, [row, token, d_model] in any float dtype."""
    h, o = h.float(), o.float()
    return Dots((h * h).sum(-1), (o * o).sum(-1), (h * o).sum(-1))


def attention_shares(products: Dots) -> dict[str, Tensor]:
    """Attention's share a of h + o, [row, token] in [0, 1], by mix; the residual's is 1 − a.

    ``norm`` compares ‖o‖ and ‖h‖, ``cosine`` their cosines with h + o, ``projection`` is o's part of h + o along it.
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


# Rollout


def column_field(key: Tensor, n_tokens: Tensor) -> Tensor:
    """1 / (T − j), [row, alignment, key], of places j [row, key]; T is `n_tokens` [row], 1 less for `emit`."""
    n_seeing = torch.stack([n_tokens - 1, n_tokens], 1)[..., None] - key[:, None]
    return 1 / n_seeing.clamp_min(1).float()


def element_field(query: Tensor, key: Tensor) -> Tensor:
    """1 / (i − j + 1), [row, query, key], of places i [row, query] and j [row, key]; 1 where j > i."""
    return (query.float()[..., None] - key.float()[:, None] + 1).clamp_min_(1).reciprocal_()


def normalisers(mean: Tensor, column: Tensor, element: Tensor) -> Tensor:
    """Row sums of attention under each receptive field, [row, query, normaliser], in the order of `NORMALISERS`.

    Args:
        mean: [row, query, key] attention, mean over heads, over all keys.
        column: [row, alignment, key] from `column_field`.
        element: [row, query, key] from `element_field`.
    """
    return torch.cat([mean @ column.mT, (mean * element).sum(-1, keepdim=True)], 2)


def rows_summed(
    blocks: list[Tensor], norms: list[Tensor], shares: list[Tensor], query: Tensor, n_tokens: Tensor, valid: Tensor
) -> Tensor:
    """Sum of the rows of R, and its last row: [row, field, mix, 2, alignment, key].

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
        x = v * a / d.clamp_min(_TINY)
        # the column field is a factor of a key, so that it shares the product with no field at all
        plain = x[:, :2].flatten(1, 4) @ block
        nearer = x[:, 2:].flatten(1, 4) @ (block * element)
        y = torch.cat([plain, nearer], 1).view_as(v)
        y[:, 1] *= column[:, None, None]
        v = y + v * (1 - a)
    return v


def rows_largest(
    blocks: list[Tensor], norms: list[Tensor], shares: list[Tensor], query: Tensor, n_tokens: Tensor, valid: Tensor
) -> Tensor:
    """Largest entry of each column of R, [row, field, mix, alignment, key]; arguments as of `rows_summed`.

    R = Â_L … Â_1 is formed from the first layer on, some columns at a time, and what is 0 above the diagonal is left
    out. One R serves both alignments, the first without its last row, but for the column field, which differs.
    """
    column, element = column_field(query, n_tokens), element_field(query, query)

    def fielded(name: str, rows: slice) -> Iterator[Tensor]:  # Ã [row, query, key] of each layer, from a place on
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
    size = math.ceil(n_queries / max(1, round(n_queries / _COLUMNS)))
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
    """First `size` columns of the product of a A + (1 − a) I over layers, [row, query, mix, column]; first rightmost.

    `layers` are A, [row, query, query] lower triangular, and `shares` a, [row, mix, query]. `size` rows are multiplied
    at a time.
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
            residual = product[:, some] * (1 - a[:, some])
            product[:, some] = residual.addcmul_(reached.view_as(residual), a[:, some])
    return product
