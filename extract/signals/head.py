"""A model's head on chosen hidden states, with whatever the model itself does to logits: scales, soft caps, biases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from extract.errors import InputError
from extract.signals.capture import decoder_of


def logits_of(model: Any, states: Tensor, output: Any) -> Tensor:
    """Logits [row, vocab] of hidden states [row, d_model] after the final norm, in the model's dtype.

    The model's own forward is run with its decoder standing aside, so that nothing of the head is written here again.

    Args:
        model: Causal language model.
        states: Hidden states.
        output: What the decoder returns; only its type is looked at.

    Raises:
        InputError: The model does not make its logits from its decoder's output.
    """
    ids = torch.zeros(1, len(states), dtype=torch.int64, device=model.device)
    with _decoder_gives(decoder_of(model), type(output)(last_hidden_state=states[None])) as calls:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    if calls != [1] or len(logits) != len(states):
        raise InputError(
            f"Expected a model whose logits come from its decoder's output, but those of {type(model).__name__} don't. Its token entropies can't be read; use another model."
        )
    return logits


@contextmanager
def _decoder_gives(decoder: nn.Module, output: Any) -> Iterator[list[int]]:
    """Have a decoder return `output` whatever it is given; yields a list with a 1 for each call."""
    own, calls = decoder.__dict__.get("forward"), []

    def forward(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return output

    decoder.__dict__["forward"] = forward
    try:
        yield calls
    finally:
        if own is None:
            del decoder.__dict__["forward"]
        else:
            decoder.__dict__["forward"] = own
