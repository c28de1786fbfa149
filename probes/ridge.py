"""Ridge regression probe, solved in closed form for all layers and penalties at once."""

from torch import Tensor

from probes.fitting import solvers, streamed
from probes.fitting.sums import Column
from probes.fitting.training import ClosedForm


class Ridge(ClosedForm):
    """Ridge regression that predicts the expected accuracy p̂. The calibrator maps the predictions to confidences.

    Args:
        l2: L2 penalty λ, or a list of penalties to try. λ/2 · ‖w‖² is added to half the mean squared error. Here, w is
            the vector of weights of the standardised features. The default is five penalties from 0.1 to 10.
        calibrator: Calibrator for the scores: platt or isotonic.
    """

    name = "ridge"
    log_odds = False

    def __init__(self, l2: list[float] | float | None = None, calibrator: str = "platt") -> None:
        super().__init__([0.1, 0.3, 1.0, 3.0, 10.0] if l2 is None else l2, calibrator)
        self.save_hyperparameters()

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `ClosedForm.solve`."""
        return solvers.ridge(features, target, self.penalties)

    def solve_streamed(self, column: Column, target: Tensor, fold: Tensor) -> streamed.Fits:
        """See `ClosedForm.solve_streamed`."""
        return streamed.fit_statistics(column, target, fold, lambda one: streamed.ridge(one, self.penalties))
