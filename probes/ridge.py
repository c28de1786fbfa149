"""Ridge regression of the expected accuracy, in closed form for all layers and penalties at once."""

from torch import Tensor

from probes.fitting import solvers
from probes.fitting.training import ClosedForm


class Ridge(ClosedForm):
    """Least squares on p̂ with an L2 penalty. The prediction is a score; the calibrator maps it to a confidence.

    Args:
        l2: One or several penalties λ to try; null tries five from 0.1 to 10. λ/2 · ‖w‖² is added to half the mean
            squared error on standardised features.
        calibrator: Calibrator of the scores, fitted on validation: platt or isotonic.
    """

    name = "ridge"
    log_odds = False

    def __init__(self, l2: list[float] | float | None = None, calibrator: str = "platt") -> None:
        super().__init__([0.1, 0.3, 1.0, 3.0, 10.0] if l2 is None else l2, calibrator)
        self.save_hyperparameters()

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `ClosedForm.solve`."""
        return solvers.ridge(features, target, self.penalties)
