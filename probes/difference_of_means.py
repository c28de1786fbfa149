"""Difference-of-means probe: the direction between the class means. It has no hyperparameter."""

from torch import Tensor

from probes.fitting import solvers
from probes.fitting.training import ClosedForm


class DifferenceOfMeans(ClosedForm):
    """Direction μ₁ − μ₀ on standardised features, with p̂ and 1 − p̂ as the weights of the two means.

    After the question-only probe of Cencerrado et al. (arXiv 2509.10625), which has hard labels and raw features.

    Args:
        calibrator: Calibrator of the scores, fitted on validation: platt or isotonic.
    """

    name = "difference_of_means"
    log_odds = False

    def __init__(self, calibrator: str = "platt") -> None:
        super().__init__(0.0, calibrator)
        self.save_hyperparameters()

    def solve(self, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `ClosedForm.solve`."""
        return solvers.difference_of_means(features, target)
