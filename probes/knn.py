"""Nearest-neighbour probe."""

from typing import Any

import torch
from torch import Tensor, nn

from extract.errors import InputError
from probes.fitting.training import AtOnce
from probes.saved.head import Head, KNNHead, neighbour_means, zeros


class KNN(AtOnce):
    """Probe that averages the measured accuracies of the nearest training rows, weighted by inverse distance.

    Distances are Euclidean and computed from standardised features. The probe follows the classifier of Entropy-Lens
    (arXiv 2502.16570) and has the same default of 25 neighbours. Unlike `KNN`, Entropy-Lens uses raw features and hard
    labels. A saved probe contains the features of the training split.

    Args:
        n_neighbors: Number of neighbours, or a list of numbers to try.
        calibrator: Calibrator for the scores, fitted on the validation split: platt or isotonic.
    """

    name = "knn"
    option = "n_neighbors"
    log_odds = False

    def __init__(self, n_neighbors: list[int] | int = 25, calibrator: str = "platt") -> None:
        numbers = [n_neighbors] if isinstance(n_neighbors, int) else list(n_neighbors)
        if not numbers or min(numbers) < 1:
            raise InputError(
                f"Expected `n_neighbors` to be one or more positive integers, but got {n_neighbors!r}. Try 25."
            )
        super().__init__([float(number) for number in numbers], calibrator)
        self.save_hyperparameters()
        self.numbers = numbers

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create empty buffers for the training features [feature, row, d_model] and labels [row]."""
        self.points, self.labels = zeros(n_features, 0, d_model), zeros(0)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Create buffers for the training rows in the checkpoint."""
        super().on_load_checkpoint(checkpoint)
        self.points, self.labels = (zeros(*checkpoint["state_dict"][name].shape) for name in ("points", "labels"))

    def learn(self, features: Tensor, target: Tensor) -> None:
        """Store the training rows. See `AtOnce.learn`.

        Raises:
            InputError: If there are fewer training rows than neighbours.
        """
        if max(self.numbers) > len(target):
            raise InputError(
                f"Expected `n_neighbors` to be at most {len(target)}, but got {max(self.numbers)}. There are only "
                f"{len(target)} training rows. Use fewer neighbours or more questions."
            )
        self.points, self.labels = nn.Buffer(features.transpose(0, 1).contiguous()), nn.Buffer(target.clone())

    def candidate_scores(self, features: Tensor) -> Tensor:
        """Return scores [penalty, row, feature]. The penalty axis has one entry per value of `n_neighbors`."""
        means = [
            neighbour_means(rows, points, self.labels, self.numbers)
            for rows, points in zip(features.unbind(1), self.points, strict=True)
        ]
        return torch.stack(means, dim=-1)

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """See `ProbeModule.candidate_head`."""
        head = KNNHead(self.points.shape[2], len(self.labels), self.numbers[penalty])
        return self.filled(head, penalty, feature, points=self.points[feature], labels=self.labels)
