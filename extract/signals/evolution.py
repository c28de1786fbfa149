"""The signal `evolution`: how the distribution over words changes on its way through the layers."""

from __future__ import annotations

from torch import Tensor

from extract.signals.base import Pass

#: Layers before the last one that are looked at together.
LAST = (3, 5, 10)


def evolution(read: Pass) -> dict[str, Tensor]:
    """How the layers S = L − k … L − 1 differ from each other and from the last one: [row, token] float32 by ``L/name_k``.

    ``mean_kl`` and ``var_kl`` are the mean and variance over S of KL(p_l ‖ p_L), ``jsd`` the mean Jensen–Shannon divergence
    of p_l and p_L, ``mean_entropy`` and ``var_entropy`` mean and variance of the entropies of S; nats, and nats² for the
    variances, which divide by k − 1. ``early_late`` is KL(p_E ‖ p_F) of the mean distributions of the first and the last
    quarter of the layers. L itself is not in S, because its KL is 0. A k is left out of models with no more than k
    layers.
    """
    lens, last = read.lens, read.n_layers
    found = {"early_late": lens["early_late"]}
    for k in (k for k in LAST if k < last):
        kl, entropies = lens["kl"][..., -k:], lens["entropies"][..., last - 1 - k : last - 1]
        found |= {
            f"mean_kl_{k}": kl.mean(-1),
            f"var_kl_{k}": kl.var(-1),
            f"jsd_{k}": lens["jsd"][..., -k:].mean(-1),
            f"mean_entropy_{k}": entropies.mean(-1),
            f"var_entropy_{k}": entropies.var(-1),
        }
    return {f"{last}/{name}": values for name, values in found.items()}
