"""The signal `macs`: how strongly later tokens hold on to a token in every layer (Hu et al. 2025, "MACS").

Attention of the strongest head, kept from 0 by a floor, is multiplied over the layers. The product of 32 numbers of
0.01 is 0 in any float, so it is a sum of logarithms, and the signal is the geometric mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from extract.signals.base import Pass

#: Floors in hundredths; 20 is the paper's 1 − α.
FLOORS = (1, 20)


def log_floor(largest: Tensor, hundredths: int) -> Tensor:
    """log((1 − ε) · `largest` + ε), where `largest` is over heads."""
    eps = hundredths / 100
    return (largest * (1 - eps) + eps).log()


def macs(read: Pass) -> dict[str, Tensor]:
    """Geometric means over layers, aggregated over the places that could look: [row, token] by ``L/floor_EPS_AGG_ALIGN``.

    `rf_mean` and `max` are over the places that see a token, from its own to the answer's last one; `last` is of the last one alone.
    With `emit` the places are those that drew y_1 … y_n, with `token` those of y_1 … y_n themselves.
    """
    of, width, found = read.the_attention, read.rows.widest, {}
    for floor, logs in of.floors.items():
        kept = (logs / read.n_layers).exp()
        for start, align in enumerate(("emit", "token")):
            block = kept[:, start : start + width, start : start + width]
            for name, values in received(block, of.places.valid[:, 1:]).items():
                found[f"{read.n_layers}/floor_{floor}_{name}_{align}"] = values.cpu()
    return found


def received(block: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """What each key gets from the queries that see it, [row, key]: their mean, largest, and that of the last query.

    Args:
        block: [row, query, key] at least 0; a query sees the keys up to its own.
        valid: [row, query] bool, true for a row's queries, which come first.
    """
    seen = block.tril().masked_fill(~valid[..., None], 0.0)
    n = valid.sum(1)
    n_see = (n[:, None] - torch.arange(block.shape[2], device=n.device)).clamp_min(1)
    row = torch.arange(len(block), device=n.device)
    return {"rf_mean": seen.sum(1) / n_see, "max": seen.amax(1), "last": seen[row, n - 1]}
