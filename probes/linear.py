"""The linear probe: one direction per layer and penalty, trained by gradient descent on soft labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probes.fitting.descent import Descent
from probes.fitting.module import ProbeModule
from probes.saved.head import LinearHead

#: Penalties that are tried where none are given.
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)


class Directions(ProbeModule):
    """Candidates that are one direction and bias each, however they are found."""

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Weights [penalty, feature, d_model] and biases [penalty, feature], all 0."""
        self.weight = nn.Parameter(torch.zeros(len(self.penalties), n_features, d_model))
        self.bias = nn.Parameter(torch.zeros(len(self.penalties), n_features))

    def candidate_scores(self, features: Tensor) -> Tensor:
        """Scores [penalty, row, feature]."""
        return torch.einsum("rfd,pfd->prf", features, self.weight) + self.bias[:, None]

    def candidate_head(self, penalty: int, feature: int) -> LinearHead:
        """One candidate as a head."""
        return LinearHead(self.weight.shape[-1]).filled(
            mean=self.mean[feature],
            scale=self.scale[feature],
            weight=self.weight[penalty, feature],
            bias=self.bias[penalty, feature],
        )


class Linear(Directions, Descent):
    """Linear map and sigmoid with cross-entropy on the expected accuracy p̂; all layers and penalties in one pass.

    Args:
        lr: Learning rate of Adam at the start, null for 0.01; it falls to 0 along a cosine.
        l2: Penalties λ to try, or one; null tries five from 0.01 to 1. λ/2 · ‖w‖² is added to the mean loss on standardised features.
        calibrator: How scores become confidences, fitted on validation: platt, temperature or isotonic.
    """

    name = "linear"

    def __init__(
        self, lr: float | None = None, l2: list[float] | float | None = None, calibrator: str = "platt"
    ) -> None:
        super().__init__(0.01 if lr is None else lr, list(PENALTIES) if l2 is None else l2, calibrator)
        self.save_hyperparameters()

    def penalty(self) -> Tensor:
        """λ/2 · ‖w‖² of each candidate."""
        l2 = torch.tensor(self.penalties, device=self.weight.device)
        return l2[:, None] / 2 * self.weight.square().sum(-1)
