"""Key/value cache for prefilling prompts. With some models, it is also used for drawing answers."""

import math
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from extract.errors import InputError

#: Arguments that make attention differ from softmax(q·k)·v. If a model passes any of them, prompts are not shared.
_SPECIAL = ("softcap", "s_aux", "position_bias", "sliding_window")
#: Initial capacity for answers, in tokens. It is doubled whenever it is exhausted.
_FREE_TOKENS = 32
#: Minimum length of a common prefix in tokens. Separate attention to a shorter one would be slower.
SHORTEST_PREFIX = 64


class AnswerLayer(DynamicLayer):
    """Keys and values of one layer.

    Attributes:
        prefix: Keys and values [1, head, token, d_head] of the common prefix, or None.
        handed_out: Keys and values returned by the last call to `update` during prefill, or None.
        keys, values: During prefill, keys and values [question, head, token, d_head] of the prompt tokens after
            `prefix`. While answers are sampled, keys and values [row, head, token, d_head] of the full prompts and the
            answers.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, prefix: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.prefix = prefix
        self.handed_out: tuple[Tensor, Tensor] | None = None
        self._buffers: tuple[Tensor, ...] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [row, head, new token, d_head], and return all of them, including the prefix."""
        if self._buffers is None:  # during prefill
            super().update(key_states, value_states)
            self.handed_out = self._with_prefix()
            return self.handed_out
        length = self.keys.shape[2]
        if length + key_states.shape[2] > self._buffers[0].shape[2]:
            self._make_room(self.keys, self.values, 2 * (length + key_states.shape[2]))
        filled = []
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length : length + new.shape[2]] = new  # concatenating would copy everything
            filled.append(buffer[:, :, : length + new.shape[2]])
        self.keys, self.values = filled
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Number of cached tokens per row, including padding."""
        parts = (self.prefix, (self.keys, self.values) if self.is_initialized else None)
        return sum(part[0].shape[2] for part in parts if part is not None and part[0].numel())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows by their indices [row], and make room for answers."""
        keys, values = (one[indices.to(one.device)] for one in self._with_prefix())
        self.prefix = self.handed_out = None
        self._make_room(
            keys, values, keys.shape[2] + _FREE_TOKENS if self._buffers is None else self._buffers[0].shape[2]
        )

    def after_prefix(self, n_prefix: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the prompts without their first `n_prefix` tokens."""
        assert self.handed_out is not None
        keys, values = self.handed_out
        return keys[:, :, n_prefix:], values[:, :, n_prefix:]

    def _with_prefix(self) -> tuple[Tensor, Tensor]:
        if self.prefix is None:
            return self.keys, self.values
        keys, values = (one.expand(len(self.keys), -1, -1, -1) for one in self.prefix)
        return torch.cat([keys, self.keys], 2), torch.cat([values, self.values], 2)

    def _make_room(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        n_rows, n_heads, length, _ = keys.shape
        self._buffers = tuple(tensor.new_empty(n_rows, n_heads, capacity, tensor.shape[3]) for tensor in (keys, values))
        for buffer, tensor in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, :length] = tensor
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


class AnswerCache(DynamicCache):
    """Key/value cache for prefilling a batch of prompts.

    If answers can't share the keys and values of their prompt, the cache is also used for drawing the answers.

    Each layer with full attention becomes an `AnswerLayer`. Layers with a sliding window prevent sharing.

    Attributes:
        mask: int64 mask, 0 for padding. Its shape is [question, token] during prefill, and [row, token] while answers
            are drawn. It covers the common prefix, the rest of the prompts, and the answers.
        n_prefix: Number of tokens in the common prefix.
    """

    layers: list[Any]

    def __init__(self, model: Any, mask: Tensor, prefix: Self | None = None) -> None:
        super().__init__(config=model.config)
        if not {type(layer) for layer in self.layers} <= {DynamicLayer, DynamicSlidingWindowLayer}:
            raise InputError(
                f"Expected a model with a plain key/value cache, but {type(model).__name__} also caches other states. "
                "This is not supported. Use another model."
            )
        chunks = "chunked_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ())
        if chunks and not bool(mask.all()):
            raise InputError(
                f"Expected prompts of the same length, but their lengths differ. {type(model).__name__} uses chunked "
                "attention, which does not support padding. Sample one question at a time (--block_size 1), or use "
                "another model."
            )
        for i, layer in enumerate(self.layers):
            of_prefix = None if prefix is None else prefix.layers[i]
            if type(layer) is DynamicLayer:
                self.layers[i] = AnswerLayer(of_prefix and (of_prefix.keys, of_prefix.values))
            elif of_prefix is not None:
                self.layers[i] = deepcopy(of_prefix)
                self.layers[i].batch_repeat_interleave(len(mask))
        self.mask, self.n_prefix = mask, 0 if prefix is None else prefix.get_seq_length()
        self._called, self._plain = set[int](), set[int]()

    def note_call(self, layer: int, key: Tensor, value: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
        """Record whether a layer computes plain attention over its own keys and values. Some models' layers don't."""
        handed = getattr(self.layers[layer], "handed_out", None) if layer < len(self.layers) else None
        if kwargs.get("position_bias") is None:
            self._called.add(layer)
        same = handed is not None and key is handed[0] and value is handed[1]
        adds_bias = mask is not None and mask.dtype != torch.bool
        if same and not adds_bias and all(kwargs.get(name) is None for name in _SPECIAL):
            self._plain.add(layer)

    @property
    def n_shared(self) -> int:
        """Number of prefix tokens that are stored only once, or 0 if the prefix is stored with each prompt."""
        return self.n_prefix if self.n_prefix >= SHORTEST_PREFIX else 0

    @property
    def may_be_prefix(self) -> bool:
        """Whether the cached tokens can be the prefix of padded prompts.

        Padding comes between the prefix and the rest of a prompt, so all layers must respect the mask. The functions in
        transformers' attention registry do so.
        """
        return self._called == set(range(len(self.layers)))

    def check_read(self) -> None:
        """Raise an `InputError` unless the model has cached the prompts."""
        if not all(layer.is_initialized for layer in self.layers):
            raise InputError(
                "Expected a model that caches the keys and values of its prompts, but this one cached none. "
                "Use another model."
            )

    @property
    def can_share(self) -> bool:
        """Whether every layer used plain attention in prefill. If so, answers can share a copy of their prompt."""
        return self._plain == set(range(len(self.layers)))

    def repeated(self, questions: Tensor) -> Self:
        """Return a cache for drawing answers. Row i of the new cache is a copy of row `questions[i]` of `self`."""
        other = copy(self)
        other.layers = [copy(layer) for layer in self.layers]
        other.keep(questions)
        return other

    def before_pass(self) -> Tensor:
        """Prepare for a forward pass with one token per row. Returns the attention mask [row, token] int64."""
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        return self.mask

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows with the given indices."""
        self.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def branch(self, counts: Sequence[int]) -> list[int]:
        """Make `counts[row]` copies of each row. See `SharedCache.branch`."""
        order = [row for row, count in enumerate(counts) for _ in range(count)]
        self.keep(torch.tensor(order, device=self.mask.device))
        return order


def smallest_window(model: Any) -> float:
    """Return a model's smallest sliding window in tokens, or infinity if all layers have full attention."""
    return min(getattr(layer, "sliding_window", math.inf) for layer in DynamicCache(config=model.config).layers)
