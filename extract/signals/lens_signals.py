"""The signals of token distributions: `tokens`, `entropy_profile`, `evolution` and `early_exit`."""

import torch
from torch import Tensor

from extract.signals.base import Pass

#: Numbers of layers before the last one that `evolution` summarises.
N_LAST = (3, 5, 10)

#: Thresholds θ of `early_exit` in thousandths.
THRESHOLDS = (25, 50, 100, 200)


def tokens(batch: Pass) -> dict[str, Tensor]:
    """Five numbers of the distribution p that drew each token y: [row, token] float32 by ``L/name``, L blocks.

    The distribution is the model's own: temperature 1, before top-p and top-k. At question scope no token is drawn yet,
    so ``nll`` and ``plogp`` are left out.

    - ``nll``: −log p(y) in nats. Its mean over an answer is called length-normalised likelihood.
    - ``entropy``: −Σ p log p in nats.
    - ``plogp``: −p(y) log p(y) in nats, not monotone in p(y).
    - ``one_minus_pmax``: 1 − p of the most likely token.
    - ``margin``: p of the most likely token minus p of the second. The only number that falls with uncertainty.
    """
    lens = batch.lens
    found = {"entropy": lens["entropy"], "one_minus_pmax": 1 - lens["largest"], "margin": lens["margin"]}
    if batch.tokens is not None:
        found |= {"nll": -lens["log_p"], "plogp": -lens["log_p"].exp() * lens["log_p"]}
    return {f"{batch.n_layers}/{name}": values for name, values in found.items()}


def entropy_profile(batch: Pass) -> dict[str, Tensor]:
    """Entropy of every layer's distribution with the model's final norm and head (Entropy-Lens, arXiv 2502.16570).

    Returns:
        [row, token] float32 in nats by ``l/entropy`` for l = 1 … L. Layer L has the model's own distribution.
    """
    return {f"{layer}/entropy": values for layer, values in enumerate(batch.lens["entropies"].unbind(-1), 1)}


def evolution(batch: Pass) -> dict[str, Tensor]:
    """Differences of the layers S = L − k … L − 1 from each other and from the last one: [row, token] by ``L/name_k``.

    - ``mean_kl``, ``var_kl``: mean and variance over S of KL(p_l ‖ p_L).
    - ``jsd``: mean Jensen–Shannon divergence of p_l and p_L.
    - ``mean_entropy``, ``var_entropy``: mean and variance of the entropies of S.
    - ``early_late``, without k: KL(p_E ‖ p_F) of the mean distributions of the first and last quarter of the layers.

    Units are nats, and nats² for variances, which divide by k − 1. L is not in S, because its KL is 0. A k is left out
    if the model has no more than k layers.
    """
    lens, last = batch.lens, batch.n_layers
    found = {"early_late": lens["early_late"]}
    for k in (k for k in N_LAST if k < last):
        kl, entropies = lens["kl"][..., -k:], lens["entropies"][..., last - 1 - k : last - 1]
        found |= {
            f"mean_kl_{k}": kl.mean(-1),
            f"var_kl_{k}": kl.var(-1),
            f"jsd_{k}": lens["jsd"][..., -k:].mean(-1),
            f"mean_entropy_{k}": entropies.mean(-1),
            f"var_entropy_{k}": entropies.var(-1),
        }
    return {f"{last}/{name}": values for name, values in found.items()}


def early_exit(batch: Pass) -> dict[str, Tensor]:
    """Exit layers e / L in [0, 1]: [row, token] float32 by ``L/rule_θ``, θ in thousandths. 0 is the embeddings.

    - ``state``: first layer whose residual stream barely turns in the next block, 1 − cos(h_l, h_{l+1}) ≤ θ.
    - ``softmax``: first layer that is certain of a token, 1 − (p₁ − p₂) ≤ θ.
    - ``saturated``: first layer from which cos(h_l, h_L) ≥ 1 − θ holds for all later layers.
    - ``persistent``: first layer from which the most likely token is that of layer L (no θ).

    Residual streams are taken before the final norm, also at layer L. If no layer before L qualifies, e = L.
    """
    lens, last = batch.lens, batch.n_layers
    found = {"persistent": _first_to_hold(lens["agrees"] > 0)}
    for threshold in THRESHOLDS:
        theta = threshold / 1000
        found |= {
            f"state_{threshold}": _first(1 - lens["next_cosines"] <= theta),
            f"softmax_{threshold}": _first(1 - lens["margins"][..., :-1] <= theta),
            f"saturated_{threshold}": _first_to_hold(lens["last_cosines"] >= 1 - theta),
        }
    finite = torch.isfinite(torch.cat([lens["margins"], lens["last_cosines"]], dim=-1)).all(-1)
    return {f"{last}/{name}": torch.where(finite, layer / last, torch.nan) for name, layer in found.items()}


def _first(qualifies: Tensor) -> Tensor:
    """First of the layers [..., layer] 0 … L − 1 that qualifies, else L."""
    return torch.where(qualifies.any(-1), qualifies.int().argmax(-1), qualifies.shape[-1]).float()


def _first_to_hold(holds: Tensor) -> Tensor:
    """First of the layers [..., layer] 0 … L from which `holds` is true to the end, else L."""
    to_the_end = holds.flip(-1).int().cummin(-1).values.sum(-1)
    return (holds.shape[-1] - to_the_end.clamp(min=1)).float()
