"""`AtOnce`: probes that take the training split whole. `ClosedForm`: those whose directions come from a solver."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules import Batch
from probes.fitting.module import ProbeModule
from probes.linear import Directions


class AtOnce(ProbeModule):
    """Base of the probes that learn from all training rows together, at the end of their one epoch.

    Args:
        l2: Penalties to try, or one.
        calibrator: How scores become confidences.
    """

    def __init__(self, l2: list[float] | float, calibrator: str = "platt") -> None:
        super().__init__(l2, calibrator)
        self.automatic_optimization = False

    def learn(self, features: Tensor, target: Tensor) -> None:
        """Learn all candidates.

        Args:
            features: [row, feature, d_model] float32, standardised.
            target: [row] float32 in [0, 1].
        """
        raise NotImplementedError

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """None: nothing descends."""
        return []

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Nothing: all rows are wanted at once."""

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        """Learn from the whole training split, and stop."""
        train = self.data.batch("train").to(self.device)
        self.learn(self.standardised(train.features), train.target)
        self.trainer.should_stop = True


class ClosedForm(Directions, AtOnce):
    """Base of the probes whose directions are solved for, all layers and penalties at once.

    Args:
        l2: Penalties to try, or one.
        calibrator: How scores become confidences.
    """

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Directions of all candidates.

        Args:
            features: [feature, row, d_model] float32, standardised.
            target: [row] float32 in [0, 1].

        Returns:
            Weights [penalty, feature, d_model] and biases [penalty, feature].
        """
        raise NotImplementedError

    def learn(self, features: Tensor, target: Tensor) -> None:
        """See `AtOnce.learn`."""
        weight, bias = self.solve(features.transpose(0, 1), target)
        self.weight.copy_(weight)
        self.bias.copy_(bias)
