"""`ProbeModule`: what every probe shares — standardising, choosing on validation, calibrating, testing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules import Batch, FeatureDataModule
from extract.errors import InputError
from probes.calibration import Platt, fit_platt
from probes.functional import capability_auroc, debiased_brier
from probes.head import LinearHead
from probes.metrics import BrierSkill, CapabilityAUROC, DebiasedBrier


@dataclass(frozen=True)
class Choice:
    """What validation chose: the feature's index and name, the penalty, and the calibrator."""

    feature: int
    name: str
    l2: float
    calibrator: Platt


class ProbeModule(L.LightningModule):
    """Base of the probes: one candidate per penalty and feature (layer and position), all trained in the same passes.

    A subclass makes its parameters in `make_candidates`, gives the candidates' logits and says what the best of them
    is as a head. Everything is chosen on validation: the candidate by its loss, then the calibrator.

    Args:
        l2: Penalties to try, or one.
    """

    #: Name of the method in reports.
    name = "probe"
    mean: Tensor
    scale: Tensor

    def __init__(self, l2: list[float] | float) -> None:
        super().__init__()
        self.penalties = [l2] if isinstance(l2, (int, float)) else list(l2)
        if not self.penalties or min(self.penalties) < 0:
            raise InputError(
                f"Expected `l2` to be one or more penalties of at least 0, but got {l2!r}. For example --model.l2=0.1"
            )
        self.choice: Choice | None = None
        self.val_loss: Tensor | None = None
        self._val_logits: Tensor | None = None
        self._val_batch: Batch | None = None
        self.val_figures: dict[str, float] = {}
        self._val: list[tuple[Tensor, Batch]] = []

    # For subclasses

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create the parameters of all candidates."""
        raise NotImplementedError

    def candidate_logits(self, features: Tensor) -> Tensor:
        """Logits [penalty, question, feature] from standardised features [question, feature, d_model]."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """Penalty of each candidate, [penalty, feature]."""
        raise NotImplementedError

    def candidate_head(self, penalty: int, feature: int) -> LinearHead:
        """The uncalibrated head of one candidate, on raw features."""
        raise NotImplementedError

    # What Lightning calls

    def setup(self, stage: str) -> None:
        """Make standardiser and candidates to fit the data."""
        data: FeatureDataModule = self.trainer.datamodule  # type: ignore[attr-defined]  # Lightning's trainer sets it without declaring it
        if not hasattr(self, "mean"):
            train = data.batch("train")
            self._make(train.features.shape[1], train.features.shape[2])
            mean, scale = standardiser(train.features)
            self.mean.copy_(mean)
            self.scale.copy_(scale)
            self.train_accuracy = float((train.right / train.known).mean())
        self.feature_names = data.feature_names
        reference = self.train_accuracy
        self.test_metrics = nn.ModuleDict(
            {"auroc": CapabilityAUROC(), "brier": DebiasedBrier(), "brier_skill": BrierSkill(reference)}
        )

    def _make(self, n_features: int, d_model: int) -> None:
        self.register_buffer("mean", torch.zeros(n_features, d_model))
        self.register_buffer("scale", torch.ones(n_features, d_model))
        self.make_candidates(n_features, d_model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the parameters that a checkpoint holds."""
        if not hasattr(self, "mean"):
            self._make(*checkpoint["state_dict"]["mean"].shape)
        self.train_accuracy = checkpoint["train_accuracy"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the reference of the skill."""
        checkpoint["train_accuracy"] = self.train_accuracy

    def standardised(self, features: Tensor) -> Tensor:
        """Features [question, feature, d_model] with the training split's mean 0 and deviation 1."""
        return (features - self.mean) / self.scale

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum over candidates of mean loss and penalty; candidates share no parameter, so the sum trains each alone."""
        logits = self.candidate_logits(self.standardised(batch.features))
        loss = soft_label_loss(logits, batch).sum() + self.penalty().sum()
        self.log("train/loss", loss / logits[:, 0].numel(), on_step=False, on_epoch=True, batch_size=len(batch.row))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Collect logits of all candidates."""
        self._val.append((self.candidate_logits(self.standardised(batch.features)), batch))

    def on_validation_epoch_end(self) -> None:
        """Log what would be chosen now."""
        collected = list(zip(*self._val, strict=True))
        self._val.clear()
        if self.trainer.sanity_checking:
            return
        logits, batches = torch.cat(collected[0], dim=1), collected[1]
        self._choose(logits, Batch(*(torch.cat(tensors) for tensors in zip(*batches, strict=True))))
        self.log_dict(self.val_figures)

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Choose and calibrate with the weights that are kept, whenever validation ran last."""
        data: FeatureDataModule = self.trainer.datamodule  # type: ignore[attr-defined]  # Lightning's trainer sets it without declaring it
        batch = Batch(*(tensor.to(self.device) for tensor in data.batch("val")))
        self._choose(self.candidate_logits(self.standardised(batch.features)), batch)

    def _choose(self, logits: Tensor, batch: Batch) -> None:
        """Choose the candidate of least validation loss, and calibrate it."""
        self._val_logits, self._val_batch = logits.detach(), batch
        self.val_loss = soft_label_loss(self._val_logits, batch).nan_to_num(torch.inf)
        penalty, feature = divmod(int(self.val_loss.argmin()), self.val_loss.shape[1])
        calibrator = self._calibrator(penalty, feature)
        self.choice = Choice(feature, self.feature_names[feature], self.penalties[penalty], calibrator)
        scored = calibrator(self._val_logits[penalty, :, feature]), batch.right, batch.known
        self.val_figures = {
            "val/loss": float(self.val_loss.min()),
            "val/auroc": float(capability_auroc(*scored)),
            "val/brier": float(debiased_brier(*scored)),
        }

    def _calibrator(self, penalty: int, feature: int) -> Platt:
        """Calibrator of one candidate, fitted on validation."""
        assert self._val_logits is not None
        assert self._val_batch is not None
        return fit_platt(
            self._val_logits[penalty, :, feature].cpu(), self._val_batch.right.cpu(), self._val_batch.known.cpu()
        )

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the chosen probe."""
        confidence = self.predict(batch.features)
        for name, metric in self.test_metrics.items():
            assert isinstance(metric, Metric)
            metric.update(confidence, batch.right, batch.known)
            self.log(f"test/{name}", metric, on_step=False, on_epoch=True, batch_size=len(batch.row))

    # What comes out

    def head(self) -> LinearHead:
        """The chosen, calibrated head, on raw features of one layer and position.

        Raises:
            RuntimeError: Before the first validation.
        """
        if self.choice is None:
            raise RuntimeError("The probe has chosen nothing yet: fit it first.")
        return self._calibrated(self.penalties.index(self.choice.l2), self.choice.feature, self.choice.calibrator)

    def _calibrated(self, penalty: int, feature: int, calibrator: Platt) -> LinearHead:
        head = self.candidate_head(penalty, feature)
        head.slope.fill_(calibrator.slope)
        head.intercept.fill_(calibrator.intercept)
        return head

    def confidences_by_feature(self, features: Tensor) -> Tensor:
        """Confidences [question, feature]: of each feature the penalty with the least validation loss, calibrated like the chosen one."""
        assert self.val_loss is not None
        best = self.val_loss.argmin(0).tolist()
        heads = [
            self._calibrated(penalty, feature, self._calibrator(penalty, feature))
            for feature, penalty in enumerate(best)
        ]
        return torch.stack([head(features[:, feature]) for feature, head in enumerate(heads)], dim=1)

    def predict(self, features: Tensor) -> Tensor:
        """Confidences [question] of the chosen head, from features [question, feature, d_model]."""
        assert self.choice is not None
        return self.head().to(features.device)(features[:, self.choice.feature])


def standardiser(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation [feature, d_model] over questions; a coordinate that never varies is left out by an infinite scale."""
    mean, deviation = features.mean(0), features.std(0)
    varies = deviation > 1e-6 * features.abs().amax(0).clamp_min(1e-12)
    return mean, torch.where(varies, deviation, torch.inf)


def soft_label_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean binary cross-entropy against p̂ = right / known, in nats: [penalty, feature] from logits [penalty, question, feature].

    A proper loss: its minimiser is the mean of the label given the features, whatever the noise in p̂.
    """
    target = (batch.right / batch.known)[None, :, None].expand_as(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1)
