"""Linear probe, trained by gradient descent on soft labels."""

from probes.fitting.training import PENALTIES, Descent, Directions


class Linear(Directions, Descent):
    """Linear probe with a sigmoid, trained to predict the expected accuracy p̂ by minimising the cross-entropy.

    Args:
        lr: Initial learning rate of Adam, annealed to 0 on a cosine schedule. The default is 0.01.
        l2: L2 penalty λ, or a list of penalties to try. λ/2 · ‖w‖² is added to the mean loss, where w are the weights
            of the standardised features. The default is five penalties from 0.01 to 1.
        calibrator: Calibrator for the scores, fitted on the validation split: platt, temperature or isotonic.
    """

    name = "linear"

    def __init__(
        self, lr: float | None = None, l2: list[float] | float | None = None, calibrator: str = "platt"
    ) -> None:
        super().__init__(0.01 if lr is None else lr, list(PENALTIES) if l2 is None else l2, calibrator)
        self.save_hyperparameters()
