"""Signals computed from token distributions: `tokens`, `entropy_profile`, `evolution` and `early_exit`."""

import torch
from torch import Tensor

from extract.signals.base import Pass

#: Numbers k for which `evolution` summarises the k layers before the last layer.
N_LAST = (3, 5, 10)

#: Thresholds λ of the confidence measures in `early_exit`, in thousandths.
CONFIDENCES = (800, 900, 950, 975)

#: Thresholds λ of the similarity to the last layer in `early_exit`, in thousandths.
SIMILARITIES = (200, 300, 600, 700)


def tokens(batch: Pass) -> dict[str, Tensor]:
    """Return five statistics of the distribution p from which each token y was drawn.

    The result is a dict from ``L/name`` to tensors [row, token] float32, where L is the number of blocks. p is the
    model's own distribution at temperature 1, before top-p and top-k.

    - ``nll``: −log p(y) in nats. Its mean over an answer is the length-normalised negative log-likelihood.
    - ``entropy``: −Σ p log p in nats.
    - ``plogp``: −p(y) log p(y) in nats, which is not monotone in p(y).
    - ``one_minus_pmax``: 1 minus the largest probability.
    - ``margin``: largest probability minus the second largest. It is small if the model is uncertain.

    At question scope, no token has been drawn yet, so ``nll`` and ``plogp`` are left out.
    """
    lens = batch.lens
    found = {"entropy": lens["entropy"], "one_minus_pmax": 1 - lens["largest"], "margin": lens["margin"]}
    if batch.tokens is not None:
        found |= {"nll": -lens["log_p"], "plogp": -lens["log_p"].exp() * lens["log_p"]}
    return {f"{batch.n_layers}/{name}": values for name, values in found.items()}


def entropy_profile(batch: Pass) -> dict[str, Tensor]:
    """Return the entropy of every layer's token distribution (Entropy-Lens, arXiv 2502.16570).

    The result is a dict from ``l/entropy``, for layers l = 1 … L, to tensors [row, token] float32 in nats. The
    distribution of the last layer L is the model's own.
    """
    return {f"{layer}/entropy": values for layer, values in enumerate(batch.lens["entropies"].unbind(-1), 1)}


def evolution(batch: Pass) -> dict[str, Tensor]:
    """Summarise how the token distributions change over the last layers.

    The result is a dict from ``L/name`` to tensors [row, token] in nats, or nats² for variances. L is the number of
    layers, and p_l is the distribution of layer l. Means and variances are taken over the k layers l = L − k … L − 1,
    for each k in `N_LAST` that is less than L. Variances are computed with the divisor k − 1.

    - ``mean_kl_k``, ``var_kl_k``: mean and variance of the divergence KL(p_l ‖ p_L) from the last layer.
    - ``jsd_k``: mean Jensen–Shannon divergence between p_l and p_L.
    - ``mean_entropy_k``, ``var_entropy_k``: mean and variance of the entropy of p_l.
    - ``early_late``: KL(p_E ‖ p_F), where p_E and p_F are the mean distributions of the first and the last
      max(1, ⌊L/4⌋) layers. With L = 30, these are layers 1 … 7 and 24 … 30.
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
    thousandths. h_l is the residual stream of layer l before the final norm, and p₁ and p₂ are the two largest
    probabilities in the distribution of layer l. If no earlier layer meets the condition, the value is 1, which stands
    for layer L. Layer 0 (the embeddings) is left out, because its distribution repeats the input token if embeddings
    are tied.

    - ``softmax_response_λ``: first layer l ≥ 1 with p₁ − p₂ ≥ λ (CALM, arXiv 2207.07061).
    - ``state_saturation_λ``: first layer l ≥ 2 with cos(h_{l−1}, h_l) ≥ λ (CALM).
    - ``final_state_λ``: first layer l ≥ 1 such that cos(h_j, h_L) ≥ λ for all layers j ≥ l.
    - ``saturation_event``: first layer l ≥ 1 such that all layers j ≥ l have the same most likely token as layer L
      (Geva et al. 2022, arXiv 2203.14680).

    CALM calibrates λ for each task and lowers it for later tokens of an answer. Here, each λ is constant. The values of
    λ are `CONFIDENCES` for the first two names, and `SIMILARITIES` for the third.
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
