"""Where the tokens of prompts and answers are in a pass over a padded batch."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class TokenSpans:
    """Token indices of each row of a batch.

    Behind a prompt of P tokens, answer token y_t was drawn at index P + t − 2 and is itself at index P + t − 1. At
    question scope the only token is the one that is going to be drawn after the prompt.

    Attributes:
        first: Index that drew y_1: the last token of the prompt.
        n_tokens: Number n of answer tokens, at least 1.
        n_before: Tokens in the key-value cache before this pass, the same for all rows.
        n_pad: Left padding of each row; None for none.
    """

    first: list[int]
    n_tokens: list[int]
    n_before: int = 0
    n_pad: list[int] | None = None

    @property
    def widest(self) -> int:
        """Largest number of tokens of a row."""
        return max(self.n_tokens)

    def drawn_at(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and index that drew each token, [sum of n_tokens] int64 each, row after row."""
        n = torch.tensor(self.n_tokens)
        row = torch.arange(len(n)).repeat_interleave(n)
        step = torch.arange(int(n.sum())) - (n.cumsum(0) - n).repeat_interleave(n)
        return row.to(device), (torch.tensor(self.first)[row] + step).to(device)

    def pad(self, values: Tensor) -> Tensor:
        """[row, token, …] on the CPU of values [sum of n_tokens, …]; NaN behind a row's tokens."""
        return pad_sequence(list(values.cpu().split(self.n_tokens)), batch_first=True, padding_value=torch.nan)

    def query_index(self, last: bool) -> Tensor:
        """[row, query] int64 indices that drew y_1 … y_n and, with `last`, that of y_n; rows may run past their end."""
        return torch.tensor(self.first)[:, None] + torch.arange(self.widest + last)


@dataclass(frozen=True)
class Places:
    """Queries and keys whose attention is read in a pass.

    A place is a token's position in its own row, counted from 0 without padding and with the tokens in the cache.

    Attributes:
        index: [row, query] int64, index of each query among the tokens of the pass.
        query: [row, query] int64, its place.
        key: [row, key] int64, place of each key.
        valid: [row, query] bool, whether the row has this query; attention of the others is 0.
        n_tokens: [row] int64 N, tokens of prompt and answer.
        sink: [row] int64, key of the token at place 0.
        spans: What the places belong to.
    """

    index: Tensor
    query: Tensor
    key: Tensor
    valid: Tensor
    n_tokens: Tensor
    sink: Tensor
    spans: TokenSpans

    @classmethod
    def of(cls, spans: TokenSpans, n_queries: int, n_keys: int, last: bool, device: torch.device) -> Self:
        """Places of a pass over `n_queries` tokens, `n_keys` with the cache; with `last` also that of y_n's own."""
        first, n_answer = torch.tensor(spans.first), torch.tensor(spans.n_tokens)
        pad = torch.tensor(spans.n_pad or [0] * len(first))
        step = torch.arange(spans.widest + last)
        key = torch.arange(n_keys).expand(len(first), -1)
        return cls(
            index=spans.query_index(last).clamp_max(n_queries - 1).to(device),
            query=(spans.n_before + first - pad)[:, None].add(step).to(device),
            key=torch.where(key < spans.n_before, key, key - pad[:, None]).to(device),
            valid=(step < (n_answer + last)[:, None]).to(device),
            n_tokens=(spans.n_before + first - pad + 1 + n_answer).to(device),
            sink=(pad * (spans.n_before == 0)).to(device),
            spans=spans,
        )
