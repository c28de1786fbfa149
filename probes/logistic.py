"""Logistic regression probe, fitted by Newton's method for all layers and penalties at once."""

from torch import Tensor

from probes.fitting import solvers, streamed_logistic
from probes.fitting.streamed import Fits
from probes.fitting.sums import Column
from probes.fitting.training import PENALTIES, ClosedForm


class Logistic(ClosedForm):
    """Logistic regression that predicts the expected accuracy p̂.

    It finds the exact minimum of the loss that `Linear` minimises by gradient descent.

    Args:
        l2: L2 penalty λ, or a list of penalties to try. λ/2 · ‖w‖² is added to the mean loss, where w are the weights
            of the standardised features. The default is five penalties from 0.01 to 1.
        calibrator: Calibrator for the scores: platt, temperature or isotonic.
    """

    name = "logistic"

    def __init__(self, l2: list[float] | float | None = None, calibrator: str = "platt") -> None:
        super().__init__(list(PENALTIES) if l2 is None else l2, calibrator)
        self.save_hyperparameters()

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `ClosedForm.solve`."""
        return solvers.logistic(features, target, self.penalties)

    def solve_streamed(self, column: Column, target: Tensor, fold: Tensor) -> Fits:
        """See `ClosedForm.solve_streamed`."""
        return streamed_logistic.logistic(column, target, fold, self.penalties)
