"""Key/value cache with a fixed number of slots, so that forward passes can be replayed as CUDA graphs."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from extract.sampling.local.cache import AnswerCache, AnswerLayer

#: Free columns in new buffers, as a fraction of those in use. The number of columns is a multiple of `_COLUMNS`.
_FREE_SHARE, _COLUMNS = 0.5, 64
#: Maximum share of the free memory that the cache may need.
_MEMORY_SHARE = 0.5


class SlotLayer(DynamicLayer):
    """Keys and values of one layer.

    Attributes:
        prefix: Keys and values [1, head, token, d_head] of the common prefix, or None.
        buffers: Keys and values [slot, head, column, d_head]. Each slot contains the tokens of a prompt after
            `prefix`, then the tokens of an answer.
    """

    def __init__(self, read: AnswerLayer, has_prefix: bool, n_slots: int, end: Tensor) -> None:
        super().__init__()
        self.prefix = read.prefix if has_prefix else None
        keys, values = (part.new_zeros(n_slots, part.shape[1], 0, part.shape[3]) for part in (read.keys, read.values))
        self.buffers, self._end = (keys, values), end

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [slot, head, 1, d_head] to each slot."""
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.scatter_(2, self._end[:, None, None, None].expand_as(new), new)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Number of buffer columns minus 1. It is the same for all passes that use the same buffers."""
        return self.buffers[0].shape[2] - 1

    def resize(self, n_columns: int) -> None:
        """Move the slots to longer buffers. Free columns are set to zero, because even masked values must be finite."""
        keys, values = (torch.nn.functional.pad(each, (0, 0, 0, n_columns - each.shape[2])) for each in self.buffers)
        self.buffers = keys, values


class SlotCache(DynamicCache):
    """Cache with one slot per answer. A slot contains the prompt without the shared prefix, then the answer.

    Shapes and addresses only change if a longer buffer is needed. Therefore, a forward pass can be captured and
    replayed. All slots take part in each pass. In free slots, only column 0 is visible, and the results are arbitrary.

    Attributes:
        bias: [slot, 1, 1, column] float32, −inf for padding and for columns after the newest token, and 0 elsewhere.
            Replaced by a new tensor whenever the buffers are replaced.
    """

    layers: list[Any]

    def __init__(self, read: AnswerCache, n_slots: int, most_tokens: int) -> None:
        super().__init__()
        device = read.mask.device
        self._n_prefix = read.n_shared
        self._n_before = read.n_prefix - self._n_prefix  # columns before the padding: the prefix if it is not shared
        self._most_columns = most_tokens - self._n_prefix
        self._free = list(range(n_slots))
        self._padding, self._ends = [0] * n_slots, [0] * n_slots
        self._places = torch.zeros(2, n_slots, dtype=torch.int64, device=device)  # padding and end of each slot
        self.layers = [SlotLayer(layer, self._n_prefix > 0, n_slots, self._places[1]) for layer in read.layers]
        self.bias = torch.zeros(n_slots, 1, 1, 0, device=device)

    def join(self, read: AnswerCache, questions: Sequence[int]) -> list[int]:
        """Copy prompts to free slots, and return the slots. `questions` contains the prompts' indices in `read`."""
        slots = [self._free.pop() for _ in questions]
        mask = read.mask[:, self._n_prefix :]
        padding, n_tokens = (mask == 0).sum(1).tolist(), mask.shape[1]
        for slot, question in zip(slots, questions, strict=True):
            self._padding[slot], self._ends[slot] = padding[question], n_tokens
        self._make_room(n_tokens + 1)
        to, source = (torch.tensor(each, device=mask.device) for each in (slots, questions))
        for layer, of_prompts in zip(self.layers, read.layers, strict=True):
            for buffer, states in zip(layer.buffers, of_prompts.after_prefix(self._n_prefix), strict=True):
                buffer[to, :, :n_tokens] = states[source]
        return slots

    def free(self, slots: Sequence[int]) -> None:
        """Release slots, so that other answers can use them."""
        self._free += slots
        for slot in slots:
            self._padding[slot] = self._ends[slot] = 0

    def before_pass(self) -> None:
        """Prepare for a forward pass with one token per slot and no attention mask."""
        self._make_room(max(self._ends) + 1)
        self._places.copy_(torch.tensor([self._padding, self._ends]))
        padding, end = self._places[:, :, None, None, None]
        column = torch.arange(self.bias.shape[-1], device=self.bias.device)
        is_padding = (column >= self._n_before) & (column < self._n_before + padding)
        self.bias.zero_().masked_fill_(is_padding | (column > end), -torch.inf)
        self._ends = [end + (end > 0) for end in self._ends]

    def _make_room(self, n_columns: int) -> None:
        if n_columns <= self.bias.shape[-1]:
            return
        n_columns = max(n_columns, min(self._most_columns, math.ceil(n_columns * (1 + _FREE_SHARE))))
        n_columns = math.ceil(n_columns / _COLUMNS) * _COLUMNS
        for layer in self.layers:
            layer.resize(n_columns)
        self.bias = self.bias.new_zeros(len(self.bias), 1, 1, n_columns)


def fits_slots(model: Any, read: AnswerCache, n_slots: int, most_tokens: int) -> bool:
    """Whether the whole model is on one CUDA device and a `SlotCache` fits in its free memory.

    `most_tokens` is the maximum number of tokens in a prompt and its answer together.
    """
    devices = {parameter.device for parameter in model.parameters()}
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1:
        return False
    (device,) = devices
    parts = [part for layer in read.layers for part in (layer.keys, layer.values)]
    of_token = sum(part.shape[1] * part.shape[3] * part.element_size() for part in parts)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    n_free = torch.cuda.mem_get_info(device)[0] + unused
    return n_slots * (most_tokens - read.n_shared) * of_token <= _MEMORY_SHARE * n_free
