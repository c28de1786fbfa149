"""The signals of attention: `attention_entropy`, `rollout`, `rollout_max` and `macs`."""

import torch
from torch import Tensor

from extract.signals.attention_math import (
    ALIGNMENTS,
    ENTROPIES,
    FIELDS,
    MIXES,
    attention_shares,
    received,
    rows_largest,
    rows_summed,
)
from extract.signals.base import Pass


def attention_entropy(batch: Pass) -> dict[str, Tensor]:
    """Entropies of attention where each token was drawn: [row, token] in [0, 1] by ``layer/name``, layers from 1.

    - ``normalised``: mean over heads of each head's entropy, divided by the logarithm of the keys that it could see.
    - ``sink_free``: the same without the first token.
    - ``smallest_head``: as ``normalised``, of the head with the smallest one, and no mean.
    """
    found: dict[str, Tensor] = {}
    for layer, numbers in enumerate(batch.attention.layers, start=1):
        values = torch.stack([numbers[name] for name in ENTROPIES])[..., : batch.spans.widest].cpu()
        found |= {f"{layer}/{name}": entropy for name, entropy in zip(ENTROPIES, values, strict=True)}
    return found


def rollout(batch: Pass) -> dict[str, Tensor]:
    """Influence of each token: [row, token] float32, at least 0, by ``L/MIX_FIELD_AGG_ALIGN``.

    MIX is the residual's share, the same for all tokens (share_50, …) or as in `attention_shares`; FIELD the
    receptive field that attention is divided by; AGG how rows of R become one number: `mean` over all T, `rf_mean`
    over those that see the token, `last`. `emit` is the influence of the place that drew y_t, among the tokens without
    y_n; `token` that of y_t's own place, among all.
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
    """As `rollout`, by ``L/MIX_FIELD_max_ALIGN``: the largest influence that a token has on any of the places."""
    width, largest = batch.spans.widest, rows_largest(*_rollout_arguments(batch)).cpu()
    return {
        f"{batch.n_layers}/{mix}_{field}_max_{align}": largest[:, f, m, a, a : a + width]
        for f, field in enumerate(FIELDS)
        for m, mix in enumerate(MIXES)
        for a, align in enumerate(ALIGNMENTS)
    }


def _rollout_arguments(batch: Pass) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    """The arguments of `rows_summed` and `rows_largest`."""
    layers, places = batch.attention.layers, batch.attention.places
    shares = [torch.stack(list(attention_shares(products).values()), 1) for products in batch.attention.dots]
    means, sums = [layer["mean"] for layer in layers], [layer["sums"] for layer in layers]
    return means, sums, shares, places.query, places.n_tokens, places.valid


def macs(batch: Pass) -> dict[str, Tensor]:
    """How strongly later tokens attend to a token in every layer (Hu et al. 2025, "MACS", arXiv 2509.17178).

    Attention of the strongest head, kept from 0 by a floor, is multiplied over the layers. The product of 32 numbers of
    0.01 is 0 in any float, so that its logarithms are summed and the signal is the geometric mean over layers,
    [row, token] by ``L/floor_EPS_AGG_ALIGN``.

    AGG `rf_mean` and `max` are over the places that see a token, from its own to the answer's last one; `last` is that
    of the last one. With ALIGN `emit` the places are those that drew y_1 … y_n, with `token` those of y_1 … y_n.
    """
    width, found = batch.spans.widest, {}
    for floor, logs in batch.attention.floors.items():
        means = (logs / batch.n_layers).exp()
        for start, align in enumerate(ALIGNMENTS):
            block = means[:, start : start + width, start : start + width]
            for name, values in received(block, batch.attention.places.valid[:, 1:]).items():
                found[f"{batch.n_layers}/floor_{floor}_{name}_{align}"] = values.cpu()
    return found
