"""Hidden states of all answer tokens, without padding. All splits share one copy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, overload

import torch
from torch import Tensor

from extract.errors import InputError
from extract.store.ragged import Ragged


@dataclass(frozen=True)
class TokenStates:
    """States of the tokens in each row, in one shared tensor. Selecting rows copies only indices.

    Attributes:
        values: States, [feature, total tokens, d_model] float32 or bfloat16, with one feature per layer.
        first: Index of each row's first token, [row] int64.
        n_tokens: Number of tokens in each row, [row] int64.
    """

    values: Tensor
    first: Tensor
    n_tokens: Tensor

    @classmethod
    def of(cls, features: Sequence[Ragged]) -> Self:
        """Combine the states of several layers: ragged tensors [token, d_model] with identical row lengths."""
        offsets = features[0].offsets
        return cls(torch.stack([one.values for one in features]), offsets[:-1], offsets.diff())

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of several objects, which must share one `values` tensor."""
        first, n_tokens = (torch.cat([getattr(part, name) for part in parts]) for name in ("first", "n_tokens"))
        return replace(parts[0], first=first, n_tokens=n_tokens)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of rows, number of features, and width of a state."""
        return len(self.first), len(self.values), self.values.shape[2]

    @property
    def device(self) -> torch.device:
        """Device of the states."""
        return self.values.device

    @property
    def offsets(self) -> Tensor:
        """Row boundaries, [row + 1] int64."""
        return torch.cat([self.n_tokens.new_zeros(1), self.n_tokens.cumsum(0)])

    @overload
    def __getitem__(self, index: Tensor) -> Self: ...
    @overload
    def __getitem__(self, index: tuple[slice, int]) -> Ragged: ...
    def __getitem__(self, index: Tensor | tuple[slice, int]) -> Self | Ragged:
        """Select rows by index or mask.

        `[:, feature]` copies the states of one feature and returns them as a ragged tensor [token, d_model] float32.
        """
        if isinstance(index, Tensor):
            return replace(self, first=self.first[index], n_tokens=self.n_tokens[index])
        return Ragged(self.values[index[1]][self._places()].float(), self.offsets)

    def prefixes(self, fractions: Sequence[float]) -> Self:
        """Return the prefixes of all rows (see `PREFIXES`), ordered by fraction, then by row. No states are copied."""
        n_tokens = [(fraction * self.n_tokens.double()).ceil().long() for fraction in fractions]
        return replace(self, first=self.first.repeat(len(fractions)), n_tokens=torch.cat(n_tokens))

    def at(self, position: str) -> Tensor:
        """Return the states [row, feature, d_model] float32 at a position of the `hidden` signal.

        `position` is `first_answer`, `last_answer` or `mean_answer`. Rows without tokens are NaN.
        """
        stop, there = self.first + self.n_tokens, (self.n_tokens > 0)[:, None]
        columns = []
        for states in self.values:
            if position == "mean_answer":
                total = torch.nn.functional.pad(states.double().cumsum(0), (0, 0, 1, 0))
                column = (total[stop] - total[self.first]) / self.n_tokens[:, None]
            else:
                place = self.first if position == "first_answer" else stop - 1
                column = states[place.clamp(0, len(states) - 1)]
            columns.append(column.float().where(there, torch.nan))
        return torch.stack(columns, 1)

    def tokens(self) -> Tensor:
        """Return a copy of the states of all rows, [feature, token, d_model] float32."""
        return self.values[:, self._places()].float()

    def _places(self) -> Tensor:
        """Return the indices of all rows' tokens along dimension 1 of `values`, [token] int64."""
        shift = self.first - (self.n_tokens.cumsum(0) - self.n_tokens)
        return torch.arange(int(self.n_tokens.sum()), device=self.device) + shift.repeat_interleave(self.n_tokens)

    def finite(self) -> Tensor:
        """Return a mask [row] of the rows that have tokens and only finite states."""
        bad = sum((~one.isfinite()).any(1).long() for one in self.values)
        total = torch.cat([self.first.new_zeros(1), torch.as_tensor(bad).cumsum(0)])
        return (self.n_tokens > 0) & (total[self.first + self.n_tokens] == total[self.first])

    def to(self, device: torch.device) -> Self:
        """Move the rows and their states to a device."""
        if device == self.device:
            return self
        n_tokens = self.n_tokens.to(device)
        return replace(
            self,
            values=self.values[:, self._places()].to(device),
            first=n_tokens.cumsum(0) - n_tokens,
            n_tokens=n_tokens,
        )

    def split(self, n_tokens: int) -> Iterator[Self]:
        """Yield chunks of whole rows with about `n_tokens` tokens each."""
        part = (self.n_tokens.cumsum(0) - 1) // n_tokens
        for number in part.unique():
            yield self[part == number]


def unreadable(probe: str, signal: str, options: str) -> InputError:
    """Return the error for a probe that cannot read a signal.

    `options` is the text that follows ``--data.signal=`` in the suggestion to the user.
    """
    return InputError(
        f"Expected a signal that {probe} can read, but got {signal!r}. Pass --data.signal={options}, or choose a "
        "different probe with --model."
    )
