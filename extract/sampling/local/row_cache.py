"""Key/value caches of a batch of answers. Answers can join and leave the batch between forward passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from extract.errors import InputError

#: Free columns in new buffers, in tokens and as a fraction of the longest row.
_FREE_TOKENS, _FREE_SHARE = 64, 0.5


@dataclass
class _Window:
    """Range of buffer columns in use. The last token of every row is in column `stop` − 1."""

    start: int = 0
    stop: int = 0


class _RowLayer(DynamicLayer):
    """Keys and values of one layer.

    `buffers` have the shape [slot, head, column, d_head]. Rows occupy the first slots. Unused columns contain zeros.
    """

    def __init__(self, window: _Window) -> None:
        super().__init__()
        self._window, self.buffers = window, list[Tensor]()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [row, head, new token, d_head], and return all keys and values."""
        n_rows, stop = len(key_states), self._window.stop + key_states.shape[2]
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:n_rows, :, self._window.stop : stop] = new
        self.keys, self.values = (buffer[:n_rows, :, self._window.start : stop] for buffer in self.buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Number of tokens in the longest row."""
        return self._window.stop - self._window.start

    def resize(self, n_rows: int, longest: int, n_slots: int, n_columns: int) -> None:
        """Move `n_rows` rows to new buffers, right-aligned at column `longest`."""
        kept = slice(self._window.start, self._window.stop)
        for i, buffer in enumerate(self.buffers):
            self.buffers[i] = buffer.new_zeros(n_slots, buffer.shape[1], n_columns, buffer.shape[3])
            self.buffers[i][:n_rows, :, longest - kept.stop + kept.start : longest] = buffer[:n_rows, :, kept]

    def move(self, sources: list[int], targets: list[int], freed: slice) -> None:
        """Move rows to other slots, and clear the freed slots."""
        for buffer in self.buffers:
            if sources:
                buffer[targets] = buffer[sources]
            buffer[freed] = 0  # stale values that are not finite would pass through the attention mask


class RowCache(DynamicCache):
    """Cache of rows (answers) that join and leave the batch between forward passes.

    The rows end at the same column but may differ in length.

    Sliding windows are applied by the attention mask, so every layer keeps all tokens. `lengths` contains the number of
    cached tokens in each row.
    """

    layers: list[Any]

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._window, self.lengths = _Window(), list[int]()
        self.layers = [_RowLayer(self._window) for _ in DynamicCache(config=model.config).layers]
        self._device = model.device

    @property
    def cache(self) -> DynamicCache:
        """Cache to pass to the model."""
        return self

    @staticmethod
    def for_prompts(model: Any) -> DynamicCache:
        """Return an empty cache for a forward pass over prompts. Call `join` with the filled cache after the pass."""
        cache = DynamicCache()
        cache.layers = [DynamicLayer() for _ in DynamicCache(config=model.config).layers]
        return cache

    def join(self, read: DynamicCache, lengths: Sequence[int], rows: Sequence[int]) -> None:
        """Append rows of `read`, a right-padded cache that must contain all prompt tokens.

        `lengths` contains the number of tokens in each row of `read`. `rows` contains the indices of the rows to
        append.
        """
        n_before, added = len(self.lengths), [lengths[row] for row in rows]
        self._make_room(n_before + len(rows), max([*self.lengths, *added]), read)
        n_columns, stop = max(added), self._window.stop
        column = (
            torch.arange(n_columns, device=self._device) - n_columns + torch.tensor(added, device=self._device)[:, None]
        )
        for layer, source in zip(self.layers, read.layers, strict=True):
            for buffer, states in zip(layer.buffers, (source.keys, source.values), strict=True):
                place = column.to(states.device)
                row = torch.tensor(rows, device=states.device)[:, None]
                new = states[row, :, place.clamp_min(0)].masked_fill(place[..., None, None] < 0, 0)
                buffer[n_before : n_before + len(rows), :, stop - n_columns : stop] = new.transpose(1, 2)
        self.lengths += added
        self._window.start = self._window.stop - max(self.lengths)

    def before_pass(self) -> tuple[Tensor, Tensor]:
        """Prepare for a forward pass with one token per row.

        Returns the mask [row, token] int64 and the positions [row, 1] int64.
        """
        longest = max(self.lengths)
        self._make_room(len(self.lengths), longest, self)
        lengths = torch.tensor(self.lengths, device=self._device)[:, None]
        column = torch.arange(longest + 1, device=self._device)
        return (column >= longest - lengths).long(), lengths

    def after_pass(self) -> None:
        """Record that a forward pass has processed one token per row."""
        self.lengths = [length + 1 for length in self.lengths]
        self._window.stop += 1

    def drop(self, rows: Sequence[int]) -> list[int]:
        """Remove rows, and move the last rows to the freed slots. Return the old index of each remaining row."""
        n_before, order = len(self.lengths), list(range(len(self.lengths)))
        for row in sorted(rows, reverse=True):
            order[row] = order[-1]
            order.pop()
        targets = [i for i, source in enumerate(order) if i != source]
        for layer in self.layers:
            layer.move([order[i] for i in targets], targets, slice(len(order), n_before))
        self.lengths = [self.lengths[i] for i in order]
        self._window.start = self._window.stop - max(self.lengths, default=0)
        if not order:  # free the memory
            self._window.start = self._window.stop = 0
            for layer in self.layers:
                layer.buffers, layer.keys, layer.values = [], None, None
        return order

    def _make_room(self, n_rows: int, longest: int, read: DynamicCache) -> None:
        """Make room for `n_rows` rows of up to `longest` + 1 tokens."""
        for layer, source in zip(self.layers, read.layers, strict=True):
            if not layer.buffers:
                layer.buffers = [states.new_zeros(0, states.shape[1], 0, states.shape[3]) for states in _states(source)]
        n_slots, _, n_columns, _ = self.layers[0].buffers[0].shape
        if n_rows <= n_slots and longest <= self._window.stop < n_columns:
            return
        n_slots = n_slots if n_rows <= n_slots else 2 ** (n_rows - 1).bit_length()
        n_columns = longest + max(_FREE_TOKENS, int(longest * _FREE_SHARE))
        for layer in self.layers:
            layer.resize(len(self.lengths), longest, n_slots, n_columns)
        self._window.start, self._window.stop = longest - max(self.lengths, default=0), longest


class FixedCache:
    """Cache of rows of equal length that all join the batch at once. Used if `can_merge` is false for the model."""

    def __init__(self, model: Any) -> None:
        self.cache, self.lengths, self._device = DynamicCache(config=model.config), list[int](), model.device

    @staticmethod
    def for_prompts(model: Any) -> DynamicCache:
        """See `RowCache.for_prompts`."""
        return DynamicCache(config=model.config)

    def join(self, read: DynamicCache, lengths: Sequence[int], rows: Sequence[int]) -> None:
        """Take the contents of the cache `read`, keeping only the given `rows`.

        This cache must be empty, and all rows of `read` must have the same length.
        """
        assert not self.lengths
        assert len(set(lengths)) == 1
        self.cache, self.lengths = read, list(lengths)
        self.drop([row for row in range(len(lengths)) if row not in rows])

    def before_pass(self) -> tuple[Tensor, Tensor]:
        """See `RowCache.before_pass`."""
        positions = torch.tensor(self.lengths, device=self._device)[:, None]
        return positions.new_ones(len(self.lengths), self.lengths[0] + 1), positions

    def after_pass(self) -> None:
        """See `RowCache.after_pass`."""
        self.lengths = [length + 1 for length in self.lengths]

    def drop(self, rows: Sequence[int]) -> list[int]:
        """Remove rows, and return the old index of each remaining row."""
        order = [i for i in range(len(self.lengths)) if i not in rows]
        self.lengths = [self.lengths[i] for i in order]
        if rows and order:
            self.cache.reorder_cache(torch.tensor(order, device=self._device))
        return order


def can_merge(model: Any) -> bool:
    """Whether new rows can join a batch after its first forward pass.

    The model must cache only keys and values. It must not use chunked attention, because chunks would include padding.
    """
    layers = DynamicCache(config=model.config).layers
    chunks = "chunked_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ())
    return (
        not chunks and bool(layers) and {type(layer) for layer in layers} <= {DynamicLayer, DynamicSlidingWindowLayer}
    )


def _states(layer: Any) -> tuple[Tensor, Tensor]:
    keys, values = layer.keys, layer.values
    if keys is None or values is None or keys.dim() != 4 or keys.shape[:3] != values.shape[:3]:
        raise InputError(
            "Expected a model that caches the keys and values of its prompts, but this one does not. Use another model."
        )
    return keys, values
