"""Parts of a causal language model: its decoder, its blocks, its final norm, and its head."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from extract.errors import InputError

#: Names of the norm after the last block.
_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


def n_layers(model: Any) -> int:
    """Number of blocks L. Hidden states have L + 1 entries; entry 0 is the embeddings."""
    return int(model.config.get_text_config().num_hidden_layers)


def decoder_of(model: Any) -> nn.Module:
    """The decoder without the language-model head."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if isinstance(decoder, nn.Module) and decoder is not model else model.base_model


def decoder_blocks(model: Any) -> nn.ModuleList:
    """The decoder's blocks, in order.

    Raises:
        InputError: If the decoder has no module list with one entry per layer.
    """
    for module in decoder_of(model).children():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers(model):
            return module
    raise InputError(
        f"Expected a decoder with a list of {n_layers(model)} blocks, but {type(model).__name__} has none. Use another "
        "model, because this architecture can't be read."
    )


class Hooks(ExitStack):
    """Context for hooks on hidden states. Hooks that are added on entry are removed on exit."""

    def before(self, module: nn.Module, act: Callable[[Tensor], object]) -> None:
        """Call `act` with the hidden states that enter a module."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            act(args[0] if args else kwargs["hidden_states"])

        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, act: Callable[[Tensor], object]) -> None:
        """Call `act` with the hidden states that a module returns, alone or as the first output."""

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            act(output if isinstance(output, Tensor) else output[0])

        self.callback(module.register_forward_hook(hook).remove)


class ModelHead:
    """Language-model head as a function from hidden states to logits.

    It calls the model's own forward with a constant decoder, which includes scales and soft caps. One token is read at
    construction to learn the type of the decoder's output.
    """

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        self._model = model
        token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        self._output = type(decoder_of(model)(input_ids=token, use_cache=False))

    def chunk_size(self, n_logits: dict[str, int]) -> int:
        """Largest number of tokens, at least one, with at most `n_logits` logits; `n_logits` is by device type."""
        vocab: int = self._model.config.get_text_config().vocab_size
        return max(1, n_logits.get(self._model.device.type, n_logits["cpu"]) // vocab)

    def __call__(self, states: Tensor) -> Tensor:
        """Logits [token, vocab] of hidden states [token, d_model] after the final norm, in the model's dtype.

        Raises:
            InputError: If the model's logits are not computed from its decoder's output.
        """
        output, n_calls = self._output(last_hidden_state=states[None]), 0

        def constant(*args: Any, **options: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            return output

        ids = torch.zeros(1, len(states), dtype=torch.int64, device=self._model.device)
        attributes = decoder_of(self._model).__dict__
        attributes["_call_impl"] = constant  # replaces `forward` and its hooks
        try:
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            del attributes["_call_impl"]
        if n_calls != 1 or len(logits) != len(states):
            raise InputError(
                f"Expected the logits of {type(self._model).__name__} to come from its decoder's output, but they "
                "don't. Use another model, because its distributions can't be read."
            )
        return logits.to(states.device)


def final_norm(model: Any) -> nn.Module:
    """Norm between a decoder's last block and its head.

    Raises:
        InputError: If the decoder has no norm with a known name, or its size differs from the input size of the head.
    """
    parts, head = dict(decoder_of(model).named_children()), model.get_output_embeddings().weight
    norm = next((parts[name] for name in _NORMS if name in parts), None)
    if norm is None or any(weight.shape[-1] != head.shape[-1] for weight in norm.parameters()):
        raise not_norm_alone(model)
    return norm


def not_norm_alone(model: Any) -> InputError:
    """Error for a model with more than a norm between its last block and its head."""
    return InputError(
        f"Expected the last block of {type(model).__name__} to be followed only by its final norm, named "
        f"{', '.join(_NORMS[:-1])} or {_NORMS[-1]}, but it is not. Leave out the signals that read layers through the "
        "head, or use another model."
    )
