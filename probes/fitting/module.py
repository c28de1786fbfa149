"""`ProbeModule`, the base class of all probes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from datamodules.features import FeatureDataModule
from datamodules.streamed_features import StreamedFeatures, unstreamable
from datamodules.token_states import TokenStates, unreadable
from extract.errors import InputError, nearest
from probes.fitting.calibration import (
    base_rate_calibrator,
    candidate_losses,
    cross_fitted_losses,
    fit_calibrator,
)
from probes.fitting.choice import Choice
from probes.fitting.standardiser import check_scale, standardiser
from probes.metrics.functional import brier_skill, capability_auroc, debiased_brier, response_brier
from probes.metrics.metrics import QuestionMetric
from probes.registry import method_name
from probes.saved.calibrators import CALIBRATORS, Calibrator
from probes.saved.head import Head, zeros


class ProbeModule(L.LightningModule, ABC):
    """Base class for all probes. Each combination of a penalty and an input is a candidate.

    An input consists of one or more features, such as the hidden states of a layer. The candidate with the lowest
    validation loss is chosen and calibrated on its validation scores. The base rate is the fraction of validation
    answers that are right. If it predicts the validation grades at least as well as the calibrated confidences do, the
    probe always returns the base rate.

    Args:
        l2: L2 penalty, or a list of penalties to try.
        calibrator: Calibrator for the scores: platt, temperature or isotonic.
    """

    #: Name in reports, unless `probes.registry` has another name for this class, target and signal.
    name: str
    #: Option in `probes.registry.OPTIONS` that accepts several values to try.
    option = "l2"
    #: Training objective, if it differs from the target of the datamodule.
    taught: str | None = None
    #: Model-based baselines that training needs in addition to the baselines for the target.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether the validation scores are out-of-fold scores of the training and validation splits.
    cross_fitted = False
    #: Whether the scores are log-odds of the target. If so, the validation loss is their cross-entropy.
    log_odds = True
    _validation: tuple[Tensor, Batch]  # validation scores [penalty, row, input] and their rows

    def __init__(self, l2: list[float] | float, calibrator: str = "platt") -> None:
        super().__init__()
        self.penalties = [l2] if isinstance(l2, (int, float)) else list(l2)
        if not self.penalties or not all(0 <= penalty < math.inf for penalty in self.penalties):
            raise InputError(
                f"Expected `l2` to be one or more finite, non-negative penalties, but got {l2!r}. Try --model.l2=0.1."
            )
        kinds = [kind for kind in CALIBRATORS if self.log_odds or kind != "temperature"]
        if calibrator not in kinds:
            raise InputError(
                f"Expected the `calibrator` of {type(self).__name__} to be one of {', '.join(kinds)}, "
                f"but got {calibrator!r}.{nearest(calibrator, kinds)}"
            )
        self.calibrator = calibrator
        self.choice: Choice | None = None
        #: Indices of the features in each input; by default, one feature each.
        self.inputs: list[tuple[int, ...]] = []
        #: Number of inputs at the beginning of `inputs` that are scored but cannot be chosen.
        self.n_not_chosen = 0
        #: Reason why the fitted probe cannot be trusted, or None.
        self.warning: str | None = None
        #: Validation loss of each candidate in nats, [penalty, input].
        self.val_loss: Tensor | None = None
        #: Cross-fitted validation losses [row] in nats, and the indices [row] of their rows. Prefixes of answers are
        #: left out. After training, `val_confidence` [row] contains the confidences of these rows.
        self.val_losses, self.val_rows = torch.empty(0), torch.empty(0)
        self.val_figures: dict[str, float] = {}

    @abstractmethod
    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create the parameters of all candidates."""

    @abstractmethod
    def candidate_scores(self, features: Any) -> Tensor:
        """Return all candidates' scores [penalty, row, input] for standardised features [row, feature, d_model]."""

    @abstractmethod
    def candidate_head(self, penalty: int, feature: int) -> Head:
        """Return the head of one candidate. The head takes the raw features of an input."""

    @abstractmethod
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Run one training step."""

    def make_inputs(self, names: list[str]) -> list[tuple[int, ...]]:
        """Return the indices of the features in each input. `names` are the names of all features."""
        return [(feature,) for feature in range(len(names))]

    def filled(self, head: Head, penalty: int, feature: int, *parameters: str, **values: Tensor) -> Head:
        """Fill a head with the tensors of one candidate, and return the head.

        The tensors are the feature's mean and scale, the candidate's slices of the tensors named in `parameters`, and
        `values`.
        """
        own = {name: getattr(self, name)[penalty, feature] for name in parameters}
        return head.filled(mean=self.mean[feature], scale=self.scale[feature], **own, **values)

    def fitted_rows(self) -> Batch:
        """Return the rows to which the probe is fitted."""
        return self.data.batch("train", prefixes=True)

    @property
    def data(self) -> FeatureDataModule:
        """The datamodule of the run."""
        return self.trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without declaring it

    def setup(self, stage: str) -> None:
        """Create the standardiser, the candidates and the test metrics.

        Raises:
            InputError: If all features are constant in the training split.
        """
        if not hasattr(self, "mean"):
            features = self.fitted_rows().features
            mean, scale = self.moments(features)
            self._make(*features.shape[1:])
            self.mean.copy_(mean)
            self.scale.copy_(scale)
            check_scale(self.scale, self.data.feature_names)
        self.feature_names = self.data.feature_names
        self.inputs = self.make_inputs(self.feature_names)
        if self.data.pooled is None:
            self.name = method_name(type(self).__name__, self.data.target, self.data.signal) or type(self).name
        metrics: dict[str, Callable[..., Tensor]] = {"auroc": capability_auroc, "brier": response_brier}
        if self.data.scope == "question":
            known = self.data.batch("train", "val")
            reference = float((known.right / known.known).mean())
            metrics |= {"brier": debiased_brier, "brier_skill": partial(brier_skill, reference=reference)}
        self.test_metrics = nn.ModuleDict({name: QuestionMetric(metric) for name, metric in metrics.items()})

    def _make(self, n_features: int, d_model: int) -> None:
        self.mean, self.scale = zeros(n_features, d_model), zeros(n_features, d_model)
        self.make_candidates(n_features, d_model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Create parameters with the same shapes as in the checkpoint."""
        if not hasattr(self, "mean"):
            self._make(*checkpoint["state_dict"]["mean"].shape)

    def moments(self, features: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the scale of the standardiser, each [feature, d_model]."""
        if isinstance(features, TokenStates):
            raise unreadable(type(self).__name__, "hidden_tokens", "hidden")
        if isinstance(features, StreamedFeatures):
            raise unstreamable(type(self).__name__)
        return standardiser(features)

    def selected(self, features: Any, chosen: Sequence[int]) -> Any:
        """Concatenate the features at the indices `chosen` into one [row, width] tensor for the head."""
        return features[:, list(chosen)].flatten(1)

    def of_input(self, function: Callable[[Any], Tensor], features: Any, chosen: Sequence[int]) -> Tensor:
        """Apply a function to the chosen features (see `selected`). Streamed features are read in chunks."""
        if isinstance(features, StreamedFeatures):
            return features.map(chosen, lambda _, rows: function(self.selected(rows, range(len(chosen)))))
        return function(self.selected(features, chosen))

    def standardised(self, features: Any) -> Any:
        """Standardise features [row, feature, d_model] with the moments of the `fitted_rows`."""
        return (features - self.mean).div_(self.scale)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Do nothing, because all rows are scored together at the end of the epoch."""

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics of the current best candidate."""
        if not self.trainer.sanity_checking:
            self._choose(*self._score_validation())
            self.log_dict(self.val_figures)

    def _score_validation(self) -> tuple[Tensor, Batch]:
        """Return the scores [penalty, row, input] of the validation rows, and the rows themselves."""
        batch = self.data.batch("val", prefixes=True).to(self.device)
        return self.candidate_scores(self.standardised(batch.features)), batch

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Choose and calibrate a candidate, and set `val/loss` to its cross-fitted loss."""
        choice = self._choose(*self._score_validation())
        chosen = choice.candidate, self.inputs.index(choice.features)
        scores, right, known, self.val_rows, question = self._validated(*chosen)
        prefixes = tuple(self._calibrator(*chosen, fraction) for fraction in self.data.feature_spec.fractions[:-1])
        self.val_losses = cross_fitted_losses(self.calibrator, scores, right, known, question)
        base_rate = cross_fitted_losses(None, scores, right, known, question)
        if self.val_losses.mean() >= base_rate.mean() - 1e-9:  # allows for rounding
            choice = replace(choice, calibrator=base_rate_calibrator(right, known))
            prefixes = tuple(base_rate_calibrator(right, known) for _ in prefixes)
            self.val_losses = base_rate
            rows = "answers" if self.data.scope == "sample" else "questions"
            self.warning = (
                f"On {len(scores)} {rows}, the probe's cross-fitted confidences predict the grades no better than the "
                f"mean accuracy on these {rows}. Therefore, the probe returns this mean accuracy for all {rows}."
            )
        self.choice = replace(choice, prefixes=prefixes)
        self.val_confidence = choice.calibrator(scores)
        figures = self._figures(self.val_confidence, right, known)
        self.val_figures |= {"val/loss": float(self.val_losses.mean()), **figures}

    def _choose(self, scores: Tensor, batch: Batch) -> Choice:
        """Choose the candidate with the lowest validation loss and calibrate it."""
        self._validation = scores, batch = scores.detach().cpu(), batch.to(torch.device("cpu"))
        self.val_loss = candidate_losses(scores, batch.target, self.log_odds).nan_to_num(torch.inf)
        if not self.val_loss.isfinite().any():
            raise InputError(
                f"Expected the validation loss of {self.name} to be finite, but got NaN or infinity for every "
                "candidate. Use a lower `lr` or a higher `l2`, or check the features."
            )
        eligible = self.val_loss[:, self.n_not_chosen :]
        candidate, place = divmod(int(eligible.argmin()), eligible.shape[1])
        place += self.n_not_chosen
        calibrator, features = self._calibrator(candidate, place), self.inputs[place]
        names = tuple(self.feature_names[feature] for feature in features)
        self.choice = Choice(features, names, candidate, self.penalties[candidate], calibrator)
        chosen, right, known, *_ = self._validated(candidate, place)
        self.val_figures = {"val/loss": float(eligible.min()), **self._figures(calibrator(chosen), right, known)}
        return self.choice

    def _validated(self, candidate: int, place: int, fraction: float = 1.0) -> tuple[Tensor, ...]:
        """Return `scores`, `right`, `known`, `row` and `question` for the validation rows.

        Only the rows whose features cover the given `fraction` of the answer are included. `place` is the index of the
        candidate's input in `inputs`. The scores are float64, because calibrators are fitted in double precision.
        """
        scores, batch = self._validation
        rows = batch.fraction == fraction
        return scores[candidate, rows, place].double(), *(column[rows] for column in batch[2:6])

    def _figures(self, confidence: Tensor, right: Tensor, known: Tensor) -> dict[str, float]:
        """Compute the AUROC and the Brier score.

        If all rows have at least two graded answers, the Brier score is debiased.
        """
        metrics = {"val/auroc": capability_auroc, "val/brier": debiased_brier if known.min() > 1 else response_brier}
        return {name: float(metric(confidence, right, known)) for name, metric in metrics.items()}

    def _calibrator(self, candidate: int, place: int, fraction: float = 1.0) -> Calibrator:
        """Fit the calibrator of one candidate to its validation scores. See `_validated`."""
        return fit_calibrator(self.calibrator, *self._validated(candidate, place, fraction)[:3])

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Update and log the test metrics of the chosen candidate."""
        confidence = self.predict(batch.features)
        for name, metric in self.test_metrics.items():
            metric.update(confidence, batch.right, batch.known)  # type: ignore[operator]
            self.log(f"test/{name}", metric, on_step=False, on_epoch=True, batch_size=len(batch.row))  # type: ignore[arg-type]

    def head(self) -> Head:
        """Create the chosen candidate's head on the CPU. See `candidate_head`.

        Raises:
            RuntimeError: If no candidate has been chosen yet.
        """
        if self.choice is None:
            raise RuntimeError("Expected a fitted probe, but no candidate has been chosen yet. Fit the probe first.")
        return self.candidate_head(self.choice.candidate, self.inputs.index(self.choice.features))

    @torch.no_grad()
    def confidences_by_feature(self, features: Tensor) -> Tensor:
        """Return calibrated confidences [row, feature] for raw features [row, feature, d_model].

        For each feature, the candidate with the lowest validation loss is used.
        """
        assert self.val_loss is not None
        columns = []
        for feature, candidate in enumerate(self.val_loss.argmin(0).tolist()[: features.shape[1]]):
            calibrator, head = self._calibrator(candidate, feature), self.candidate_head(candidate, feature)
            columns.append(self.of_input(nn.Sequential(head, calibrator), features, [feature]))
        return torch.stack(columns, dim=1)

    @torch.no_grad()
    def predict(self, features: Any) -> Tensor:
        """Return the confidences [row] of the chosen candidate for raw features [row, feature, d_model]."""
        assert self.choice is not None
        chosen = nn.Sequential(self.head(), self.choice.calibrator).to(features.device)
        return self.of_input(chosen, features, self.choice.features)
