"""The signal `early_exit`: at which layer the model might have stopped, as a share of all layers."""

from __future__ import annotations

import torch
from torch import Tensor

from extract.signals.base import Pass

#: Thresholds θ in thousandths.
THRESHOLDS = (25, 50, 100, 200)


def early_exit(read: Pass) -> dict[str, Tensor]:
    """Exit layers e / L in [0, 1]: [row, token] float32 by ``L/rule_θ``, θ in thousandths. 0 is the embeddings.

    - ``state``: the first layer whose residual stream the next block hardly turns, 1 − cos(h_l, h_{l+1}) ≤ θ.
    - ``softmax``: the first layer that is sure of a word, 1 − (p₁ − p₂) ≤ θ.
    - ``saturated``: the first layer from which on cos(h_l, h_L) ≥ 1 − θ holds to the end.
    - ``persistent``: the first layer from which on the likeliest word is that of layer L (no θ).

    Residual streams are taken before the final norm, that of layer L too. Where no layer before L qualifies, e = L.
    """
    lens, last = read.lens, read.n_layers
    found = {"persistent": _from_on(lens["agrees"] > 0)}
    for threshold in THRESHOLDS:
        theta = threshold / 1000
        found |= {
            f"state_{threshold}": _first(1 - lens["next_cosines"] <= theta),
            f"softmax_{threshold}": _first(1 - lens["margins"][..., :-1] <= theta),
            f"saturated_{threshold}": _from_on(lens["last_cosines"] >= 1 - theta),
        }
    known = torch.isfinite(torch.cat([lens["margins"], lens["last_cosines"]], dim=-1)).all(-1)
    return {f"{last}/{name}": torch.where(known, exit_ / last, torch.nan) for name, exit_ in found.items()}


def _first(qualifies: Tensor) -> Tensor:
    """The first of the layers [..., layer] 0 … L − 1 that qualifies, else L."""
    n_layers = qualifies.shape[-1]
    return torch.where(qualifies.any(-1), qualifies.int().argmax(-1), n_layers).float()


def _from_on(holds: Tensor) -> Tensor:
    """The first of the layers [..., layer] 0 … L from which on it holds to the end; L where it holds at L alone or not even there."""
    to_the_end = holds.flip(-1).int().cummin(-1).values.sum(-1)
    return (holds.shape[-1] - to_the_end.clamp(min=1)).float()
