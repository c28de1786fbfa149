"""A key–value cache for sampling: room for the answers is made once, and each step writes in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from extract.errors import InputError


class AnswerLayer(DynamicLayer):
    """One layer's keys and values [row, head, token, d_head]: the filled part of buffers with room for the answer.

    The plain layer concatenates at every step, which copies the whole cache for each token; this one writes one column.
    """

    def __init__(self, n_answer_tokens: int) -> None:
        super().__init__()
        self.n_answer_tokens = n_answer_tokens
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [row, head, new token, d_head] and return all of them."""
        length = self.get_seq_length()
        if self._buffers is None or length + key_states.shape[2] > self._buffers[0].shape[2]:
            return super().update(key_states, value_states)  # the prompt, as it comes
        filled = []
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length : length + new.shape[2]] = new
            filled.append(buffer[:, :, : length + new.shape[2]])
        self.keys, self.values = filled
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row for its samples and make room for their tokens."""
        self._reserve(self.keys.repeat_interleave(repeats, 0), self.values.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows `indices` [row]."""
        self._reserve(self.keys[indices], self.values[indices])

    def _reserve(self, keys: Tensor, values: Tensor) -> None:
        length = keys.shape[2]
        capacity = length + self.n_answer_tokens if self._buffers is None else self._buffers[0].shape[2]
        buffers = []
        for tensor in (keys, values):
            buffer = tensor.new_empty(*tensor.shape[:2], capacity, tensor.shape[3])
            buffer[:, :, :length] = tensor
            buffers.append(buffer)
        self._buffers = (buffers[0], buffers[1])
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


def answer_cache(model: Any, n_answer_tokens: int) -> DynamicCache:
    """An empty cache for `model` with room for answers of `n_answer_tokens`.

    Layers that attend to everything become `AnswerLayer`; others (sliding windows, recurrent states) stay as
    transformers makes them.

    Raises:
        InputError: A cache that can't be repeated for several answers.
    """
    cache = DynamicCache(config=model.config)
    if not all(hasattr(layer, "batch_repeat_interleave") for layer in cache.layers):
        raise InputError(
            f"Expected a model with a key-value cache, but {type(model).__name__} keeps recurrent states, which can't be shared yet. Use another model."
        )
    cache.layers = [AnswerLayer(n_answer_tokens) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
