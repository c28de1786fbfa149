"""Where the distributions stand that drew the tokens of an answer, in a pass over a padded batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Rows:
    """Token places of each row of a batch, as indices into the tokens of the pass.

    y_t of n tokens was drawn at P + t − 2 and stands at P + t − 1, behind P prompt tokens.

    Attributes:
        first: Index of the place that drew y_1, which is the last token of the prompt.
        n_tokens: n, at least 1.
        n_before: Tokens that were read before this pass for all rows; their keys come first.
        n_pad: Padding on the left of each row, which nobody attends to.
        read: Whether y_1 … y_n were read in the pass too; not so where a question's last token alone is looked at.
    """

    first: list[int]
    n_tokens: list[int]
    n_before: int = 0
    n_pad: list[int] | None = None
    read: bool = True

    @property
    def widest(self) -> int:
        """Most tokens of a row."""
        return max(self.n_tokens)

    def drawn_at(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and index of the place that drew each token, [sum of n_tokens] int64 each, one row after the other."""
        n = torch.tensor(self.n_tokens)
        row = torch.arange(len(n)).repeat_interleave(n)
        step = torch.arange(int(n.sum())) - (n.cumsum(0) - n).repeat_interleave(n)
        return row.to(device), (torch.tensor(self.first)[row] + step).to(device)

    def padded(self, values: Tensor) -> Tensor:
        """[row, token, …] on the CPU of values [sum of n_tokens, …], one row after the other; NaN behind a row's tokens."""
        return pad_sequence(list(values.cpu().split(self.n_tokens)), batch_first=True, padding_value=torch.nan)
