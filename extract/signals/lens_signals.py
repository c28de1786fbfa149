"""Signals computed from token distributions: `tokens`, `entropy_profile`, `evolution` and `early_exit`."""

import torch
from torch import Tensor

from extract.signals.base import Pass

N_LAST = (3, 5, 10)

#: Thresholds λ of `early_exit` in thousandths, for confidences and for similarities.
CONFIDENCES = (800, 900, 950, 975)

SIMILARITIES = (200, 300, 600, 700)


def tokens(batch: Pass) -> dict[str, Tensor]:
    """Return five statistics of the model's next-token distribution p before each token y.

    The result is a dict from ``L/name`` to tensors [row, token] float32, where L is the number of blocks. p is the
    distribution at temperature 1, before top-p and top-k.

    - ``nll``: −log p(y) in nats.
    - ``entropy``: −Σ p log p in nats.
    - ``plogp``: −p(y) log p(y) in nats.
    - ``one_minus_pmax``: 1 minus the largest probability.
    - ``margin``: largest probability minus the second largest.

    At question scope, ``nll`` and ``plogp`` are left out.
    """
    lens = batch.lens
    found = {"entropy": lens["entropy"], "one_minus_pmax": 1 - lens["largest"], "margin": lens["margin"]}
    if batch.tokens is not None:
        found |= {"nll": -lens["log_p"], "plogp": -lens["log_p"].exp() * lens["log_p"]}
    return {f"{batch.n_layers}/{name}": values for name, values in found.items()}


def entropy_profile(batch: Pass) -> dict[str, Tensor]:
    """Return the entropy of every layer's token distribution (Entropy-Lens, arXiv 2502.16570).

    The result maps ``l/entropy``, for layers l = 1 … L, to tensors [row, token] float32 in nats.
    """
    return {f"{layer}/entropy": values for layer, values in enumerate(batch.lens["entropies"].unbind(-1), 1)}


def evolution(batch: Pass) -> dict[str, Tensor]:
    """Summarise how the token distributions change over the last layers.

    The result is a dict from ``L/name`` to tensors [row, token] in nats (nats² for variances). L is the number of
    layers, and p_l is the distribution of layer l. For each k < L in `N_LAST`, means and variances (with divisor k − 1)
    are taken over the k layers before L.

    - ``mean_kl_k``, ``var_kl_k``: mean and variance of KL(p_l ‖ p_L).
    - ``jsd_k``: mean Jensen–Shannon divergence between p_l and p_L.
    - ``mean_entropy_k``, ``var_entropy_k``: mean and variance of the entropy of p_l.
    - ``early_late``: KL(p_E ‖ p_F), where p_E and p_F are the mean distributions of the first and the last
      max(1, ⌊L/4⌋) layers.
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
    """Return the layer at which the model could have stopped, as a fraction of its L layers.

    The result is a dict from ``L/name`` to tensors [row, token] float32 in (0, 1]. Names contain the threshold λ in
    thousandths. h_l is the residual stream of layer l before the final norm. p₁ and p₂ are the two largest
    probabilities in the layer's distribution. Each value is l/L for the first layer l that meets a condition, or 1 if
    no layer before L does:

    - ``softmax_response_λ``: first layer l ≥ 1 with p₁ − p₂ ≥ λ (CALM, arXiv 2207.07061).
    - ``state_saturation_λ``: first layer l ≥ 2 with cos(h_{l−1}, h_l) ≥ λ (CALM).
    - ``final_state_λ``: first layer l ≥ 1 such that cos(h_j, h_L) ≥ λ for all layers j ≥ l.
    - ``saturation_event``: first layer l ≥ 1 such that all layers j ≥ l have the same most likely token as layer L
      (Geva et al. 2022, arXiv 2203.14680).

    λ takes the values in `CONFIDENCES` for the first two names, and those in `SIMILARITIES` for the third. In CALM, λ
    is calibrated for each task and decreases over tokens.
    """
    lens, last = batch.lens, batch.n_layers
    found = {"saturation_event": last + 1 - _n_leading(lens["agrees"].flip(-1) > 0)}
    for threshold in CONFIDENCES:
        found |= {
            f"softmax_response_{threshold}": 1 + _n_leading(~(lens["margins"] >= threshold / 1000)),
            f"state_saturation_{threshold}": 2 + _n_leading(~(lens["previous_cosines"] >= threshold / 1000)),
        }
    for threshold in SIMILARITIES:
        holds = lens["last_cosines"].flip(-1) >= threshold / 1000
        found[f"final_state_{threshold}"] = last + 1 - _n_leading(holds)
    finite = torch.isfinite(torch.cat([lens["margins"], lens["last_cosines"]], dim=-1)).all(-1)
    layers = {name: layer.clamp(max=last) / last for name, layer in found.items()}
    return {f"{last}/{name}": torch.where(finite, layer, torch.nan) for name, layer in layers.items()}


def _n_leading(holds: Tensor) -> Tensor:
    """Count the values in `holds` [..., layer] before the first False."""
    return holds.int().cumprod(-1).sum(-1)
