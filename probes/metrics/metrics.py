"""The metrics as torchmetrics: they gather questions over batches and devices, and compute with `probes.metrics.functional`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from probes.metrics import functional


class QuestionMetric(Metric):
    """Base: keeps `preds` [question], `right` and `known` [question] of every update."""

    is_differentiable = False
    full_state_update = False
    preds: list[Tensor]
    right: list[Tensor]
    known: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("preds", "right", "known"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, right: Tensor, known: Tensor) -> None:
        """Add questions: scores or confidences, right answers and known answers, each [question]."""
        self.preds.append(preds.detach())
        self.right.append(right.detach())
        self.known.append(known.detach())

    def gathered(self) -> tuple[Tensor, Tensor, Tensor]:
        """Everything seen, in float64."""
        return dim_zero_cat(self.preds).double(), dim_zero_cat(self.right).double(), dim_zero_cat(self.known).double()


class CapabilityAUROC(QuestionMetric):
    """`functional.capability_auroc` over everything seen."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """The AUROC, a scalar."""
        return functional.capability_auroc(*self.gathered())


class DebiasedBrier(QuestionMetric):
    """`functional.debiased_brier` over everything seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The Brier score, a scalar."""
        return functional.debiased_brier(*self.gathered())


class ResponseBrier(QuestionMetric):
    """`functional.response_brier` over everything seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The Brier score against single answers, a scalar."""
        return functional.response_brier(*self.gathered())


class BrierSkill(QuestionMetric):
    """`functional.brier_skill` over everything seen.

    Args:
        reference: The constant confidence to compare with, the training split's mean accuracy.
    """

    higher_is_better = True

    def __init__(self, reference: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reference = reference

    def compute(self) -> Tensor:
        """The skill, a scalar."""
        return functional.brier_skill(*self.gathered(), reference=self.reference)


class ExpectedCalibrationError(QuestionMetric):
    """`functional.expected_calibration_error` over everything seen.

    Args:
        n_bins: Number of bins.
        by: "width" or "mass".
    """

    higher_is_better = False

    def __init__(self, n_bins: int = 10, by: str = "width", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n_bins, self.by = n_bins, by

    def compute(self) -> Tensor:
        """The error, a scalar."""
        return functional.expected_calibration_error(*self.gathered(), n_bins=self.n_bins, by=self.by)


class RMSCalibrationError(QuestionMetric):
    """`functional.rmsce` over everything seen.

    Args:
        n_bins: Number of bins of equal mass.
    """

    higher_is_better = False

    def __init__(self, n_bins: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n_bins = n_bins

    def compute(self) -> Tensor:
        """The error, a scalar."""
        return functional.rmsce(*self.gathered(), n_bins=self.n_bins)


class AURC(QuestionMetric):
    """`functional.aurc` over everything seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The area, a scalar."""
        return functional.aurc(*self.gathered())


class Spearman(QuestionMetric):
    """`functional.spearman` over everything seen."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """The rank correlation, a scalar."""
        return functional.spearman(*self.gathered())


class HardAUROC(QuestionMetric):
    """torchmetrics' own binary AUROC of the label p̂ ≥ ½."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """The AUROC, a scalar; NaN with one class."""
        from torchmetrics.functional.classification import binary_auroc

        preds, right, known = self.gathered()
        label = right / known >= 0.5
        if label.all() or not label.any():
            return torch.tensor(torch.nan)
        ranks = functional.midranks(preds, torch.ones_like(preds)) / len(
            preds
        )  # torchmetrics takes numbers outside [0, 1] for logits
        return binary_auroc(ranks, label.long())
