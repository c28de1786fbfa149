"""`ClosedForm`: probes whose directions come from a solver, all layers and penalties at once."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules import Batch
from probes.linear import Directions


class ClosedForm(Directions):
    """Base of the probes that are solved for at the end of their one epoch.

    Args:
        l2: Penalties to try, or one.
        calibrator: How scores become confidences.
    """

    def __init__(self, l2: list[float] | float, calibrator: str = "platt") -> None:
        super().__init__(l2, calibrator)
        self.automatic_optimization = False

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Directions of all candidates.

        Args:
            features: [feature, row, d_model] float32, standardised.
            target: [row] float32 in [0, 1].

        Returns:
            Weights [penalty, feature, d_model] and biases [penalty, feature].
        """
        raise NotImplementedError

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """None: nothing descends."""
        return []

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Nothing: all rows are wanted at once."""

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        """Solve with the whole training split, and stop."""
        train = self.data.batch("train").to(self.device)
        weight, bias = self.solve(self.standardised(train.features).transpose(0, 1), train.target)
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        self.trainer.should_stop = True
