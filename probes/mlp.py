"""Multilayer perceptron probe with one hidden layer, trained by gradient descent on soft labels."""

import torch
from torch import Tensor, nn

from extract.errors import at_least_one
from probes.fitting.training import Descent
from probes.saved.head import Head, MLPHead


class MLP(Descent):
    """Network with one hidden ReLU layer, trained with cross-entropy to predict the expected accuracy p̂.

    The probe is a smaller version of SAPLMA (Azaria and Mitchell, arXiv 2304.13734). SAPLMA has three hidden layers and
    reads hidden states of statements.

    Args:
        hidden: Number of hidden units.
        lr: Initial learning rate of Adam, annealed to 0 on a cosine schedule. The default is 0.003.
        l2: L2 penalty λ, or a list of penalties to try. λ/2 times the sum of squared weights is added to the mean loss.
            The default is three penalties from 0.01 to 0.1.
        calibrator: Calibrator for the scores, fitted on the validation split: platt, temperature or isotonic.
    """

    name = "mlp"
    penalised = ("weight", "weight_in")

    def __init__(
        self,
        hidden: int = 64,
        lr: float | None = None,
        l2: list[float] | float | None = None,
        calibrator: str = "platt",
    ) -> None:
        super().__init__(lr, [0.01, 0.03, 0.1] if l2 is None else l2, calibrator)
        self.hidden = at_least_one("hidden", hidden, default=64)

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Initialise the first layer randomly and the second with zeros.

        The initial weights are the same for all penalties.
        """
        n = len(self.penalties)
        first = torch.randn(n_features, d_model, self.hidden) / d_model**0.5
        self.weight_in = nn.Parameter(first.repeat(n, 1, 1, 1))
        self.bias_in = nn.Parameter(torch.zeros(n, n_features, self.hidden))
        self.weight = nn.Parameter(torch.zeros(n, n_features, self.hidden))
        self.bias = nn.Parameter(torch.zeros(n, n_features))

    def candidate_scores(self, features: Tensor) -> Tensor:
        """See `ProbeModule.candidate_scores`."""
        hidden = torch.einsum("rfd,pfdh->pfrh", features, self.weight_in) + self.bias_in[:, :, None]
        return torch.einsum("pfrh,pfh->prf", torch.relu(hidden), self.weight) + self.bias[:, None]

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """See `ProbeModule.candidate_head`."""
        head = MLPHead(self.weight_in.shape[2], self.hidden)
        return self.filled(head, penalty, feature, "weight_in", "bias_in", "weight", "bias")
