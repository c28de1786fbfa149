"""torchmetrics classes that accumulate questions over batches and devices; they call `probes.metrics.functional`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from probes.metrics import functional


class QuestionMetric(Metric):
    """Base class: collects `preds`, `right` and `known` of every update, each [question]."""

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
        """Add questions: scores or confidences, right answers and graded answers, each [question]."""
        self.preds.append(preds.detach())
        self.right.append(right.detach())
        self.known.append(known.detach())

    def gathered(self) -> tuple[Tensor, Tensor, Tensor]:
        """`preds`, `right` and `known` of all updates, [question] float64 each."""
        return dim_zero_cat(self.preds).double(), dim_zero_cat(self.right).double(), dim_zero_cat(self.known).double()


class CapabilityAUROC(QuestionMetric):
    """`functional.capability_auroc` over all updates."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """The AUROC, a scalar."""
        return functional.capability_auroc(*self.gathered())


class DebiasedBrier(QuestionMetric):
    """`functional.debiased_brier` over all updates."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The Brier score, a scalar."""
        return functional.debiased_brier(*self.gathered())


class ResponseBrier(QuestionMetric):
    """`functional.response_brier` over all updates."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The Brier score against single answers, a scalar."""
        return functional.response_brier(*self.gathered())


class BrierSkill(QuestionMetric):
    """`functional.brier_skill` over all updates.

    Args:
        reference: Constant confidence to compare with, the mean accuracy of the training split.
    """

    higher_is_better = True

    def __init__(self, reference: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reference = reference

    def compute(self) -> Tensor:
        """The skill, a scalar."""
        return functional.brier_skill(*self.gathered(), reference=self.reference)
