"""Key/value cache in which all answers to a question share one copy of its prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from extract.sampling.local.cache import AnswerCache, AnswerLayer

Pair = tuple[Tensor, Tensor]
#: Maximum answer length in the first group, exclusive. It doubles with each further group.
_FIRST_LENGTH = 16
#: Free columns in a new buffer, in tokens and as a fraction of the longest answer.
_FREE_TOKENS, _FREE_SHARE = 32, 0.5


@dataclass
class Group:
    """Consecutive rows whose answers have similar lengths. The answers are right-aligned.

    Attributes:
        width: Number of columns in use, at least the length of the longest answer.
        capacity: Number of columns in the buffers.
        bias: [row, 1, 1, column] float32, −inf for padding and 0 elsewhere. None without padding.
    """

    rows: slice
    width: int
    capacity: int
    bias: Tensor | None


@dataclass
class Move:
    """Rows to copy from the group `source`: their old indices `rows`, and their new indices `target`."""

    source: int
    rows: Tensor
    target: slice


class SharedLayer(DynamicLayer):
    """Keys and values of one layer.

    Attributes:
        prefix: Keys and values [1, head, token, d_head] of the common prefix, or None.
        prompts: Keys and values [question, head, token, d_head] of the prompts, padded on the left.
        answers: Keys and values [row, head, column, d_head] of each group.
    """

    def __init__(self, read: AnswerLayer, groups: list[Group]) -> None:
        super().__init__()
        self.prefix, self.prompts = read.prefix, (read.keys[:0], read.values[:0])
        self.answers, self._groups = list[Pair](), groups

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Write keys and values [row, head, 1, d_head] to the last column in use."""
        for group, pair in zip(self._groups, self.answers, strict=True):
            for buffer, new in zip(pair, (key_states, value_states), strict=True):
                buffer[:, :, group.width - 1] = new[group.rows, :, 0]
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Number of cached tokens of the longest answer."""
        return max((group.width for group in self._groups), default=0)

    def set_prompts(self, kept: Tensor, new: Pair, added: Tensor) -> None:
        """Keep the prompts with the indices `kept`, and append the prompts of `new` with the indices `added`."""
        pairs = ((a[kept], b[added]) for a, b in zip(self.prompts, new, strict=True))
        keys, values = (_stacked(a, b, dim=2) for a, b in pairs)
        self.prompts = keys, values

    def set_groups(self, groups: Sequence[Group], moves: Sequence[int | Sequence[Move]]) -> None:
        """Copy the answers to new groups.

        Each entry of `moves` lists the rows of a new group, or is the index of an old group whose buffers are reused.
        """
        answers = list[Pair]()
        for group, of_group in zip(groups, moves, strict=True):
            if isinstance(of_group, int):
                answers.append(self.answers[of_group])
                continue
            keys, values = (self._moved(group, of_group, part) for part in (0, 1))
            answers.append((keys, values))
        self.answers = answers

    def _moved(self, group: Group, moves: Sequence[Move], part: int) -> Tensor:
        like, n_rows = self.prompts[part], group.rows.stop - group.rows.start
        buffer = like.new_empty(n_rows, like.shape[1], group.capacity, like.shape[3])
        if group.bias is not None:
            buffer[:, :, : group.width] = 0  # padding has weight 0, but must be finite
        for move in moves:
            end = self._groups[move.source].width
            width = min(end, group.width)
            source = self.answers[move.source][part][:, :, end - width : end]
            buffer[move.target, :, group.width - width : group.width] = source[move.rows]
        return buffer


class SharedCache(DynamicCache):
    """Cache of the common prefix, one copy of each prompt, and all answers. Each row is an answer.

    Rows join and leave between passes. The rows are ordered by length, longest first, and divided into groups of
    similar length. Attention is computed for one group at a time, so that short answers need little padding.

    Attributes:
        slots: [question, slot] row indices of each question's answers, padded with arbitrary rows.
        places: [row] index of each row in the flattened `slots`.
        prompt_bias: [question, 1, 1, token] float32, −inf for padding and 0 elsewhere.
    """

    layers: list[Any]

    def __init__(self, read: AnswerCache) -> None:
        super().__init__()
        self.groups, self._lengths = list[Group](), list[int]()
        self.layers = [SharedLayer(layer, self.groups) for layer in read.layers]
        self._mask = read.mask[:0, read.n_prefix :]
        self._questions = torch.empty(0, dtype=torch.int64, device=self._mask.device)

    def join(self, read: AnswerCache, questions: Tensor) -> None:
        """Append empty answers. `questions` [row] is the index of each answer's prompt in `read`."""
        kept, old = self._questions.unique(return_inverse=True)
        added, new = questions.unique(return_inverse=True)
        for layer, source in zip(self.layers, read.layers, strict=True):
            layer.set_prompts(kept, (source.keys, source.values), added)
        self._mask = _stacked(self._mask[kept], read.mask[added, read.n_prefix :], dim=1)
        self._questions = torch.cat([old, len(kept) + new])
        self._regroup(range(len(self._lengths)), len(questions))

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows with the given ascending indices, and their prompts."""
        kept, self._questions = self._questions[rows].unique(return_inverse=True)
        if len(kept) < len(self._mask):
            for layer in self.layers:
                layer.prompts = (layer.prompts[0][kept], layer.prompts[1][kept])
            self._mask = self._mask[kept]
        self._regroup(rows.tolist(), 0)

    def before_pass(self) -> None:
        """Prepare a pass over one token per row, without an attention mask."""
        if any(group.width == group.capacity for group in self.groups):
            self._regroup(range(len(self._lengths)), 0)
        for group in self.groups:
            group.width += 1
        self._lengths = [length + 1 for length in self._lengths]

    def _regroup(self, kept: Sequence[int], n_new: int) -> None:
        """Divide the rows into groups: first the rows `kept`, then `n_new` empty rows."""
        lengths = [self._lengths[row] for row in kept] + [0] * n_new
        homes = [i for i, group in enumerate(self.groups) for _ in range(group.rows.start, group.rows.stop)]
        groups, moves = list[Group](), list[int | list[Move]]()
        for _, members in groupby(range(len(lengths)), lambda row: (lengths[row] // _FIRST_LENGTH).bit_length()):
            rows = list(members)
            span, of_group = slice(rows[0], rows[-1] + 1), list[Move]()
            for home, some in groupby((row for row in rows if row < len(kept)), lambda row: homes[kept[row]]):
                targets, first = list(some), self.groups[home].rows.start
                sources = torch.tensor([kept[row] - first for row in targets], device=self._mask.device)
                of_group.append(Move(home, sources, slice(targets[0] - span.start, targets[-1] + 1 - span.start)))
            if len(of_group) == 1 and self._is_unchanged(of_group[0], len(rows)):
                groups.append(replace(self.groups[of_group[0].source], rows=span))
                moves.append(of_group[0].source)
            else:
                groups.append(self._group(span, lengths[span]))
                moves.append(of_group)
        for layer in self.layers:
            layer.set_groups(groups, moves)
        self.groups[:] = groups
        self._lengths = lengths
        self._arrange()

    def _is_unchanged(self, move: Move, n_rows: int) -> bool:
        group = self.groups[move.source]
        return len(move.rows) == n_rows == group.rows.stop - group.rows.start and group.width < group.capacity

    def _group(self, rows: slice, lengths: Sequence[int]) -> Group:
        """Create a group for answers with the given descending lengths."""
        longest = lengths[0]
        capacity, bias = longest + max(_FREE_TOKENS, int(longest * _FREE_SHARE)), None
        if lengths[-1] < longest:
            padding = longest - torch.tensor(lengths, device=self._mask.device)
            hidden = torch.arange(capacity, device=padding.device) < padding[:, None]
            bias = _bias(hidden)
        return Group(rows, longest, capacity, bias)

    def _arrange(self) -> None:
        counts, order = self._questions.bincount(minlength=len(self._mask)), self._questions.argsort(stable=True)
        starts, n_slots = counts.cumsum(0) - counts, int(counts.max())
        steps = torch.arange(n_slots, device=order.device)
        self.slots = order[(starts[:, None] + steps).clamp_max(len(order) - 1)]
        self.places = self._questions * n_slots + order.argsort() - starts[self._questions]
        self.prompt_bias = _bias(self._mask == 0)


def _bias(hidden: Tensor) -> Tensor:
    """Convert a mask [row, token] to a bias [row, 1, 1, token] float32."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None, None]


def _stacked(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Concatenate tensors along dimension 0, after padding the shorter tensor at the start of dimension `dim`."""
    n_tokens = max(a.shape[dim], b.shape[dim])
    after = (0, 0) * (a.dim() - 1 - dim)
    return torch.cat([torch.nn.functional.pad(each, (*after, n_tokens - each.shape[dim], 0)) for each in (a, b)])
