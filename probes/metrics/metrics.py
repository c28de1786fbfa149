"""torchmetrics classes that accumulate questions over batches and devices; they call `probes.metrics.functional`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from probes.metrics import functional


class QuestionMetric(Metric):
    """Base class: collects `preds`, `right` and `known` of every update, each [question]."""

    is_differentiable = False
    full_state_update = False
    metric: Callable[..., Tensor]
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

    def compute(self) -> Tensor:
        """The metric over all updates, a scalar."""
        return self.metric(dim_zero_cat(self.preds), dim_zero_cat(self.right), dim_zero_cat(self.known))


class CapabilityAUROC(QuestionMetric):
    """`functional.capability_auroc` over all updates."""

    higher_is_better = True
    metric = staticmethod(functional.capability_auroc)


class DebiasedBrier(QuestionMetric):
    """`functional.debiased_brier` over all updates."""

    higher_is_better = False
    metric = staticmethod(functional.debiased_brier)


class ResponseBrier(QuestionMetric):
    """`functional.response_brier` over all updates."""

    higher_is_better = False
    metric = staticmethod(functional.response_brier)


class BrierSkill(QuestionMetric):
    """`functional.brier_skill` over all updates.

    Args:
        reference: Constant confidence to compare with, the mean accuracy of the training split.
    """

    higher_is_better = True

    def __init__(self, reference: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metric = partial(functional.brier_skill, reference=reference)
