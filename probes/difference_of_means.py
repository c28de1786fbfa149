"""Difference-of-means probe."""

from torch import Tensor

from probes.fitting import solvers, streamed
from probes.fitting.sums import Column
from probes.fitting.training import ClosedForm


class DifferenceOfMeans(ClosedForm):
    """Linear probe along the difference μ₁ − μ₀ of two weighted means of the standardised features.

    A training row with expected accuracy p̂ has weight p̂ in μ₁ and weight 1 − p̂ in μ₀. The probe follows
    Cencerrado et al. (arXiv 2509.10625), but they use hard labels and raw features.

    Args:
        calibrator: Calibrator for the scores: platt or isotonic.
    """

    name = "difference_of_means"
    log_odds = False

    def __init__(self, calibrator: str = "platt") -> None:
        super().__init__(0.0, calibrator)
        self.save_hyperparameters()

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `ClosedForm.solve`."""
        return solvers.difference_of_means(features, target)

    def solve_streamed(self, column: Column, target: Tensor, fold: Tensor) -> streamed.Fits:
        """See `ClosedForm.solve_streamed`."""
        return streamed.fit_statistics(column, target, fold, streamed.difference_of_means, products=False)
