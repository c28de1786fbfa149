"""Hooks that read attention weights and the contribution of attention to the residual stream.

transformers looks up its attention function by name. The function registered here computes the attention weights of the
requested queries. It then calls the model's own function, so the output stays bit-identical.
"""

import sys
from collections import Counter
from collections.abc import Collection
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any, Self

import torch
from torch import Tensor, nn

from extract.errors import InputError
from extract.signals.attention_scores import read_layer
from extract.signals.base import Attention, Dots, Places, TokenSpans
from extract.signals.model_parts import Hooks, decoder_blocks

#: Floors ε of MACS, in hundredths. The paper writes ε as 1 − α and uses 20.
FLOORS = (1, 20)
#: Pairs of modules. The first module, which is a norm in Gemma 2 and 3, returns the attention output. The input of the
#: second module is the sum of the attention output and the residual stream.
_ADDED = [
    ("post_attention_layernorm", "pre_feedforward_layernorm"),
    *product(("self_attn", "attn", "attention"), ("post_attention_layernorm", "ln_2")),
]


class MixingCapture(Hooks):
    """Hooks that compute the `Dots` of each block at the token indices `index` [row, query] int64.

    If `index` is None, nothing is computed.

    Raises:
        InputError: If a block does not add its attention output o to its input h.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.index: Tensor | None = None
        self._model = model
        self._parts: list[tuple[nn.Module, nn.Module, nn.Module]] = []
        for block in decoder_blocks(model):
            of = dict(block.named_children())
            pair = next(((of[added], of[sum_]) for added, sum_ in _ADDED if added in of and sum_ in of), None)
            if pair is None:
                raise self._refusal()
            self._parts.append((block, *pair))
        self._h: dict[int, Tensor] = {}
        self._sum: dict[int, Tensor] = {}
        self._dots: dict[int, Dots] = {}
        self._checked: set[int] = set()

    def __enter__(self) -> Self:
        for layer, (block, attention, norm) in enumerate(self._parts):
            self.before(block, partial(self._keep_residual, layer))
            self.after(attention, partial(self._keep_dots, layer))
            self.before(norm, partial(self._check_sum, layer))
        return self

    def finish(self) -> list[Dots]:
        """Return the `Dots` of each layer, [row, query]."""
        if self._checked != self._dots.keys():
            raise self._refusal()
        products, self.index, self._dots = [self._dots[layer] for layer in sorted(self._dots)], None, {}
        return products

    def _refusal(self) -> InputError:
        return InputError(
            "Expected the model's blocks to add their attention output to their input, but those of "
            f"{type(self._model).__name__} don't. Leave out rollout and rollout_max, or use another model."
        )

    def _select(self, states: Tensor) -> Tensor:
        """Return the states [row, query, d_model] at `index`. Indices past the end select the last token."""
        assert self.index is not None
        self.index = self.index.to(states.device)
        index = self.index.clamp_max(states.shape[1] - 1)
        return states.detach()[torch.arange(len(index), device=states.device)[:, None], index]

    def _keep_residual(self, layer: int, states: Tensor) -> None:
        if self.index is not None:
            self._h[layer] = self._select(states)

    def _keep_dots(self, layer: int, states: Tensor) -> None:
        if self.index is not None:
            h, o = self._h.pop(layer), self._select(states)
            self._dots[layer] = Dots.of(h, o)
            if layer not in self._checked:
                self._sum[layer] = h[:, 0] + o[:, 0]

    def _check_sum(self, layer: int, states: Tensor) -> None:
        # it is enough to check one token in one pass
        if self.index is not None and layer not in self._checked:
            entering = self._select(states)[:, 0]
            if layer not in self._sum or not torch.allclose(self._sum.pop(layer), entering, equal_nan=True):
                raise self._refusal()
            self._checked.add(layer)


class AttentionReader(Hooks):
    """Context manager that reads attention in forward passes. Call `start` before each pass and `finish` after it.

    Args:
        model: Causal language model with SDPA or eager attention.
        needs: Any of `attention_entropy`, `attention_blocks`, `attention_macs` and `mixing`. All except
            `attention_entropy` require passes over answers.

    Raises:
        InputError: If the model does not call transformers' attention function once per layer, or if its blocks do not
            add the attention output to the residual stream. Passes and `finish` can also raise this error.
    """

    def __init__(self, model: Any, needs: Collection[str]) -> None:
        super().__init__()
        self._model, self._needs = model, frozenset(needs)
        self._last = bool(self._needs - {"attention_entropy"})
        blocks = decoder_blocks(model)
        self._layer_of = {id(module): layer for layer, block in enumerate(blocks) for module in block.modules()}
        self._attention: str = model.config._attn_implementation
        if self._attention not in ("sdpa", "eager") or not model._can_set_attn_implementation():
            raise self._refusal(f"has {self._attention!r} attention, which can't be replaced")
        self._mixing = MixingCapture(model) if "mixing" in self._needs else None
        self._spans: TokenSpans | None = None

    def __enter__(self) -> Self:
        self._model.set_attn_implementation(_register(self._attention))
        self.callback(self._model.set_attn_implementation, self._attention)
        self.callback(_active.reset, _active.set(self))
        if self._mixing is not None:
            self.enter_context(self._mixing)
        return self

    def start(self, spans: TokenSpans) -> None:
        """Set the token spans of the next forward pass."""
        self._spans = spans
        self._calls: Counter[int] = Counter()
        self._places: dict[torch.device, Places] = {}
        self._layers: dict[int, dict[str, Tensor]] = {}
        self._floors: dict[int, Tensor] = {}
        if self._mixing is not None:
            self._mixing.index = spans.query_index(self._last)

    def finish(self) -> Attention:
        """Return the attention of the most recent forward pass."""
        self._spans = None
        if self._calls != Counter(set(self._layer_of.values())):
            raise self._refusal(f"called this function {self._calls.total()} times, in {len(self._calls)} layers")
        places = next(iter(self._places.values()))
        products = [] if self._mixing is None else self._mixing.finish()
        masked = [Dots(*(p.masked_fill(~places.valid.to(p.device), 0.0) for p in layer)) for layer in products]
        layers, self._places, self._layers = [self._layers[layer] for layer in sorted(self._layers)], {}, {}
        return Attention(places, layers, self._floors, masked)

    @torch.no_grad()
    def attended(self, module: Any, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]) -> None:
        """Read the attention of one layer."""
        layer = self._layer_of.get(id(module))
        if self._spans is None or layer is None:
            return
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if options.get("position_bias") is not None or not causal:
            raise self._refusal("adds biases to its scores or attends to later tokens")
        self._calls[layer] += 1
        if query.device not in self._places:
            self._places[query.device] = Places.of(self._spans, query.shape[2], self._last, query.device)
        places, scaling, softcap = self._places[query.device], options.get("scaling"), options.get("softcap")
        numbers = read_layer(query, key, mask, places, self._needs, scaling, softcap)
        if (largest := numbers.pop("largest", None)) is not None:
            for floor in FLOORS:
                eps = floor / 100
                logs = (largest * (1 - eps) + eps).log()
                self._floors[floor] = logs.add_(self._floors[floor].to(logs.device)) if floor in self._floors else logs
        self._layers[layer] = numbers

    def _refusal(self, reason: str) -> InputError:
        n = len(set(self._layer_of.values()))
        return InputError(
            f"Expected a model that calls transformers' attention function once in each of its {n} layers, "
            f"but {type(self._model).__name__} {reason}. Leave out attention_entropy, rollout, rollout_max and macs, "
            "or use another model."
        )


_active: ContextVar[AttentionReader | None] = ContextVar("attention_reader", default=None)


def _register(implementation: str) -> str:
    """Register an attention function that calls the active reader and then `implementation`. Return its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import eager_mask, sdpa_mask

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        reader, forward = _active.get(), sdpa_attention_forward
        if implementation == "eager":  # requested, or needed by the model (soft caps, sinks)
            forward = sys.modules[type(module).__module__].eager_attention_forward
        if reader is not None:
            reader.attended(module, query, key, attention_mask, options)
        return forward(module, query, key, value, attention_mask, **options)

    name = f"answer_attention_{implementation}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, {"sdpa": sdpa_mask, "eager": eager_mask}[implementation])
    return name
