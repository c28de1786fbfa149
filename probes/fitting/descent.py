"""`Descent`: probes that are trained by gradient descent."""

from __future__ import annotations

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from datamodules import Batch
from extract.errors import InputError
from probes.fitting.module import ProbeModule, soft_label_loss


class Descent(ProbeModule):
    """Base of the probes trained by Adam with a cosine: the candidates share no parameter, so their sum trains each alone.

    Args:
        lr: Learning rate at the start; it falls to 0 along a cosine.
        l2: Penalties to try, or one.
        calibrator: How scores become confidences.
    """

    def __init__(self, lr: float, l2: list[float] | float, calibrator: str = "platt") -> None:
        super().__init__(l2, calibrator)
        if lr <= 0:
            raise InputError(f"Expected `lr` to be above 0, but got {lr}. 0.01 is the default.")
        self.lr = lr
        self._passed: list[tuple[Tensor, int]] = []

    def penalty(self) -> Tensor:
        """Penalty of each candidate, [penalty, feature]."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Mean loss of each candidate, [penalty, feature], in nats."""
        return soft_label_loss(self.candidate_scores(self.standardised(batch.features)), batch.target)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum over candidates of mean loss and penalty."""
        loss = self.loss(batch)
        total = (loss + self.penalty()).sum()
        self._passed.append((total.detach() / loss.numel(), len(batch.row)))
        return total

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean loss; Lightning's own averaging took a quarter of each step."""
        losses, rows = zip(*self._passed, strict=True)
        self._passed.clear()
        weight = torch.tensor(rows, dtype=torch.float32, device=losses[0].device)
        self.log("train/loss", (torch.stack(losses) * weight).sum() / weight.sum())

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam with a cosine over the run's steps."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
