"""Reads attention from queries and keys while the forward pass itself stays as it is.

transformers calls an attention function by name. Ours calls the model's own, so that the pass does not change by a bit,
then computes the weights of the answers' queries, a few heads and queries at a time, and keeps sums of them. Hooks on
the blocks keep how much attention adds to the residual stream.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch import Tensor, nn

from extract.errors import InputError
from extract.signals.attention_math import FLOORS, column_field, dots, element_field, log_floor
from extract.signals.attention_scores import read_layer
from extract.signals.base import Attention, Dots
from extract.signals.model_parts import Hooks, decoder_blocks
from extract.signals.spans import Places, TokenSpans

_active: ContextVar[AttentionReader | None] = ContextVar("attention_reader", default=None)


class AttentionReader:
    """Reads attention in passes of a model inside its context: `start` before a pass, `finish` after it.

    Other passes are left alone. On exit the model attends as before.

    Args:
        model: Causal language model with SDPA or eager attention.
        needs: Among attention_entropy, attention_blocks, attention_macs and mixing. All but the first need passes over
            answers.

    Raises:
        InputError: If the model does not call transformers' attention function once per layer, or its blocks do not add
            attention to the residual stream; raised on entering the context, in the pass or by `finish`.
    """

    def __init__(self, model: Any, needs: Collection[str]) -> None:
        self._model, self._needs = model, frozenset(needs)
        self._last = bool(self._needs - {"attention_entropy"})
        self._mixing = MixingCapture(model) if "mixing" in self._needs else None
        self._layer_of: dict[int, int] = {}  # of every module in a block, by its id
        self._spans: TokenSpans | None = None
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        blocks = decoder_blocks(self._model)
        self._layer_of = {id(module): layer for layer, block in enumerate(blocks) for module in block.modules()}
        with ExitStack() as stack:
            implementation = self._model.config._attn_implementation
            if implementation not in ("sdpa", "eager") or not self._model._can_set_attn_implementation():
                raise self._refusal(f"has {implementation!r} attention, which can't be replaced")
            stack.callback(self._model.set_attn_implementation, implementation)
            self._model.set_attn_implementation(_register(implementation))
            stack.callback(_active.reset, _active.set(self))
            if self._mixing is not None:
                stack.enter_context(self._mixing)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._spans = None
        self._exit.close()

    def start(self, spans: TokenSpans) -> None:
        """Set where the answers are in the next pass."""
        self._spans = spans
        self._calls: Counter[int] = Counter()
        self._places: dict[torch.device, tuple[Places, tuple[Tensor, Tensor] | None]] = {}
        self._layers: dict[int, dict[str, Tensor]] = {}
        self._floors: dict[int, Tensor] = {}
        if self._mixing is not None:
            self._mixing.index = spans.query_index(self._last)

    def finish(self) -> Attention:
        """Attention of the last pass; nothing is kept from the next one until `start`.

        Raises:
            InputError: If a layer did not call its attention function once.
        """
        self._spans = None
        if self._calls != Counter(set(self._layer_of.values())):
            raise self._refusal(f"did so in {len(self._calls)}, {self._calls.total()} times in all")
        places = next(iter(self._places.values()))[0]
        products = [] if self._mixing is None else self._mixing.finish()
        masked = [Dots(*(p.masked_fill(~places.valid.to(p.device), 0.0) for p in layer)) for layer in products]
        layers, self._places, self._layers = [self._layers[layer] for layer in sorted(self._layers)], {}, {}
        return Attention(places, layers, self._floors, masked)

    @torch.no_grad()
    def attended(self, module: Any, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]) -> None:
        """Read one layer from the arguments of its attention function."""
        layer = self._layer_of.get(id(module))
        if self._spans is None or layer is None:
            return
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if options.get("position_bias") is not None or not causal:
            raise self._refusal("adds biases to its scores or looks ahead")
        self._calls[layer] += 1
        if query.device not in self._places:
            places, fields = Places.of(self._spans, query.shape[2], key.shape[2], self._last, query.device), None
            if "attention_blocks" in self._needs:
                fields = column_field(places.key, places.n_tokens), element_field(places.query, places.key)
            self._places[query.device] = places, fields
        places, fields = self._places[query.device]
        scaling, softcap = options.get("scaling"), options.get("softcap")
        numbers = read_layer(query, key, mask, places, self._needs, fields, scaling, softcap)
        if (largest := numbers.pop("largest", None)) is not None:
            for floor in FLOORS:
                logs = log_floor(largest, floor)
                self._floors[floor] = logs.add_(self._floors[floor].to(logs.device)) if floor in self._floors else logs
        self._layers[layer] = numbers

    def _refusal(self, reason: str) -> InputError:
        n = len(set(self._layer_of.values()))
        return InputError(
            f"Expected a model that calls transformers' attention function once in each of its {n} layers, "
            f"but {type(self._model).__name__} {reason}. Leave attention_entropy, rollout, rollout_max and macs out, "
            "or use another model."
        )


def _register(implementation: str) -> str:
    """Register our attention function for a model with this implementation; returns its name in transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    name = f"answer_attention_{implementation}"
    AttentionInterface.register(name, {"sdpa": _sdpa, "eager": _eager}[implementation])
    AttentionMaskInterface.register(name, {"sdpa": sdpa_mask, "eager": eager_mask}[implementation])
    return name


def _sdpa(module: Any, *args: Any, **options: Any) -> Any:
    """SDPA with transformers' signature, read by the active reader."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return _attend(sdpa_attention_forward, module, *args, **options)


def _eager(module: Any, *args: Any, **options: Any) -> Any:
    """The same for models without SDPA, because of soft caps or sinks, or that were asked to do without."""
    return _attend(sys.modules[type(module).__module__].eager_attention_forward, module, *args, **options)


def _attend(
    attend: Callable[..., Any],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Any:
    reader = _active.get()
    if reader is not None:
        reader.attended(module, query, key, attention_mask, options)
    return attend(module, query, key, value, attention_mask, **options)


class MixingCapture(Hooks):
    """Hooks that keep the dot products of residual stream and attention output at chosen tokens of each block.

    The residual h is what enters a block; the attention output o is what is added to it, which in Gemma 2 and 3 comes
    from the norm behind the attention.

    Args:
        model: A causal language model.

    Attributes:
        index: [row, query] int64, indices of the tokens of the next pass that are kept; None keeps nothing.

    Raises:
        InputError: If h + o is not what goes on in a block; raised on entering the context or in the first pass.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.index: Tensor | None = None
        self._model = model
        self._h: dict[int, Tensor] = {}
        self._sum: dict[int, Tensor] = {}
        self._dots: dict[int, Dots] = {}
        self._checked: set[int] = set()

    def __enter__(self) -> Self:
        parts = [(block, *self._parts(block)) for block in decoder_blocks(self._model)]
        for layer, (block, attention, norm) in enumerate(parts):
            self._handles += [
                block.register_forward_pre_hook(self._before_block(layer), with_kwargs=True),
                attention.register_forward_hook(self._after_attention(layer)),
                norm.register_forward_pre_hook(self._before_norm(layer)),
            ]
        return self

    def finish(self) -> list[Dots]:
        """Dot products [row, query] of the last pass by layer; nothing is kept from the next until `index` is set."""
        if self._checked != self._dots.keys():
            raise self._refusal()
        products = [self._dots[layer] for layer in sorted(self._dots)]
        self.index, self._dots = None, {}
        return products

    def _parts(self, block: nn.Module) -> tuple[nn.Module, nn.Module]:
        """The module whose output is added to the residual stream, and the one that takes the sum."""
        children = dict(block.named_children())
        if "pre_feedforward_layernorm" in children and "post_attention_layernorm" in children:
            return children["post_attention_layernorm"], children["pre_feedforward_layernorm"]
        attention = [children[name] for name in ("self_attn", "attn", "attention") if name in children]
        norm = [children[name] for name in ("post_attention_layernorm", "ln_2") if name in children]
        if not attention or not norm:
            raise self._refusal()
        return attention[0], norm[0]

    def _refusal(self) -> InputError:
        return InputError(
            "Expected blocks that add what attention returns to what entered them, but those of "
            f"{type(self._model).__name__} don't. Leave rollout and rollout_max out, or use another model."
        )

    def _select(self, states: Tensor) -> Tensor:
        """[row, query, d_model] of `index`; an index behind the pass's last token selects that one."""
        assert self.index is not None
        self.index = self.index.to(states.device)
        index = self.index.clamp_max(states.shape[1] - 1)
        return states.detach()[torch.arange(len(index), device=states.device)[:, None], index]

    def _before_block(self, layer: int) -> Any:
        def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.index is not None:
                self._h[layer] = self._select(args[0] if args else kwargs["hidden_states"])

        return hook

    def _after_attention(self, layer: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self.index is not None:
                h, o = self._h.pop(layer), self._select(output if isinstance(output, Tensor) else output[0])
                self._dots[layer] = dots(h, o)
                if layer not in self._checked:
                    self._sum[layer] = h[:, 0] + o[:, 0]

        return hook

    def _before_norm(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            # how a block is built shows at any token and does not change from pass to pass
            if self.index is not None and layer not in self._checked:
                states = self._select(args[0])[:, 0]
                if layer not in self._sum or not torch.allclose(self._sum.pop(layer), states, equal_nan=True):
                    raise self._refusal()
                self._checked.add(layer)

        return hook
