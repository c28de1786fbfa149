"""Hooks that keep a layer's hidden state at chosen tokens of each row, and nothing else of the pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from extract.errors import InputError
from extract.signals.positions import ANSWER_POSITIONS, answer_position


def n_layers(model: Any) -> int:
    """Number of blocks L; hidden states have L + 1 entries, of which 0 is the embeddings."""
    return int(model.config.get_text_config().num_hidden_layers)


def decoder_of(model: Any) -> nn.Module:
    """The decoder without its language-model head."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if isinstance(decoder, nn.Module) and decoder is not model else model.base_model


def decoder_blocks(model: Any) -> nn.ModuleList:
    """The decoder's blocks, in order.

    Raises:
        InputError: The decoder has no module list with one entry a layer.
    """
    for module in decoder_of(model).children():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers(model):
            return module
    raise InputError(
        f"Expected a decoder with a list of {n_layers(model)} blocks, but {type(model).__name__} has none. This architecture can't be read; use another model."
    )


class Hooks:
    """A context whose hooks on a model, put into `_handles` on entering it, are gone afterwards."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class HiddenCapture(Hooks):
    """Keeps hidden states [row, d_model] of chosen layers at `positions`, during forward passes inside the context.

    Layers are counted as by transformers' `output_hidden_states`: 0 is the embeddings as they enter the first block,
    l the residual stream after block l, and L the last one after the final norm.

    Args:
        model: A causal language model.
        layers: Layers to keep.

    Attributes:
        positions: [row] int64, the token of each row that is kept, as an index into the tokens of the pass; None keeps nothing.
        states: Kept hidden states by layer.
    """

    def __init__(self, model: Any, layers: Iterable[int]) -> None:
        super().__init__()
        self.layers = sorted(set(layers))
        last = n_layers(model)
        outside = [layer for layer in self.layers if not 0 <= layer <= last]
        if outside:
            raise InputError(
                f"Expected `layers` between 0 (embeddings) and {last}, but got {outside}. This model has {last} blocks."
            )
        self.positions: Tensor | None = None
        self.states: dict[int, Tensor] = {}
        self._model = model

    def __enter__(self) -> Self:
        blocks, last = decoder_blocks(self._model), n_layers(self._model)
        for layer in self.layers:
            if layer == 0:
                handle = blocks[0].register_forward_pre_hook(self._before_first, with_kwargs=True)
            elif layer == last:
                handle = decoder_of(self._model).register_forward_hook(self._after(layer))
            else:
                handle = blocks[layer - 1].register_forward_hook(self._after(layer))
            self._handles.append(handle)
        return self

    def stacked(self) -> Tensor:
        """[row, layer, d_model] of the last pass, on the CPU in the model's dtype."""
        device = self.states[self.layers[-1]].device
        return torch.stack([self.states[layer].to(device) for layer in self.layers], dim=1).cpu()

    def _before_first(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep(0, args[0] if args else kwargs["hidden_states"])

    def _after(self, layer: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                output = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
            self._keep(layer, output)

        return hook

    def _keep(self, layer: int, hidden: Tensor) -> None:
        if self.positions is not None:
            positions = self.positions.to(hidden.device)
            self.states[layer] = hidden[torch.arange(len(positions), device=hidden.device), positions]


class AnswerCapture(HiddenCapture):
    """Keeps hidden states [row, position, d_model] of chosen layers at the positions of an answer.

    Use as `HiddenCapture`: `look_at` before a pass, `take` after it.
    """

    def __init__(self, model: Any, layers: Iterable[int]) -> None:
        super().__init__(model, layers)
        self._spans: Tensor | None = None

    def look_at(self, n_prompt: Sequence[int], n_answer: Sequence[int]) -> None:
        """Say where the answers stand in the next pass.

        Args:
            n_prompt: Prompt tokens of each row.
            n_answer: Content tokens of each row.

        Raises:
            InputError: An answer without tokens.
        """
        lengths = list(zip(n_prompt, n_answer, strict=True))
        spans = [[answer_position(name, *of_row) for of_row in lengths] for name in ANSWER_POSITIONS]
        self._spans = torch.tensor([[(span.start, span.stop) for span in of_name] for of_name in spans])

    def take(self) -> dict[int, Tensor]:
        """The states of the last pass by layer, in the model's dtype; nothing is kept of the next until `look_at`."""
        states, self.states, self._spans = self.states, {}, None
        return states

    def _keep(self, layer: int, hidden: Tensor) -> None:
        if self._spans is not None:
            self.states[layer] = torch.stack([_mean(hidden, spans) for spans in self._spans], dim=1)


def _mean(hidden: Tensor, spans: Tensor) -> Tensor:
    """Mean [row, d_model] of `hidden` [row, token, d_model] over tokens from start to stop − 1, summed in float32.

    Args:
        hidden: Hidden states.
        spans: [row, 2] int64 start and stop of each row, on the CPU, where looking at them makes nobody wait.
    """
    single = bool((spans[:, 1] - spans[:, 0] == 1).all())
    first, last = int(spans[:, 0].min()), int(spans[:, 1].max())
    start, stop = spans.to(hidden.device).unbind(1)
    if single:
        return hidden[torch.arange(len(hidden), device=hidden.device), start]
    token = torch.arange(first, last, device=hidden.device)
    inside = (token >= start[:, None]) & (token < stop[:, None])
    total = torch.where(inside[..., None], hidden[:, first:last].float(), 0.0).sum(1)
    return (total / (stop - start)[:, None]).to(hidden.dtype)
