"""The signal `macs`: how strongly later tokens hold on to a token in every layer (Hu et al. 2025, "MACS").

Attention of the strongest head, kept from 0 by a floor, is multiplied over the layers. The product of 32 numbers of
0.01 is 0 in any float, so it is a sum of logarithms, and the signal is the geometric mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from extract.signals.capture import n_layers

#: Floors in hundredths; 20 is the paper's 1 − α.
FLOORS = (1, 20)


def log_floor(largest: Tensor, hundredths: int) -> Tensor:
    """log((1 − ε) · `largest` + ε), where `largest` is over heads."""
    eps = hundredths / 100
    return (largest * (1 - eps) + eps).log()


def macs(pass_: Any) -> dict[str, Tensor]:
    """Geometric means over layers, aggregated over the tokens that could look: [row, token] by ``L/floor_EPS_AGG_ALIGN``.

    `mean` and `max` are over the places from a token's own to the answer's last, `last` is of the last place.
    `emit` is what the place that drew y_t gets, and the last place is the one that drew y_n; `token` what y_t's own
    place gets, and the last one is y_n's.
    """
    of, last, found = pass_.attention, n_layers(pass_.model), {}
    for floor, logs in of.floors.items():
        kept = (logs / last).exp()
        for align, start in (("emit", 0), ("token", 1)):
            block = kept[:, start : start + of.places.rows.widest, start : start + of.places.rows.widest]
            for name, values in received(block, of.places.valid[:, 1:]).items():
                found[f"{last}/floor_{floor}_{name}_{align}"] = values
    return found


def received(block: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """What each key gets from the queries that see it, [row, key]: their `mean`, `max`, and that of the `last` query.

    Args:
        block: [row, query, key] at least 0; a query sees the keys up to its own.
        valid: [row, query] bool, true for a row's queries, which come first.
    """
    seen = block.tril().masked_fill(~valid[..., None], 0.0)
    n = valid.sum(1)
    n_see = (n[:, None] - torch.arange(block.shape[2], device=n.device)).clamp_min(1)
    row = torch.arange(len(block), device=n.device)
    return {"mean": seen.sum(1) / n_see, "max": seen.amax(1), "last": seen[row, n - 1]}
