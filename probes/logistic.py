"""Logistic regression with an L2 penalty, by Newton's method for all layers and penalties at once."""

from torch import Tensor

from probes.fitting import solvers
from probes.fitting.training import PENALTIES, ClosedForm


class Logistic(ClosedForm):
    """Logistic regression of the expected accuracy p̂: the exact minimum of the loss of `Linear`.

    Args:
        l2: One or several penalties λ to try; null tries five from 0.01 to 1. λ/2 · ‖w‖² is added to the mean loss on
            standardised features.
        calibrator: Calibrator of the scores, fitted on validation: platt, temperature or isotonic.
    """

    name = "logistic"

    def __init__(self, l2: list[float] | float | None = None, calibrator: str = "platt") -> None:
        super().__init__(list(PENALTIES) if l2 is None else l2, calibrator)
        self.save_hyperparameters()

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `ClosedForm.solve`."""
        return solvers.logistic(features, target, self.penalties)
