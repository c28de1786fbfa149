"""A model's final norm and head on chosen hidden states, with whatever the model does to logits: scales, soft caps, biases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from extract.errors import InputError
from extract.signals.capture import decoder_of

#: What decoders call the norm behind their last block.
_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


class ModelHead:
    """From hidden states to logits, by the model's own forward with its decoder standing aside.

    So nothing of the head is written here again. One token is read, to learn what the decoder returns.

    Args:
        model: Causal language model.
    """

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        self._model = model
        token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        self._output = type(decoder_of(model)(input_ids=token, use_cache=False))

    def tokens_of(self, n_logits: dict[str, int]) -> int:
        """Tokens whose logits are as many as this, given by device type; at least one."""
        kind = self._model.device.type
        vocab: int = self._model.config.get_text_config().vocab_size
        return max(1, n_logits.get(kind, n_logits["cpu"]) // vocab)

    def __call__(self, states: Tensor) -> Tensor:
        """Logits [token, vocab] of hidden states [token, d_model] after the final norm, in the model's dtype.

        Raises:
            InputError: The model does not make its logits from its decoder's output.
        """
        ids = torch.zeros(1, len(states), dtype=torch.int64, device=self._model.device)
        with _decoder_gives(decoder_of(self._model), self._output(last_hidden_state=states[None])) as calls:
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        if calls != [1] or len(logits) != len(states):
            raise InputError(
                f"Expected a model whose logits come from its decoder's output, but those of {type(self._model).__name__} don't. Its distributions can't be read; use another model."
            )
        return logits.to(states.device)


def final_norm(model: Any) -> nn.Module:
    """The norm between a decoder's last block and its head.

    Raises:
        InputError: There is none by the names that the known families give it, or its states are not what the head takes.
    """
    decoder = decoder_of(model)
    for name in _NORMS:
        if isinstance(module := getattr(decoder, name, None), nn.Module):
            widths = {one.shape[-1] for one in (*module.parameters(), model.get_output_embeddings().weight)}
            if len(widths) > 1:
                raise not_norm_alone(model)
            return module
    raise InputError(
        f"Expected a decoder whose final norm is called one of {', '.join(_NORMS)}, but {type(model).__name__} has none of them. Its layers can't be read through its head; leave out the signals that do so, or use another model."
    )


def not_norm_alone(model: Any) -> InputError:
    """The refusal of a model that does more between its last block and its head than a norm."""
    return InputError(
        f"Expected the last block of {type(model).__name__} to be followed by its final norm alone, but it is not. Its layers can't be read through its head; leave out the signals that do so, or use another model."
    )


@contextmanager
def _decoder_gives(decoder: nn.Module, output: Any) -> Iterator[list[int]]:
    """Have a decoder return `output` whatever it is given, without its hooks; yields a list with a 1 for each call."""
    calls: list[int] = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return output

    decoder.__dict__["_call_impl"] = call  # what torch runs, hooks and `forward` included
    try:
        yield calls
    finally:
        del decoder.__dict__["_call_impl"]
