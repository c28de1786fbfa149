"""The signal `token_entropy`: how spread the distributions were that an answer's tokens came from."""

from __future__ import annotations

import torch
from torch import Tensor

from extract.signals.answers import AnswerPass
from extract.signals.capture import n_layers
from extract.signals.head import logits_of

#: Tokens whose logits are in memory at a time; with 152k words, 78 MB in float32.
_CHUNK = 128


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy [...] in nats of softmax(`logits` [..., vocab]), float32.

    H = log Σ exp(z) − Σ p z, with z shifted by its largest, without which float32 errs by 3e-4 nats at 152k words.
    A word of probability 0 adds nothing.
    """
    shifted = logits.float()
    shifted = shifted - shifted.amax(-1, keepdim=True)
    mean = torch.where(shifted.isneginf(), 0.0, shifted.softmax(-1) * shifted).sum(-1)
    return (shifted.logsumexp(-1) - mean).clamp_min(0)


def entropy_signal(answers: AnswerPass) -> dict[str, Tensor]:
    """Mean and largest entropy over an answer's content tokens: [row] float32 in nats by ``L/mean`` and ``L/max``.

    Token y_t was drawn from the distribution at index P + t − 2, so those at P − 1 … P + n − 2 are taken, of the model
    itself: temperature 1, before top-p and top-k. L is the number of blocks.
    """
    hidden, lengths = answers.output.last_hidden_state, answers.n_answer
    drawn_from = [
        hidden[row, n_prompt - 1 : n_prompt + n_answer - 1]
        for row, (n_prompt, n_answer) in enumerate(zip(answers.n_prompt, lengths, strict=True))
    ]
    chunks = torch.cat(drawn_from).split(_CHUNK)
    entropies = torch.cat([entropy(logits_of(answers.model, chunk, answers.output)) for chunk in chunks]).split(lengths)
    last = n_layers(answers.model)
    return {
        f"{last}/mean": torch.stack([one.mean() for one in entropies]),
        f"{last}/max": torch.stack([one.amax() for one in entropies]),
    }
