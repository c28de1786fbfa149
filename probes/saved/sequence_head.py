"""Heads that pool a few numbers per token of an answer into one score.

Each pooling function takes

- `numbers` [row, token, ..., number] float32, padded with finite values, and
- `there` [row, token] bool, a mask that is True for tokens and False for padding,

and returns [row, ...]. Results for rows without tokens are arbitrary. In training, the axes `...` index the candidate
heads.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from extract.store.ragged import Ragged
from probes.saved.head import Head, zeros


def attention_pool(numbers: Tensor, there: Tensor, slope: Tensor) -> Tensor:
    r"""Average the values over tokens, weighted by attention. Sum over the H attention heads.

    .. math:: \sum_h \sum_t \mathrm{softmax}_t(q_{ht} + s_h t) \, v_{ht}

    Args:
        numbers: Attention logits q of the H attention heads, followed by their values v, [row, token, ..., 2 H].
        there: Mask that is True for tokens and False for padding, [row, token] bool.
        slope: Slope s of each attention head, [..., H].
    """
    logits, values = numbers.chunk(2, dim=-1)
    step = torch.arange(numbers.shape[1], dtype=numbers.dtype, device=numbers.device)
    logits = logits + _like(step[None], numbers) * slope
    weights = logits.masked_fill(~_like(there, numbers), -torch.inf).softmax(1)
    return (weights * values).sum((1, -1))


def multimax_pool(numbers: Tensor, there: Tensor) -> Tensor:
    r"""Take the maximum of each head's values over tokens (the minimum for odd heads). Sum over heads.

    .. math:: \sum_h \pm \max_t (\pm v_{ht})

    `numbers` contains the values v of the heads, [row, token, ..., head].
    """
    sign = torch.ones_like(numbers[0, 0, ...])
    sign[..., 1::2] = -1
    return ((numbers * sign).masked_fill(~_like(there, numbers), -torch.inf).amax(1) * sign).sum(-1)


def rolling_pool(numbers: Tensor, there: Tensor, window: int) -> Tensor:
    """Return the largest mean over `window` consecutive tokens. For shorter rows, return the mean over all tokens.

    `numbers` contains one number per token.
    """
    step, n_tokens = torch.arange(there.shape[1], device=there.device), there.sum(1, keepdim=True)
    total = torch.nn.functional.pad(numbers[..., 0].movedim(1, -1), (1, 0)).double().cumsum(-1)
    means = (total[..., 1:] - total[..., (step + 1 - window).clamp_min(0)]) / (step + 1).clamp_max(window)
    complete = there & (step + 1 >= n_tokens.clamp_max(window))
    return means.movedim(-1, 1).masked_fill(~_like(complete, numbers[..., 0]), -torch.inf).amax(1).float()


def softmax_pool(numbers: Tensor, there: Tensor) -> Tensor:
    r"""Return the sum of the numbers z weighted by their softmax, :math:`\sum_t \mathrm{softmax}_t(z_t) \, z_t`.

    `numbers` contains one number per token.
    """
    z = numbers[..., 0]
    return (z.masked_fill(~_like(there, z), -torch.inf).softmax(1) * z).sum(1)


def _like(mask: Tensor, numbers: Tensor) -> Tensor:
    """Append axes of size 1 to a mask [row, token] so that it broadcasts with `numbers`."""
    return mask.reshape(*mask.shape, *[1] * (numbers.dim() - 2))


class SequenceHead(Head):
    """Base class for heads that read the hidden states h of all answer tokens.

    The score is pool(W (h − mean) / scale) + b, where W has `n_numbers` rows.
    """

    def __init__(self, d_model: int, n_numbers: int) -> None:
        super().__init__(d_model)
        self.weight, self.bias = zeros(n_numbers, d_model), zeros()

    def forward(self, hidden: Ragged) -> Tensor:
        """Compute scores [row] float32 from hidden states [row, token, d_model]; NaN for rows without tokens."""
        scores = self.pooled(Ragged(self.numbers(hidden.values), hidden.offsets))
        return scores.where(hidden.lengths.to(scores.device) > 0, torch.nan)

    def numbers(self, states: Tensor) -> Tensor:
        """Compute W (h − mean) / scale for each token, [token, number] float32.

        `states` are the raw hidden states h, [token, d_model].
        """
        return (states.float() - self.mean) / self.scale @ self.weight.T

    def pooled(self, numbers: Ragged) -> Tensor:
        """Compute scores [row, ...] by pooling the per-token outputs `numbers`, [row, token, ..., number].

        The scores of rows without tokens are arbitrary.
        """
        padded = numbers.padded(0.0)
        there = torch.arange(padded.shape[1], device=padded.device) < numbers.lengths[:, None]
        return self.pool(padded, there) + self.bias

    @abstractmethod
    def pool(self, numbers: Tensor, there: Tensor) -> Tensor:
        """Pool the per-token outputs `numbers`, [row, token, ..., number], into values [row, ...].

        See the module docstring.
        """


class AttentionHead(SequenceHead):
    """Head that pools values over the tokens with `n_heads` attention heads. See `attention_pool`."""

    kind = "attention"
    sizes: ClassVar[Mapping[str, int]] = {"n_heads": 2**10}

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, 2 * n_heads)
        self.n_heads, self.slope = n_heads, zeros(n_heads)

    def pool(self, numbers: Tensor, there: Tensor) -> Tensor:
        """See `SequenceHead.pool`."""
        return attention_pool(numbers, there, self.slope)


class MultiMaxHead(SequenceHead):
    """Head that computes several values per token, and sums their extremes.

    It takes the maximum or minimum of each value over all tokens, and adds up the results. See `multimax_pool`.
    """

    kind = "multimax"
    sizes: ClassVar[Mapping[str, int]] = {"n_heads": 2**10}

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.n_heads = n_heads

    def pool(self, numbers: Tensor, there: Tensor) -> Tensor:
        """See `SequenceHead.pool`."""
        return multimax_pool(numbers, there)


class RollingHead(SequenceHead):
    """Head whose score is the negated maximum of a moving average over `window` tokens. See `rolling_pool`."""

    kind = "rolling"
    sizes: ClassVar[Mapping[str, int]] = {"window": 2**20}

    def __init__(self, d_model: int, window: int) -> None:
        super().__init__(d_model, 1)
        self.window = window

    def pool(self, numbers: Tensor, there: Tensor) -> Tensor:
        """See `SequenceHead.pool`."""
        return -rolling_pool(numbers, there, self.window)


class SoftmaxSumHead(SequenceHead):
    """Head whose score is the negated softmax-weighted sum of the token values. See `softmax_pool`."""

    kind = "softmax_sum"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 1)

    def pool(self, numbers: Tensor, there: Tensor) -> Tensor:
        """See `SequenceHead.pool`."""
        return -softmax_pool(numbers, there)
