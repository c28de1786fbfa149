"""Base classes for probes that pool the hidden states of all answer tokens."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.token_states import TokenStates, unreadable
from extract.errors import at_least_one
from extract.store.ragged import Ragged
from probes.fitting.training import Descent
from probes.saved.head import Head
from probes.saved.sequence_head import SequenceHead

#: Number of tokens whose standardised states are in memory at once.
TOKENS_AT_ONCE = 2**14


class SequenceProbe(Descent):
    """Base class for probes whose score is pool(W x) + b, where x are standardised token states.

    Args:
        lr, l2, calibrator: See `Descent`.
    """

    penalised = ("candidates.weight",)
    candidates: SequenceHead

    @abstractmethod
    def initial_head(self, d_model: int) -> SequenceHead:
        """Return an untrained head, from which all candidates start."""

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create the tensors of a head for all candidates, with leading axes [penalty, feature]."""
        self.candidates = self.initial_head(d_model)
        del self.candidates.mean, self.candidates.scale
        for name, initial in list(self.candidates.named_buffers()):
            copies = initial.repeat(len(self.penalties), n_features, *[1] * initial.dim())
            setattr(self.candidates, name, nn.Parameter(copies))

    def moments(self, features: Any) -> tuple[Tensor, Tensor]:
        """Compute the mean and standard deviation over all tokens, each [feature, d_model]."""
        if not isinstance(features, TokenStates):
            raise unreadable(type(self).__name__, self.data.signal, "hidden_tokens --data.target=response")
        of_features = (features[:, i].values[:, None] for i in range(features.shape[1]))
        mean, scale = zip(*map(super().moments, of_features), strict=True)
        return torch.cat(mean), torch.cat(scale)

    def selected(self, features: TokenStates, chosen: Sequence[int]) -> Ragged:
        """See `ProbeModule.selected`. The probe reads one layer."""
        return features[:, chosen[0]]

    def standardised(self, features: TokenStates) -> TokenStates:
        """Return the states unchanged, because `candidate_scores` standardises them in chunks."""
        return features

    def candidate_scores(self, features: TokenStates) -> Tensor:
        """Return scores [penalty, row, feature] for raw states."""
        return torch.cat([self._scores(part) for part in features.split(TOKENS_AT_ONCE)], dim=1)

    def _scores(self, features: TokenStates) -> Tensor:
        states = (features.tokens() - self.mean[:, None]).div_(self.scale[:, None])
        weight = self.candidates.weight.permute(1, 3, 0, 2)  # [feature, d_model, penalty, number]
        numbers = (states @ weight.flatten(2)).unflatten(2, weight.shape[2:])
        return self.candidates.pooled(Ragged(numbers.permute(1, 2, 0, 3), features.offsets)).transpose(0, 1)

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """See `ProbeModule.candidate_head`."""
        own = {name: values[penalty, feature] for name, values in self.candidates.named_parameters()}
        return self.filled(self.initial_head(self.mean.shape[-1]), penalty, feature, **own)


class MultiHeadProbe(SequenceProbe):
    """Base class for sequence probes with several heads.

    Args:
        n_heads: Number of heads.
        **options: `lr`, `l2` and `calibrator`. See `Descent`.
    """

    def __init__(self, n_heads: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self.n_heads = at_least_one("n_heads", n_heads, default=4)


def random_rows(n: int, d_model: int) -> Tensor:
    """Return random weights [n, d_model]. Their products with standardised states have a variance of about 1."""
    return torch.randn(n, d_model) / d_model**0.5
