"""A torchmetrics metric that accumulates questions over batches and devices."""

from collections.abc import Callable

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class QuestionMetric(Metric):
    """Metric that accumulates questions and applies a function from `probes.metrics.functional` to all of them.

    Args:
        metric: Function of `preds`, `right` and `known`, each [question].
    """

    full_state_update = False
    preds: list[Tensor]
    right: list[Tensor]
    known: list[Tensor]

    def __init__(self, metric: Callable[..., Tensor]) -> None:
        super().__init__()
        self.metric = metric
        for name in ("preds", "right", "known"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, right: Tensor, known: Tensor) -> None:
        """Add questions. See `probes.metrics.functional` for the arguments."""
        self.preds.append(preds.detach())
        self.right.append(right.detach())
        self.known.append(known.detach())

    def compute(self) -> Tensor:
        """Return the value of the metric over all accumulated questions."""
        return self.metric(dim_zero_cat(self.preds), dim_zero_cat(self.right), dim_zero_cat(self.known))
