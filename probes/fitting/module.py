"""`ProbeModule`: what every probe shares — standardising, choosing on validation, calibrating, testing."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules import Batch, FeatureDataModule
from extract.errors import InputError, nearest
from probes.fitting.calibration import CALIBRATORS, Calibrator, cross_fitted_loss, fit_calibrator, fit_platt_many
from probes.metrics.functional import capability_auroc, debiased_brier, response_brier
from probes.metrics.metrics import BrierSkill, CapabilityAUROC, DebiasedBrier, ResponseBrier
from probes.registry import method_name
from probes.saved.head import Head


@dataclass(frozen=True)
class Choice:
    """What validation chose: the feature's index and name, the penalty or the value of another `option`, and the calibrator."""

    feature: int
    name: str
    value: float
    calibrator: Calibrator

    @property
    def layer(self) -> int | None:
        """Layer of the feature; None where it has none, as token signals have."""
        return int(self.name.split("/")[0]) if "/" in self.name else None

    @property
    def position(self) -> str | None:
        """Named position of the feature; None where it has none."""
        return self.name.split("/")[1] if "/" in self.name else None


class ProbeModule(L.LightningModule):
    """Base of the probes: one candidate per penalty and feature (layer and position), all trained in the same passes.

    A subclass makes its parameters in `make_candidates`, gives the candidates' scores and says what the best of them
    is as a head. Everything is chosen on validation: the candidate by its loss, then the calibrator.

    Args:
        l2: Penalties to try, or one.
        calibrator: How scores become confidences, fitted on validation: platt, temperature or isotonic.
    """

    #: Name of the method in reports.
    name = "probe"
    #: Option whose values are tried, of which validation chooses one; see `OPTIONS` of `probes.saved.card`.
    option = "l2"
    #: What the probe is taught, in a sentence, where that is not the target of the datamodule.
    taught: str | None = None
    #: What `extract ask` has to put into the store before the probe can be trained, besides what the target needs.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether the scores are log-odds of the target, so that their cross-entropy is the validation loss as they stand.
    log_odds = True
    mean: Tensor
    scale: Tensor

    def __init__(self, l2: list[float] | float, calibrator: str = "platt") -> None:
        super().__init__()
        if self.name == ProbeModule.name:
            raise InputError(
                f"Expected `model` to be a probe, but {type(self).__name__} is a base of probes without a `name`. Use Linear, Logistic, or another one."
            )
        self.penalties = [l2] if isinstance(l2, (int, float)) else list(l2)
        if not self.penalties or min(self.penalties) < 0:
            raise InputError(
                f"Expected `l2` to be one or more penalties of at least 0, but got {l2!r}. For example --model.l2=0.1"
            )
        known = [kind for kind in CALIBRATORS if self.log_odds or kind != "temperature"]
        if calibrator not in known:
            raise InputError(
                f"Expected `calibrator` of {type(self).__name__} to be one of {', '.join(known)}, but got {calibrator!r}.{nearest(calibrator, known)}"
            )
        self.calibrator = calibrator
        self.choice: Choice | None = None
        #: In a sentence, why the fitted probe should not be believed; None where nothing is known against it.
        self.warning: str | None = None
        self.val_loss: Tensor | None = None
        self._val_scores: Tensor | None = None
        self._val_batch: Batch | None = None
        self.val_figures: dict[str, float] = {}
        self._val: list[tuple[Tensor, Batch]] = []

    # For subclasses

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create the parameters of all candidates."""
        raise NotImplementedError

    def candidate_scores(self, features: Tensor) -> Tensor:
        """Scores [penalty, row, feature], higher = more likely right, from standardised features [row, feature, d_model]."""
        raise NotImplementedError

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """One candidate as a head on raw features."""
        raise NotImplementedError

    # What Lightning calls

    @property
    def data(self) -> FeatureDataModule:
        """The datamodule of the run."""
        return self.trainer.datamodule  # type: ignore[attr-defined]  # Lightning's trainer sets it without declaring it

    def setup(self, stage: str) -> None:
        """Make standardiser and candidates to fit the data.

        Raises:
            InputError: Features of which none varies.
        """
        if not hasattr(self, "mean"):
            train = self.data.batch("train")
            mean, scale = standardiser(train.features)
            if scale.isinf().all():
                raise InputError(
                    f"Expected features that vary over the training split, but every coordinate of {', '.join(self.data.feature_names[:3])} … is constant. Choose another signal, layer or position."
                )
            self._make(train.features.shape[1], train.features.shape[2])
            self.mean.copy_(mean)
            self.scale.copy_(scale)
            self.train_accuracy = float((train.right / train.known).mean())
        self.feature_names = self.data.feature_names
        self.name = method_name(type(self).__name__, self.data.target, self.data.signal) or type(self).name
        self.test_metrics = nn.ModuleDict(_metrics(self.data.scope, self.train_accuracy))

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
        """Features [row, feature, d_model] with the training split's mean 0 and deviation 1."""
        return (features - self.mean).div_(self.scale)  # in place: one allocation less in every step

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Collect scores of all candidates."""
        self._val.append((self.candidate_scores(self.standardised(batch.features)), batch))

    def on_validation_epoch_end(self) -> None:
        """Log what would be chosen now."""
        scores, batches = zip(*self._val, strict=True)
        self._val.clear()
        if self.trainer.sanity_checking:
            return
        self._choose(torch.cat(scores, dim=1), Batch(*(torch.cat(tensors) for tensors in zip(*batches, strict=True))))
        self.log_dict(self.val_figures)

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Choose and calibrate with the weights that are kept, whenever validation ran last."""
        batch = self.data.batch("val").to(self.device)
        self._choose(self.candidate_scores(self.standardised(batch.features)), batch)
        assert self.choice is not None
        assert self._val_scores is not None
        assert self._val_batch is not None
        scores = self._val_scores[self.penalties.index(self.choice.value), :, self.choice.feature]
        of = self._val_batch
        self.val_figures.pop("val/loss")  # of scores before they were calibrated
        loss = cross_fitted_loss(self.calibrator, scores, of.right, of.known, of.question)
        if loss is not None:
            self.val_figures["val/loss"] = loss

    def _choose(self, scores: Tensor, batch: Batch) -> None:
        """Choose the candidate of least validation loss, and calibrate it."""
        # in float64 on the CPU: a few numbers, of which the calibrators want every digit
        self._val_scores = scores.detach().cpu().double()
        self._val_batch = batch.to(torch.device("cpu"))
        self.val_loss = self.validation_loss(self._val_scores, self._val_batch).nan_to_num(torch.inf)
        if not self.val_loss.isfinite().any():
            raise InputError(
                f"Expected a validation loss of {self.name} that is a number, but no layer or penalty has one: its scores are NaN or infinite. Use a lower `lr` or a higher `l2`, or look at the features."
            )
        penalty, feature = divmod(int(self.val_loss.argmin()), self.val_loss.shape[1])
        calibrator = self._calibrator(penalty, feature)
        self.choice = Choice(feature, self.feature_names[feature], self.penalties[penalty], calibrator)
        confidence = calibrator(self._val_scores[penalty, :, feature])
        right, known = self._val_batch.right, self._val_batch.known
        self.val_figures = {
            "val/loss": float(self.val_loss.min()),
            "val/auroc": float(capability_auroc(confidence, right, known)),
            "val/brier": float(self._brier(confidence, right, known)),
        }

    def _brier(self, confidence: Tensor, right: Tensor, known: Tensor) -> Tensor:
        brier = response_brier if self.data.scope == "sample" else debiased_brier
        return brier(confidence, right, known)

    def validation_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of every candidate, [penalty, feature] from scores [penalty, row, feature]; in nats.

        Scores that are no log-odds go through a Platt calibrator first, fitted on the same rows.
        """
        if self.log_odds:
            return soft_label_loss(scores, batch.target)
        flat = scores.transpose(1, 2).flatten(0, 1)
        slope, intercept = fit_platt_many(flat, batch.target, torch.ones_like(batch.target))
        logits = (slope[:, None] * flat + intercept[:, None]).T[None]
        return soft_label_loss(logits, batch.target).reshape(len(scores), -1)

    def _calibrator(self, penalty: int, feature: int) -> Calibrator:
        """Calibrator of one candidate, fitted on validation."""
        assert self._val_scores is not None
        assert self._val_batch is not None
        scores = self._val_scores[penalty, :, feature]
        return fit_calibrator(self.calibrator, scores, self._val_batch.right, self._val_batch.known)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the chosen probe."""
        confidence = self.predict(batch.features)
        for name, metric in self.test_metrics.items():
            assert isinstance(metric, Metric)
            metric.update(confidence, batch.right, batch.known)
            self.log(f"test/{name}", metric, on_step=False, on_epoch=True, batch_size=len(batch.row))

    # What comes out

    def head(self) -> Head:
        """The chosen head, on raw features of one layer and position, on the CPU.

        Raises:
            RuntimeError: Before the first validation.
        """
        if self.choice is None:
            raise RuntimeError("The probe has chosen nothing yet: fit it first.")
        return self.candidate_head(self.penalties.index(self.choice.value), self.choice.feature)

    def confidences_by_feature(self, features: Tensor) -> Tensor:
        """Confidences [row, feature]: of each feature the penalty with the least validation loss, calibrated like the chosen one."""
        assert self.val_loss is not None
        columns = []
        for feature, penalty in enumerate(self.val_loss.argmin(0).tolist()):
            scores = self.candidate_head(penalty, feature)(features[:, feature])
            columns.append(self._calibrator(penalty, feature)(scores))
        return torch.stack(columns, dim=1)

    def predict(self, features: Tensor) -> Tensor:
        """Confidences [row] of the chosen head, from features [row, feature, d_model]."""
        head = self.head().to(features.device)
        assert self.choice is not None
        return self.choice.calibrator.to(features.device)(head(features[:, self.choice.feature]))


def _metrics(scope: str, reference: float) -> dict[str, nn.Module]:
    """What the test split is judged by: of questions with all their answers, or of single answers."""
    if scope == "sample":
        return {"auroc": CapabilityAUROC(), "brier": ResponseBrier()}
    return {"auroc": CapabilityAUROC(), "brier": DebiasedBrier(), "brier_skill": BrierSkill(reference)}


def standardiser(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation [feature, d_model] over rows; a coordinate that never varies is left out by an infinite scale."""
    mean, deviation = features.mean(0), features.std(0)
    varies = deviation > 1e-6 * features.abs().amax(0).clamp_min(1e-12)
    return mean, torch.where(varies, deviation, torch.inf)


def soft_label_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean binary cross-entropy against soft labels [row], in nats: [penalty, feature] from logits [penalty, row, feature].

    A proper loss: its minimiser is the mean of the label given the features, whatever the noise in p̂.
    """
    label = target.to(logits.dtype)[None, :, None].expand_as(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none").mean(1)


def quiet_lightning() -> None:
    """Silence Lightning's remarks on hardware, workers and loggers; its errors and our own lines stay."""
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning 2.6 calls what 4.49 deprecated
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    remarks = "intended to run from|many workers|LeafSpec|training batches|configure_optimizers|no optimizer"
    warnings.filterwarnings("ignore", message=f".*({remarks})")
