"""What attention does at the places of an answer, read from queries and keys while the pass itself is left as it is.

transformers calls an attention function by name. Ours calls the one that the model had, so that not a bit of the pass
changes, then forms the weights of the answer's own queries, a few heads and queries at a time, and keeps sums of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.attention_scores import Places, query_index
from extract.signals.attention_sums import Fields, read_layer
from extract.signals.capture import decoder_blocks
from extract.signals.macs import FLOORS, log_floor
from extract.signals.mixing import Dots, MixingCapture
from extract.signals.token_spans import Rows

#: What can be wanted of attention.
WANTS = ("attention_entropy", "attention_blocks", "attention_macs", "mixing")

_active: ContextVar[AttentionReader | None] = ContextVar("attention_reader", default=None)


@dataclass(frozen=True)
class Attention:
    """Attention at the places of each answer, as far as it was wanted; float32, and 0 behind a row's places.

    Queries and keys of blocks are the n + 1 places from the one that drew y_1 to y_n's own.

    Attributes:
        places: Where queries and keys stand.
        layers: What `read_layer` gives of each layer, without `largest`.
        floors: By floor in hundredths, [row, query, key], sums over layers of `log_floor`, where no weight is one of 0.
        dots: Of each layer, [row, query] each; see `mixing`.
    """

    places: Places
    layers: list[dict[str, Tensor]]
    floors: dict[int, Tensor]
    dots: list[Dots]


class AttentionReader(AbstractContextManager["AttentionReader"]):
    """Reads attention in the passes of a model: `look_at` before a pass, `take` after it.

    Other passes are left alone. On exit the model attends as before.

    Args:
        model: Causal language model with SDPA or eager attention.
        want: Among `WANTS`; nothing else is computed. All but attention_entropy need answers that the pass reads.

    Raises:
        InputError: A model that does not call transformers' attention function once a layer, or in whose blocks nothing
            is mixed; seen when the context is entered, in the pass or at `take`.
    """

    def __init__(self, model: Any, want: Collection[str]) -> None:
        unknown = sorted(set(want) - set(WANTS))
        if unknown:
            raise InputError(f"Expected `want` to be among {', '.join(WANTS)}, but got {unknown[0]!r}.")
        self._model, self._want = model, frozenset(want)
        self._mixing = MixingCapture(model) if "mixing" in self._want else None
        self._layers: dict[int, int] = {}  # of every module in a block, by its id
        self._pass: _Pass | None = None
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        blocks = decoder_blocks(self._model)
        self._layers = {id(module): layer for layer, block in enumerate(blocks) for module in block.modules()}
        with ExitStack() as stack:
            had = self._model.config._attn_implementation
            if had not in ("sdpa", "eager") or not self._model._can_set_attn_implementation():
                raise self._refusal(f"has {had!r} attention, in whose place no other can be put")
            stack.callback(self._model.set_attn_implementation, had)
            self._model.set_attn_implementation(_registered(had))
            stack.callback(_active.reset, _active.set(self))
            if self._mixing is not None:
                stack.enter_context(self._mixing)
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass = None
        self._exit.close()

    def look_at(self, rows: Rows) -> None:
        """Say where the answers stand in the next pass.

        Raises:
            InputError: Answers that the pass does not read, where more than attention_entropy is wanted.
        """
        last = bool(self._want - {"attention_entropy"})
        if last and not rows.read:
            raise InputError("Expected `rows` of answers, but got questions. Want only attention_entropy of these.")
        self._pass = _Pass(rows, self._want, last)
        if self._mixing is not None:
            self._mixing.index = query_index(rows, last)

    def take(self) -> Attention:
        """What the last pass showed; nothing is kept of the next one until `look_at`.

        Raises:
            InputError: A layer whose attention function was not called once.
        """
        done, self._pass = self._pass, None
        if done is None:
            raise RuntimeError("take() without look_at()")
        if done.calls != Counter(set(self._layers.values())):
            raise self._refusal(f"did so in {len(done.calls)}, {done.calls.total()} times in all")
        return done.attention([] if self._mixing is None else self._mixing.take())

    def see(self, module: Any, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]) -> None:
        """Read one layer from what its attention function was given."""
        layer = self._layers.get(id(module))
        if self._pass is None or layer is None:
            return
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if options.get("position_bias") is not None or not causal:
            raise self._refusal("adds biases to its scores or looks ahead")
        self._pass.see(layer, query, key, mask, scaling=options.get("scaling"), softcap=options.get("softcap"))

    def _refusal(self, reason: str) -> InputError:
        n = len(set(self._layers.values()))
        return InputError(
            f"Expected a model that calls transformers' attention function once in each of its {n} layers, but {type(self._model).__name__} {reason}. Leave attention_entropy, rollout, rollout_max and macs out, or use another model."
        )


class _Pass:
    """What is kept of one pass while it runs."""

    def __init__(self, rows: Rows, want: frozenset[str], last: bool) -> None:
        self.calls: Counter[int] = Counter()
        self._rows, self._want, self._last = rows, want, last
        self._places: dict[torch.device, tuple[Places, Fields | None]] = {}
        self._layers: dict[int, dict[str, Tensor]] = {}
        self._floors: dict[int, Tensor] = {}

    @torch.no_grad()
    def see(self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, **options: float | None) -> None:
        """Read a layer; arguments as of `read_layer`."""
        self.calls[layer] += 1
        if query.device not in self._places:
            places = Places.of(self._rows, query.shape[2], key.shape[2], self._last, query.device)
            self._places[query.device] = places, Fields.of(places) if "attention_blocks" in self._want else None
        places, fields = self._places[query.device]
        read = read_layer(query, key, mask, places, self._want, fields, **options)
        if (largest := read.pop("largest", None)) is not None:
            for floor in FLOORS:
                logs = log_floor(largest, floor)
                self._floors[floor] = logs.add_(self._floors[floor].to(logs.device)) if floor in self._floors else logs
        self._layers[layer] = read

    def attention(self, dots: list[Dots]) -> Attention:
        """All of it."""
        places = next(iter(self._places.values()))[0]
        return Attention(
            places,
            [self._layers[layer] for layer in sorted(self._layers)],
            self._floors,
            [Dots(*(dot.masked_fill(~places.valid.to(dot.device), 0.0) for dot in of_layer)) for of_layer in dots],
        )


def _registered(implementation: str) -> str:
    """The name under which transformers knows our function for a model that attends by `implementation`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    name = f"answer_attention_{implementation}"
    AttentionInterface.register(name, {"sdpa": _attend_by_sdpa, "eager": _attend_eagerly}[implementation])
    AttentionMaskInterface.register(name, {"sdpa": sdpa_mask, "eager": eager_mask}[implementation])
    return name


def _attend_by_sdpa(module: Any, *args: Any, **options: Any) -> Any:
    """The attention function of transformers' signature, for models on SDPA."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return _seen(sdpa_attention_forward, module, *args, **options)


def _attend_eagerly(module: Any, *args: Any, **options: Any) -> Any:
    """The same for models that have no SDPA, because of soft caps or sinks, or that were asked to do without."""
    return _seen(sys.modules[type(module).__module__].eager_attention_forward, module, *args, **options)


def _seen(
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
        reader.see(module, query, key, attention_mask, options)
    return attend(module, query, key, value, attention_mask, **options)
