"""Parts of a causal language model: decoder, blocks, final norm and head."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from extract.errors import InputError

_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


def n_layers(model: Any) -> int:
    """Return the number L of transformer blocks."""
    return int(model.config.get_text_config().num_hidden_layers)


def decoder_of(model: Any) -> nn.Module:
    """Return the decoder, without the language-model head."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if isinstance(decoder, nn.Module) and decoder is not model else model.base_model


def decoder_blocks(model: Any) -> nn.ModuleList:
    """Return the decoder's list of blocks. Raises an InputError if there is none."""
    for module in decoder_of(model).children():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers(model):
            return module
    raise InputError(
        f"Expected a decoder with a list of {n_layers(model)} blocks, but {type(model).__name__} has no such list. "
        "Signals can't be read from models with this architecture. Use another model."
    )


class Hooks(ExitStack):
    """Context manager for hooks on hidden states."""

    def before(self, module: nn.Module, act: Callable[[Tensor], object]) -> None:
        """Add a hook that calls `act` with the hidden states that enter `module`."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            act(args[0] if args else kwargs["hidden_states"])

        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, act: Callable[[Tensor], object]) -> None:
        """Add a hook that calls `act` with the output of `module`, or with its first element if it is a tuple."""

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            act(output if isinstance(output, Tensor) else output[0])

        self.callback(module.register_forward_hook(hook).remove)


class ModelHead:
    """Language-model head as a function from hidden states to logits.

    It calls the model's own `forward` with a decoder that returns the given states. Logits are therefore scaled and
    soft-capped as usual.
    """

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        self._model = model
        token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        self._output = type(decoder_of(model)(input_ids=token, use_cache=False))

    def chunk_size(self, n_logits: dict[str, int]) -> int:
        """Return the number of tokens per chunk. `n_logits` maps device types to the number of logits per chunk."""
        vocab: int = self._model.config.get_text_config().vocab_size
        return max(1, n_logits.get(self._model.device.type, n_logits["cpu"]) // vocab)

    def __call__(self, states: Tensor) -> Tensor:
        """Compute logits [token, vocab], in the model's dtype, from states [token, d_model] after the final norm.

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
                f"Expected {type(self._model).__name__} to compute its logits from its decoder's output, but it does "
                "not. Its token distributions can't be read. Use another model."
            )
        return logits.to(states.device)


def final_norm(model: Any) -> nn.Module:
    """Return the model's final norm. Raises an InputError if there is none, or if its width differs from the head's."""
    parts, head = dict(decoder_of(model).named_children()), model.get_output_embeddings().weight
    norm = next((parts[name] for name in _NORMS if name in parts), None)
    if norm is None or any(weight.shape[-1] != head.shape[-1] for weight in norm.parameters()):
        raise not_norm_alone(model)
    return norm


def not_norm_alone(model: Any) -> InputError:
    """Return the error for a model that does not have exactly one known norm between its last block and its head."""
    return InputError(
        f"Expected {type(model).__name__} to have only a final norm ({', '.join(_NORMS[:-1])} or {_NORMS[-1]}) between "
        "its last block and its head, but it does not. Leave out entropy_profile, evolution and early_exit, or use "
        "another model."
    )
