"""Key/value cache for drawing answers. The common prefix and each prompt are stored once, and answers grow in place."""

import math
from copy import copy, deepcopy
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from extract.errors import InputError

#: Arguments of attention functions that compute more than softmax(q·k)·v. Prompts are not shared if a model passes any
#: of them.
_SPECIAL = ("softcap", "s_aux", "position_bias", "sliding_window")
#: Initial capacity for answers, in tokens. The capacity is doubled whenever it is exhausted.
_FIRST_TOKENS = 32


class AnswerLayer(DynamicLayer):
    """Keys and values of one layer.

    Attributes:
        prefix: Keys and values [1, head, token, d_head] of the common prefix, or None.
        prompts: Keys and values [question, head, token, d_head] of the prompts; None unless answers share them.
        handed_out: Keys and values returned by the last call to `update`. Set only while prompts are being read.
        keys: Keys [row, head, token, d_head] of the answers. Unless prompts are shared, prompt keys come first.
        values: Values, with the shape of `keys`.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, prefix: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.prefix = prefix
        self.prompts: tuple[Tensor, Tensor] | None = None
        self.handed_out: tuple[Tensor, Tensor] | None = None
        self._buffers: tuple[Tensor, ...] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [row, head, new token, d_head], and return all keys and values to attend to."""
        if self._buffers is None:  # prompts are still being read
            super().update(key_states, value_states)
            self.handed_out = self._after_prefix()
            return self.handed_out
        length = self.keys.shape[2]
        if length + key_states.shape[2] > self._buffers[0].shape[2]:
            self._make_room(self.keys, self.values, 2 * (length + key_states.shape[2]))
        filled = []
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length : length + new.shape[2]] = new  # in place: concatenating would copy everything
            filled.append(buffer[:, :, : length + new.shape[2]])
        self.keys, self.values = filled
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Number of cached tokens per row, including padding."""
        parts = (self.prefix, self.prompts, (self.keys, self.values) if self.is_initialized else None)
        return sum(part[0].shape[2] for part in parts if part is not None and part[0].numel())

    def start_answers(self, n_samples: int, shared: bool) -> None:
        """Create `n_samples` rows per question, one per answer. If `shared`, these rows use one copy of the prompt."""
        self.handed_out = None
        if shared:
            self.prompts = (self.keys, self.values)
            n_rows = len(self.keys) * n_samples
            keys, values = (one.new_empty(n_rows, one.shape[1], 0, one.shape[3]) for one in (self.keys, self.values))
        else:
            keys, values = (one.repeat_interleave(n_samples, 0) for one in self._after_prefix())
            self.prefix = None
        self._make_room(keys, values, keys.shape[2] + _FIRST_TOKENS)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with the given `indices` [row]."""
        assert self._buffers is not None
        self._make_room(self.keys[indices], self.values[indices], self._buffers[0].shape[2])

    def _after_prefix(self) -> tuple[Tensor, Tensor]:
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
    """Key/value cache for reading a batch of prompts and then drawing several answers to each prompt.

    Each layer with full attention becomes an `AnswerLayer`. Layers with a sliding window keep their transformers
    class. If a model has such layers, prompts are not shared.

    Args:
        mask: [question, token] int64 mask of the prompts, including the common prefix. Padding is 0.
        prefix: One-row cache of the common prefix.

    Attributes:
        shares_prompts: Whether all answers to a question attend to one copy of its prompt.
        slots: [question, slot] row indices of each question's answers, padded with arbitrary rows.
        places: [row] index of each row in the flattened `slots`.
        prompt_bias: [question, 1, 1, token] float32, −inf for padding and 0 elsewhere.

    Raises:
        InputError: If the model caches more than keys and values, or uses chunked attention and the mask has padding.
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
                f"Expected prompts of the same length, but their lengths differ. {type(model).__name__} would count "
                "padding in its attention chunks. Sample one question at a time (--block_size 1), or use another model."
            )
        for i, layer in enumerate(self.layers):
            of_prefix = None if prefix is None else prefix.layers[i]
            if type(layer) is DynamicLayer:
                self.layers[i] = AnswerLayer(of_prefix and (of_prefix.keys, of_prefix.values))
            elif of_prefix is not None:
                self.layers[i] = deepcopy(of_prefix)
                self.layers[i].batch_repeat_interleave(len(mask))
        self.shares_prompts, self._mask = False, mask
        self._called, self._plain = set[int](), set[int]()
        self._n_prefix = 0 if prefix is None else prefix.get_seq_length()
        self._questions = torch.arange(len(mask), device=mask.device)

    def note_call(self, layer: int, key: Tensor, value: Tensor, kwargs: dict[str, Any]) -> None:
        """While prompts are being read, record whether a layer computes plain attention to its own keys and values.

        Some architectures transform the cached keys, attend to another layer's keys, or add their own bias.
        """
        handed = getattr(self.layers[layer], "handed_out", None) if layer < len(self.layers) else None
        if kwargs.get("position_bias") is None:
            self._called.add(layer)
        same = handed is not None and key is handed[0] and value is handed[1]
        if same and all(kwargs.get(name) is None for name in _SPECIAL):
            self._plain.add(layer)

    @property
    def may_be_prefix(self) -> bool:
        """Whether the cached tokens can be the prefix of padded prompts.

        The padding follows the prefix in the cache, so all layers must rely on the mask and the position ids alone.
        Architectures that bypass transformers' attention registry may use indices in the cache instead.
        """
        return self._called == set(range(len(self.layers)))

    def copy(self) -> Self:
        """Shallow copy for drawing further answers to the same prompts. No tensor is copied."""
        other = copy(self)
        other.layers = [copy(layer) for layer in self.layers]
        return other

    def take(self, questions: Tensor) -> Self:
        """Return a cache for the questions with the given indices [question]. Call this before answers are drawn."""
        other = self.copy()
        for layer in other.layers:
            layer.keys, layer.values = layer.keys[questions], layer.values[questions]
        other._mask, other._questions = self._mask[questions], torch.arange(len(questions), device=questions.device)
        return other

    def start_answers(self, n_samples: int) -> None:
        """Create `n_samples` rows per question, one per answer.

        Prompts are shared if every layer has computed plain attention so far.
        """
        if not all(layer.is_initialized for layer in self.layers):
            raise InputError(
                "Expected a model that caches the keys and values of its prompts, but this one cached none. "
                "Use another model."
            )
        shared = self._plain == set(range(len(self.layers)))
        for layer in self.layers:
            if isinstance(layer, AnswerLayer):
                layer.start_answers(n_samples, shared)
            else:
                layer.batch_repeat_interleave(n_samples)
        self._questions, self.shares_prompts = self._questions.repeat_interleave(n_samples), shared
        if shared:
            self._arrange()
        else:
            self._mask = self._mask.repeat_interleave(n_samples, 0)

    def seen(self, n_answer_tokens: int) -> Tensor | None:
        """Attention mask [row, token] for prompts and `n_answer_tokens` answer tokens. None if prompts are shared."""
        return None if self.shares_prompts else torch.nn.functional.pad(self._mask, (0, n_answer_tokens), value=1)

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows with the given indices, and their prompts."""
        self.batch_select_indices(rows)
        self._questions = self._questions[rows]
        if not self.shares_prompts:
            self._mask = self._mask[rows]
            return
        needed, self._questions = self._questions.unique(return_inverse=True)
        if len(needed) < len(self._mask):
            for layer in self.layers:
                layer.prompts = (layer.prompts[0][needed], layer.prompts[1][needed])
            self._mask = self._mask[needed]
        self._arrange()

    def _arrange(self) -> None:
        """Compute `slots`, `places` and `prompt_bias`. Rows must be ordered by question."""
        counts = self._questions.bincount(minlength=len(self._mask))
        starts = counts.cumsum(0) - counts
        n_rows, n_slots = len(self._questions), int(counts.max())
        rows = torch.arange(n_rows, device=counts.device)
        steps = torch.arange(n_slots, device=counts.device)
        self.slots = (starts[:, None] + steps).clamp_max(n_rows - 1)
        self.places = self._questions * n_slots + rows - starts[self._questions]
        hidden = self._mask[:, None, None, self._n_prefix :] == 0
        self.prompt_bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


def smallest_window(model: Any) -> float:
    """Smallest sliding window in a model, in tokens. Infinite if no layer has a sliding window."""
    return min(getattr(layer, "sliding_window", math.inf) for layer in DynamicCache(config=model.config).layers)
