"""The linear probe: one direction per layer and penalty, trained by gradient descent on soft labels."""

from __future__ import annotations

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from extract.errors import InputError
from probes.head import LinearHead
from probes.module import ProbeModule


class Linear(ProbeModule):
    """Linear map and sigmoid with cross-entropy on the expected accuracy p̂; all layers and penalties in one pass.

    Args:
        lr: Learning rate of Adam at the start; it falls to 0 along a cosine.
        l2: Penalties λ to try, or one; null tries five from 0.01 to 1. λ/2 · ‖w‖² is added to the mean loss on standardised features.
    """

    name = "linear"

    def __init__(self, lr: float = 0.01, l2: list[float] | float | None = None) -> None:
        super().__init__([0.01, 0.03, 0.1, 0.3, 1.0] if l2 is None else l2)
        if lr <= 0:
            raise InputError(f"Expected `lr` to be above 0, but got {lr}. 0.01 is the default.")
        self.save_hyperparameters()
        self.lr = lr

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Weights [penalty, feature, d_model] and biases [penalty, feature], all 0."""
        self.weight = nn.Parameter(torch.zeros(len(self.penalties), n_features, d_model))
        self.bias = nn.Parameter(torch.zeros(len(self.penalties), n_features))

    def candidate_logits(self, features: Tensor) -> Tensor:
        """Logits [penalty, question, feature]."""
        return torch.einsum("qfd,pfd->pqf", features, self.weight) + self.bias[:, None]

    def penalty(self) -> Tensor:
        """λ/2 · ‖w‖² of each candidate."""
        l2 = torch.tensor(self.penalties, device=self.weight.device)
        return l2[:, None] / 2 * self.weight.square().sum(-1)

    def candidate_head(self, penalty: int, feature: int) -> LinearHead:
        """One candidate as a head."""
        head = LinearHead(self.weight.shape[-1])
        for name, value in (
            ("mean", self.mean[feature]),
            ("scale", self.scale[feature]),
            ("weight", self.weight[penalty, feature]),
            ("bias", self.bias[penalty, feature]),
        ):
            getattr(head, name).copy_(value.detach().cpu())
        return head

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam with a cosine over the run's steps."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
