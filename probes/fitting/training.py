"""Base classes for probes trained with Adam, fitted to all rows at once, or solved in closed form."""

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from datamodules.batches import Batch
from datamodules.streamed_features import StreamedFeatures, unstreamable
from extract.errors import InputError
from extract.running.progress import Progress
from probes.fitting.calibration import soft_label_loss
from probes.fitting.module import ProbeModule
from probes.fitting.standardiser import check_scale, standardiser
from probes.fitting.streamed import Fits, held_out_scores
from probes.fitting.sums import Column, moments
from probes.saved.head import Head, LinearHead

PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)
N_FOLDS = 5


class Descent(ProbeModule):
    """Base class for probes that are trained with Adam. All candidates are trained together but share no parameters.

    Args:
        lr: Initial learning rate of Adam, annealed to 0 on a cosine schedule. The default is 0.01 for Linear and
            Counts, and 0.003 for other probes.
        l2: L2 penalty λ, or a list of penalties to try. λ/2 times the sum of squared weights is added to the mean loss.
            The default is five penalties from 0.01 to 1.
        calibrator: Calibrator for the scores, fitted on the validation split: platt, temperature or isotonic.
    """

    #: Default of `lr`.
    default_lr: ClassVar[float] = 0.003
    #: Names of the penalised parameters [penalty, feature, ...].
    penalised: ClassVar[tuple[str, ...]] = ("weight",)
    #: Whether the features can be streamed.
    streamed: ClassVar[bool] = True

    def __init__(
        self, lr: float | None = None, l2: list[float] | float | None = None, calibrator: str = "platt"
    ) -> None:
        super().__init__(list(PENALTIES) if l2 is None else l2, calibrator)
        self.save_hyperparameters()
        self.lr = self.default_lr if lr is None else lr
        if not 0 < self.lr < math.inf:
            raise InputError(f"Expected `lr` to be above 0 and finite, but got {lr}. Try 0.01.")
        self._passed: list[tuple[Tensor, int]] = []

    def moments(self, features: Any) -> tuple[Tensor, Tensor]:
        """See `ProbeModule.moments`."""
        if self.streamed and isinstance(features, StreamedFeatures):
            return moments(features)
        return super().moments(features)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of each candidate in nats, [penalty, feature]."""
        return soft_label_loss(self.candidate_scores(self.standardised(batch.features)), batch.target)

    def penalty(self) -> Tensor:
        """Return λ/2 times the sum of squares of the `penalised` parameters, [penalty, feature]."""
        weights: list[Tensor] = [self.get_parameter(name) for name in self.penalised]
        l2 = torch.tensor(self.penalties, device=weights[0].device)
        return l2[:, None] / 2 * sum(weight.square().sum(tuple(range(2, weight.dim()))) for weight in weights)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of all candidates' mean losses and penalty terms."""
        loss = self.loss(batch)
        total = (loss + self.penalty()).sum()
        self._passed.append((total.detach() / loss.numel(), len(batch.row)))
        return total

    def on_train_epoch_end(self) -> None:
        """Log the mean loss of the epoch."""
        losses, rows = zip(*self._passed, strict=True)
        self._passed.clear()
        weight = torch.tensor(rows, dtype=torch.float32, device=losses[0].device)
        self.log("train/loss", (torch.stack(losses) * weight).sum() / weight.sum())

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam with a cosine schedule over all training steps."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _score_validation(self) -> tuple[Tensor, Batch]:
        """See `ProbeModule._score_validation`."""
        batch = self.data.batch("val", prefixes=True).to(self.device)
        if not isinstance(batch.features, StreamedFeatures):
            return super()._score_validation()

        def score(_: Tensor, rows: Tensor) -> Tensor:
            return self.candidate_scores(self.standardised(rows)).transpose(0, 1)

        return batch.features.map(range(batch.features.shape[1]), score).transpose(0, 1), batch


class AtOnce(ProbeModule):
    """Base class for probes that learn from all training rows at the end of a single epoch."""

    automatic_optimization = False

    @abstractmethod
    def learn(self, features: Tensor, target: Tensor) -> None:
        """Fit all candidates to standardised float32 features [row, feature, d_model] and targets [row] in [0, 1]."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return no optimizers."""
        return []

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Do nothing: `learn` uses all rows at the end of the epoch."""

    def on_validation_epoch_end(self) -> None:
        """Do nothing: the probe is fitted later, in `on_train_epoch_end`."""

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        """Fit all candidates on the whole training split and stop training."""
        train = self.data.batch("train", prefixes=True).to(self.device)
        self.learn(self.standardised(train.features), train.target)
        self.trainer.should_stop = True


class Directions(ProbeModule):
    """Base class for linear probes. There is a weight vector and a bias for each penalty and feature."""

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create weights [penalty, feature, d_model] and biases [penalty, feature], all 0."""
        self.weight = nn.Parameter(torch.zeros(len(self.penalties), n_features, d_model))
        self.bias = nn.Parameter(torch.zeros(len(self.penalties), n_features))

    def candidate_scores(self, features: Tensor) -> Tensor:
        """See `ProbeModule.candidate_scores`."""
        return self.input_scores(torch.einsum("rfd,pfd->prf", features, self.weight) + self.bias[:, None])

    def input_scores(self, scores: Tensor) -> Tensor:
        """Convert scores of features [penalty, row, feature] to scores of inputs [penalty, row, input]."""
        return scores

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """See `ProbeModule.candidate_head`. The head computes one score per feature, and averages these scores."""
        features = list(self.inputs[feature])
        weight = self.weight[penalty, features] / len(features)
        head = LinearHead(weight.numel())
        mean, scale = self.mean[features].flatten(), self.scale[features].flatten()
        return head.filled(mean=mean, scale=scale, weight=weight.flatten(), bias=self.bias[penalty, features].mean())


class ClosedForm(Directions, AtOnce):
    """Base class for linear probes whose solver fits all layers and penalties at once.

    The questions of the training and validation splits are divided into five folds. Each fold is scored by probes
    fitted on the other folds. These scores are used to choose a candidate and to calibrate it. Finally, all candidates
    are refitted on all folds.
    """

    cross_fitted = True
    _out_of_fold: tuple[Tensor, Batch] | None = None

    @abstractmethod
    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the weights [penalty, feature, d_model] and biases [penalty, feature] of all candidates.

        Args:
            features: Standardised features, [feature, row, d_model] float32.
            target: Training targets in [0, 1], [row] float32.
        """

    def solve_streamed(self, column: Column, target: Tensor, fold: Tensor) -> Fits:
        """Fit all candidates for one feature, one chunk of rows at a time.

        `target` [row] is float64, and `fold` [row] is int64.

        Raises:
            InputError: If the probe does not implement this method.
        """
        raise unstreamable(type(self).__name__)

    def moments(self, features: Any) -> tuple[Tensor, Tensor]:
        """See `ProbeModule.moments`. For streamed features, `solve_streamed` computes the moments."""
        if isinstance(features, StreamedFeatures):
            return torch.zeros(features.shape[1:]), torch.ones(features.shape[1:])
        return super().moments(features)

    def learn(self, features: Tensor, target: Tensor) -> None:
        """See `AtOnce.learn`. If all targets are equal, all weights are 0."""
        if target.min() == target.max():
            self.weight.zero_()
            self.bias.zero_()
            return
        weight, bias = self.solve(features.transpose(0, 1), target)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def fitted_rows(self) -> Batch:
        """Return the rows of the training and validation splits."""
        return self.data.batch("train", "val", prefixes=True)

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        """Compute out-of-fold scores, fit all candidates to all rows, and stop training."""
        rows = self.fitted_rows().to(self.device)
        fold = self.data.inner_folds(rows.question, N_FOLDS).to(self.device)
        fit = self._fit_streamed if isinstance(rows.features, StreamedFeatures) else self._fit_folds
        self._out_of_fold = fit(rows, fold), rows
        self.trainer.should_stop = True

    def _fit_folds(self, rows: Batch, fold: Tensor) -> Tensor:
        """Fit all candidates to the rows, and return their out-of-fold scores [penalty, row, input]."""
        scores = rows.features.new_empty(len(self.penalties), len(rows.row), len(self.inputs))
        for held in (fold == number for number in range(N_FOLDS)):
            self._fit(rows.take(~held))
            scores[:, held] = self.candidate_scores(self.standardised(rows.features[held]))
        self._fit(rows)
        return scores

    def _fit_streamed(self, rows: Batch, fold: Tensor) -> Tensor:
        """Fit all candidates to streamed features, and return their out-of-fold scores. See `_fit_folds`."""
        features = rows.features
        scores = self.weight.new_empty(len(self.penalties), *features.shape[:2])
        with Progress("fit", features.shape[1], "features") as progress:
            for feature in range(features.shape[1]):
                fits = self.solve_streamed(Column(features, feature), rows.target.double(), fold)
                scores[:, :, feature] = held_out_scores(features, feature, fits, fold).T
                self.mean[feature], self.scale[feature] = fits.mean[-1], fits.scale[-1]
                self.weight[:, feature], self.bias[:, feature] = fits.weight[-1], fits.bias[-1]
                progress(1, 0)
        check_scale(self.scale, self.data.feature_names)
        return self.input_scores(scores)

    def _fit(self, rows: Batch) -> None:
        """Fit the standardiser and all candidates to the given rows."""
        for buffer, value in zip((self.mean, self.scale), standardiser(rows.features), strict=True):
            buffer.copy_(value)
        self.learn(self.standardised(rows.features), rows.target)

    def _score_validation(self) -> tuple[Tensor, Batch]:
        """Return the out-of-fold scores if the probe has been fitted. See `ProbeModule._score_validation`."""
        return self._out_of_fold or super()._score_validation()
