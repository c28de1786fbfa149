"""Linear probe, trained by gradient descent on soft labels."""

from probes.fitting.training import PENALTIES, Descent, Directions


class Linear(Directions, Descent):
    """Linear map and sigmoid with cross-entropy on the expected accuracy p̂. Trains all layers and penalties together.

    Args:
        lr: Initial learning rate of Adam, null for 0.01; annealed to 0 along a cosine.
        l2: One or several penalties λ to try; null tries five from 0.01 to 1. λ/2 · ‖w‖² is added to the mean loss on
            standardised features.
        calibrator: Calibrator of the scores, fitted on validation: platt, temperature or isotonic.
    """

    name = "linear"

    def __init__(
        self, lr: float | None = None, l2: list[float] | float | None = None, calibrator: str = "platt"
    ) -> None:
        super().__init__(0.01 if lr is None else lr, list(PENALTIES) if l2 is None else l2, calibrator)
        self.save_hyperparameters()
