"""Signals computed from token distributions: `tokens`, `entropy_profile`, `evolution` and `early_exit`."""

import torch
from torch import Tensor

from extract.signals.base import Pass

#: Numbers k for which `evolution` summarises the k layers before the last one.
N_LAST = (3, 5, 10)

#: Thresholds θ of `early_exit` in thousandths.
THRESHOLDS = (25, 50, 100, 200)


def tokens(batch: Pass) -> dict[str, Tensor]:
    """Return five statistics of the distribution p from which each token y was drawn.

    The result is a dict from ``L/name``, where L is the number of blocks, to tensors [row, token] float32. p is the
    model's own distribution at temperature 1, before top-p and top-k.

    - ``nll``: −log p(y) in nats. Its mean over an answer is the length-normalised negative log-likelihood.
    - ``entropy``: −Σ p log p in nats.
    - ``plogp``: −p(y) log p(y) in nats, which is not monotone in p(y).
    - ``one_minus_pmax``: 1 minus the largest probability.
    - ``margin``: largest probability minus the second largest. Unlike the others, it is small for uncertain tokens.

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
    for each k in `N_LAST` that is less than L. Variances divide by k − 1.

    - ``mean_kl_k``, ``var_kl_k``: mean and variance of the divergence KL(p_l ‖ p_L) from the last layer.
    - ``jsd_k``: mean Jensen–Shannon divergence between p_l and p_L.
    - ``mean_entropy_k``, ``var_entropy_k``: mean and variance of the entropy of p_l.
    - ``early_late``: KL(p_E ‖ p_F), where p_E and p_F are the mean distributions of the first and the last quarter of
      all layers.
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

    The result is a dict from ``L/rule_θ``, with the threshold θ in thousandths, to tensors [row, token] float32 in
    [0, 1]. Layer 0 is the embeddings. h_l is the residual stream of layer l before the final norm, and p₁ and p₂ are
    the two largest probabilities in the distribution of layer l.

    - ``state_θ``: first layer l after which the next block barely rotates the stream: 1 − cos(h_l, h_{l+1}) ≤ θ.
    - ``softmax_θ``: first layer whose distribution is nearly certain of one token: 1 − (p₁ − p₂) ≤ θ.
    - ``saturated_θ``: first layer l such that cos(h_l, h_L) ≥ 1 − θ for it and all later layers.
    - ``persistent``: first layer such that it and all later layers have the same most likely token as layer L.

    If no earlier layer qualifies, the result is layer L.
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
    """Return the first of layers 0 … L − 1 that qualifies, or L if none does. `qualifies` is [..., layer] bool."""
    return torch.where(qualifies.any(-1), qualifies.int().argmax(-1), qualifies.shape[-1]).float()


def _first_to_hold(holds: Tensor) -> Tensor:
    """Return the first of layers 0 … L such that `holds` [..., layer] is True for it and all later ones, else L."""
    to_the_end = holds.flip(-1).int().cummin(-1).values.sum(-1)
    return (holds.shape[-1] - to_the_end.clamp(min=1)).float()
