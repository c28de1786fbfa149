"""The signal `tokens`: how unsure the model itself was of each token of an answer."""

from __future__ import annotations

from torch import Tensor

from extract.signals.base import Pass


def tokens(read: Pass) -> dict[str, Tensor]:
    """Five numbers of the distribution p that drew each token y: [row, token] float32 by ``L/name``, L blocks.

    Of the model itself: temperature 1, before top-p and top-k. At question scope nothing is drawn yet, and ``nll`` and
    ``plogp`` are left out.

    - ``nll``: −log p(y) in nats; its mean over an answer is what is called length-normalised likelihood.
    - ``entropy``: −Σ p log p in nats.
    - ``plogp``: −p(y) log p(y) in nats, not monotone in p(y).
    - ``one_minus_pmax``: 1 − p of the likeliest word.
    - ``margin``: p of the likeliest word less that of the next one; the only one that falls with uncertainty.
    """
    lens = read.lens
    found = {"entropy": lens["entropy"], "one_minus_pmax": 1 - lens["largest"], "margin": lens["margin"]}
    if read.tokens is not None:
        found |= {"nll": -lens["log_p"], "plogp": -lens["log_p"].exp() * lens["log_p"]}
    return {f"{read.n_layers}/{name}": values for name, values in found.items()}
