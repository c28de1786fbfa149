"""Key/value cache in which answers share their prompt and the tokens that they have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from extract.sampling.local.cache import AnswerCache, AnswerLayer

Pair = tuple[Tensor, Tensor]
#: Maximum width of the first group, exclusive. It doubles with each further group.
_FIRST_WIDTH = 16
#: Free rows and columns in a new buffer, as a fraction of those in use, and the minimum number of free columns.
_FREE_SHARE, _FREE_COLUMNS = 0.5, 32
#: Prompts without rows are removed once they make up this fraction of all prompts. Each removal copies all prompts.
_UNUSED_PROMPTS = 0.2


@dataclass
class Group:
    """Consecutive rows with a similar number of tokens. The tokens are right-aligned.

    Attributes:
        start: Index of the first row.
        padding: Number of empty columns at the start of each row.
        width: Number of columns in use.
        n_slots, n_columns: Size of the buffers, which have room for further rows and tokens.
        bias: [row, 1, 1, column] float32, −inf for padding and 0 elsewhere. None without padding.
    """

    start: int
    padding: list[int]
    width: int
    n_slots: int
    n_columns: int
    bias: Tensor | None = None

    @property
    def rows(self) -> slice:
        """Indices of the rows."""
        return slice(self.start, self.start + len(self.padding))


class SharedLayer(DynamicLayer):
    """Keys and values of one layer. They may be on a different device than the model's inputs.

    Attributes:
        prefix: Keys and values [1, head, token, d_head] of the common prefix, or None.
        prompts: Keys and values [question, head, token, d_head] of the prompt tokens after the common prefix, padded on
            the left. If `prefix` is None, the prompts include the common prefix.
        answers: For each `Group` of rows, keys and values [slot, head, column, d_head]. The rows are in the first
            slots, and the other slots are unused.
    """

    def __init__(self, read: AnswerLayer, has_prefix: bool, groups: list[Group]) -> None:
        super().__init__()
        self.prefix, self.prompts = read.prefix if has_prefix else None, (read.keys[:0], read.values[:0])
        self.answers, self._groups = list[Pair](), groups

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Write keys and values [row, head, 1, d_head] to the last column in use."""
        for group, pair in zip(self._groups, self.answers, strict=True):
            for buffer, new in zip(pair, (key_states, value_states), strict=True):
                buffer[: len(group.padding), :, group.width - 1] = new[group.rows, :, 0]
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Number of cached tokens in the longest row."""
        return max((group.width for group in self._groups), default=0)

    def set_prompts(self, kept: Tensor, new: Pair, added: Tensor) -> None:
        """Keep the prompts with the indices `kept`, and append the prompts of `new` with the indices `added`."""
        device = self.prompts[0].device
        kept, added = kept.to(device), added.to(device)
        pairs = ((a.index_select(0, kept), b.index_select(0, added)) for a, b in zip(self.prompts, new, strict=True))
        keys, values = (_stacked(a, b, dim=2) for a, b in pairs)
        self.prompts = keys, values

    def merge(self, sources: Sequence[Sequence[int]], groups: Sequence[Group]) -> None:
        """Create the buffers of `groups`. `groups[i]` is the union of the current groups at indices `sources[i]`."""
        keys, values = (
            [self._merged_buffer(of_group, group, part) for of_group, group in zip(sources, groups, strict=True)]
            for part in (0, 1)
        )
        self.answers = list(zip(keys, values, strict=True))

    def _merged_buffer(self, sources: Sequence[int], group: Group, part: int) -> Tensor:
        if len(sources) == 1 and self._groups[sources[0]] is group:
            return self.answers[sources[0]][part]
        like, first = self.prompts[part], 0
        buffer = like.new_empty(group.n_slots, like.shape[1], group.n_columns, like.shape[3])
        if group.bias is not None:
            buffer[: len(group.padding), :, : group.width] = 0  # padding has weight 0, but must be finite
        for source in sources:
            old = self._groups[source]
            end, width = first + len(old.padding), min(old.width, group.width)
            if width:  # new rows have no buffer
                copied = self.answers[source][part][: end - first, :, old.width - width : old.width]
                buffer[first:end, :, group.width - width : group.width] = copied
            first = end
        return buffer

    def rearrange(self, index: int, group: Group, slots: Tensor, changed: Tensor) -> None:
        """Put the row of the old slot `slots[i]` into slot i. `changed` contains every i that differs from `slots[i]`.

        If the current buffers do not have `group.n_slots` slots, the rows are copied to new buffers.
        """
        device = self.prompts[0].device
        slots, changed = slots.to(device), changed.to(device)
        keys, values = (_rearranged(buffer, group, slots, changed) for buffer in self.answers[index])
        self.answers[index] = keys, values


class SharedCache(DynamicCache):
    """Cache that contains the common prefix, one copy of each prompt, and rows of answer tokens.

    Answers to the same question can share a row as long as their tokens are equal. New rows are empty. Rows are added,
    copied and removed only between forward passes. Rows with similar numbers of tokens form a group. The groups are
    sorted from long to short. Attention is computed for one group at a time, so that short rows need little padding.

    Attributes:
        slots: Dict from number of key-value heads, which can differ between layers, to an int64 tensor [question · head
            · slot]. All questions have the same number of slots. Each row of a question occupies one slot, which
            contains its index into a flattened [row, head] tensor. Free slots contain arbitrary indices.
        places: Dict from number of key-value heads to an int64 tensor [row · head]. It contains the position of each
            row and head in `slots`.
        prompt_bias: [question, 1, 1, token] float32, −inf for padding and 0 elsewhere.
    """

    layers: list[Any]

    def __init__(self, read: AnswerCache) -> None:
        super().__init__()
        self.groups = list[Group]()
        self._n_prefix = read.n_shared
        self.layers = [SharedLayer(layer, self._n_prefix > 0, self.groups) for layer in read.layers]
        self._mask = read.mask[:0, self._n_prefix :]
        self._questions = list[int]()  # index of each row's prompt

    def join(self, read: AnswerCache, questions: Sequence[int]) -> None:
        """Append empty rows. `questions` contains the index of each row's prompt in `read`."""
        added = sorted(set(questions))
        n_kept = self._set_prompts(read, added)
        places = {question: n_kept + i for i, question in enumerate(added)}
        self._questions += [places[question] for question in questions]
        self._regroup(len(questions))
        self._arrange()

    def branch(self, counts: Sequence[int]) -> list[int]:
        """Repeat each row `counts[row]` times. A count of 0 removes the row.

        Returns the old index of each new row. A row's index can change even if its count is 1.
        """
        order, left = list[int](), list[int]()
        for i, group in enumerate(self.groups):
            slots = _slots(counts[group.rows])
            changed = [slot for slot, old in enumerate(slots) if slot != old]
            has_size = group.n_slots // 4 <= len(slots) <= group.n_slots
            if slots and (changed or not has_size):
                group.n_slots = group.n_slots if has_size else _with_free(len(slots))
                of_slots, at = (torch.tensor(each, device=self._mask.device) for each in (slots, changed))
                for layer in self.layers:
                    layer.rearrange(i, group, of_slots, at)
            if changed or len(slots) < len(group.padding):
                group.padding = [group.padding[slot] for slot in slots]
                group.bias = self._padding_bias(group)
            order += [group.start + slot for slot in slots]
            left += [i] if slots else []
        for layer in self.layers:
            layer.answers = [layer.answers[i] for i in left]
        self.groups[:] = [self.groups[i] for i in left]
        self._set_starts(self.groups)
        self._questions = [self._questions[row] for row in order]
        if len(set(self._questions)) <= (1 - _UNUSED_PROMPTS) * len(self._mask):
            self._set_prompts(None, [])
        self._arrange()
        return order

    def before_pass(self) -> None:
        """Prepare for a forward pass with one token per row and no attention mask."""
        if any(group.width == group.n_columns for group in self.groups):
            self._regroup(0)
        for group in self.groups:
            group.width += 1

    def _set_prompts(self, read: AnswerCache | None, added: Sequence[int]) -> int:
        """Remove prompts without rows, and append the prompts with the indices `added` from the cache `read`.

        Returns the number of old prompts that remain.
        """
        used = sorted(set(self._questions))
        kept, new = (torch.tensor(each, dtype=torch.int64, device=self._mask.device) for each in (used, added))
        for i, layer in enumerate(self.layers):
            source = layer.prompts if read is None else read.layers[i].after_prefix(self._n_prefix)
            layer.set_prompts(kept, source, new)
        mask = self._mask if read is None else read.mask[:, self._n_prefix :]
        self._mask = _stacked(self._mask[kept], mask[new], dim=1)
        self.prompt_bias = _bias(self._mask == 0)
        places = {question: i for i, question in enumerate(used)}
        self._questions = [places[question] for question in self._questions]
        return len(used)

    def _regroup(self, n_new: int) -> None:
        """Add `n_new` empty rows, merge groups of similar widths, and make room for new tokens."""
        old = self.groups
        if n_new:
            old.append(Group(0, [0] * n_new, 0, 0, 0))
            for layer in self.layers:
                layer.answers.append((layer.prompts[0][:0], layer.prompts[1][:0]))
        groups, sources = list[Group](), list[list[int]]()
        for _, members in groupby(range(len(old)), lambda i: (old[i].width // _FIRST_WIDTH).bit_length()):
            merged = list(members)
            sources.append(merged)
            is_unchanged = len(merged) == 1 and old[merged[0]].width < old[merged[0]].n_columns
            groups.append(old[merged[0]] if is_unchanged else self._merged([old[i] for i in merged]))
        for layer in self.layers:
            layer.merge(sources, groups)
        self.groups[:] = groups
        self._set_starts(groups)

    def _merged(self, groups: Sequence[Group]) -> Group:
        """Combine groups into a new one, without columns that are empty in all rows."""
        longest = max(group.width - min(group.padding) for group in groups)
        padding = [longest - group.width + n for group in groups for n in group.padding]
        n_columns = max(_with_free(longest), longest + _FREE_COLUMNS)
        merged = Group(0, padding, longest, _with_free(len(padding)), n_columns)
        merged.bias = self._padding_bias(merged)
        return merged

    @staticmethod
    def _set_starts(groups: Sequence[Group]) -> None:
        start = 0
        for group in groups:
            group.start = start
            start += len(group.padding)

    def _padding_bias(self, group: Group) -> Tensor | None:
        if not any(group.padding):
            return None
        padding = torch.tensor(group.padding, device=self._mask.device)
        return _bias(torch.arange(group.n_columns, device=padding.device) < padding[:, None])

    def _arrange(self) -> None:
        questions = torch.tensor(self._questions, dtype=torch.int64)
        counts, order = questions.bincount(minlength=len(self._mask)), questions.argsort(stable=True)
        starts, n_slots = counts.cumsum(0) - counts, int(counts.max())
        slots = order[(starts[:, None] + torch.arange(n_slots)).clamp_max(len(order) - 1)]  # [question, slot] rows
        own_slots = order.argsort() - starts[questions]
        self.slots, self.places = dict[int, Tensor](), dict[int, Tensor]()
        for n_heads in {layer.prompts[0].shape[1] for layer in self.layers}:
            heads, device = torch.arange(n_heads), self._mask.device
            self.slots[n_heads] = (slots[:, None] * n_heads + heads[:, None]).flatten().to(device)
            places = (questions[:, None] * n_heads + heads) * n_slots + own_slots[:, None]
            self.places[n_heads] = places.flatten().to(device)


def _slots(counts: Sequence[int]) -> list[int]:
    """For each new slot, return the old slot to copy.

    Old slot i is copied to `counts[i]` new slots. If possible, slot i itself is one of them.
    """
    n_rows = sum(counts)
    moved = [slot for slot, count in enumerate(counts) for _ in range(count - (slot < n_rows))]
    return [slot if slot < len(counts) and counts[slot] else moved.pop() for slot in range(n_rows)]


def _rearranged(buffer: Tensor, group: Group, slots: Tensor, changed: Tensor) -> Tensor:
    if len(buffer) == group.n_slots:
        return buffer.index_copy_(0, changed, buffer.index_select(0, slots[changed]))
    new = buffer.new_empty(group.n_slots, *buffer.shape[1:])
    torch.index_select(buffer, 0, slots, out=new[: len(slots)])
    return new


def _with_free(n_used: int) -> int:
    return n_used + int(n_used * _FREE_SHARE)


def _bias(hidden: Tensor) -> Tensor:
    """Convert a mask [row, token] to a bias [row, 1, 1, token] float32."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None, None]


def _stacked(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Pad the shorter tensor at the start of dimension `dim`, then concatenate both along dimension 0."""
    n_tokens = max(a.shape[dim], b.shape[dim])
    after = (0, 0) * (a.dim() - 1 - dim)
    return torch.cat([torch.nn.functional.pad(each, (*after, n_tokens - each.shape[dim], 0)) for each in (a, b)])
