"""Linear probe, trained by gradient descent on soft labels."""

from probes.fitting.training import Descent, Directions


class Linear(Directions, Descent):
    """Linear probe with a sigmoid, trained with cross-entropy to predict the expected accuracy p̂.

    Args:
        lr: Initial learning rate of Adam, annealed to 0 on a cosine schedule. The default is 0.01.
        l2: L2 penalty λ, or a list of penalties to try. λ/2 · ‖w‖² is added to the mean loss, where w are the weights
            of the standardised features. The default is five penalties from 0.01 to 1.
        calibrator: Calibrator for the scores, fitted on the validation split: platt, temperature or isotonic.
    """

    name = "linear"
    default_lr = 0.01
