"""The signal `entropy_profile`: how spread each layer's distribution over words is, from the first block to the last."""

from __future__ import annotations

from torch import Tensor

from extract.signals.base import Pass


def entropy_profile(read: Pass) -> dict[str, Tensor]:
    """Entropy of every layer's distribution, through the model's own final norm and head (Entropy-Lens, arXiv 2502.16570).

    Returns:
        [row, token] float32 in nats by ``l/entropy`` for l = 1 … L; the last one is that of the model itself.
    """
    return {f"{layer}/entropy": values for layer, values in enumerate(read.lens["entropies"].unbind(-1), 1)}
