"""Probe that classifies questions by their number of right answers."""

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batches import Batch
from probes.fitting.training import Descent
from probes.saved.head import CountsHead, Head, expected_log_odds


class Counts(Descent):
    """Multinomial logistic regression that predicts how many of k answers to a question are right.

    The classes are 0 to k, where k is the largest number of graded answers to a training question. If a question has
    fewer graded answers, its label is split between two classes. These are the classes nearest to k p̂, where p̂ is the
    measured accuracy. The score is the log-odds of the expected accuracy Σ j p_j / k, where p_j is the probability of
    class j. The probe follows the code of arXiv 2602.13540.

    Args:
        lr, l2, calibrator: See `Descent`.
    """

    name = "counts"
    default_lr = 0.01
    _n_classes: int | None = None  # set when a checkpoint is loaded
    taught = "It was trained as a classifier that predicts the number of right answers to a question."

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create weights [penalty, feature, class, d_model] and biases [penalty, feature, class], all 0."""
        n_classes = self._n_classes or int(self.data.batch("train").known.max()) + 1
        self.weight = nn.Parameter(torch.zeros(len(self.penalties), n_features, n_classes, d_model))
        self.bias = nn.Parameter(torch.zeros(len(self.penalties), n_features, n_classes))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Create parameters with the checkpoint's shapes and number of classes."""
        self._n_classes = checkpoint["state_dict"]["bias"].shape[2]
        super().on_load_checkpoint(checkpoint)

    def _logits(self, features: Tensor) -> Tensor:
        """Return the logits [penalty, row, feature, class]."""
        return torch.einsum("rfd,pfcd->prfc", features, self.weight) + self.bias[:, None]

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropies [penalty, feature]."""
        log_p = self._logits(self.standardised(batch.features)).log_softmax(-1)
        label = count_labels(batch.target, log_p.shape[-1])
        return -(log_p * label[:, None]).sum(-1).mean(1)

    def candidate_scores(self, features: Tensor) -> Tensor:
        """See `ProbeModule.candidate_scores`."""
        return expected_log_odds(self._logits(features))

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """See `ProbeModule.candidate_head`."""
        head = CountsHead(self.weight.shape[-1], self.weight.shape[2])
        return self.filled(head, penalty, feature, "weight", "bias")


def count_labels(target: Tensor, n_classes: int) -> Tensor:
    """Convert accuracies p̂ [row] to soft labels [row, class].

    Each soft label is a distribution over the classes 0 to n_classes − 1, with mean p̂ · (n_classes − 1).

    >>> count_labels(torch.tensor([0.0, 0.75, 1.0]), 3)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000],
            [0.0000, 0.0000, 1.0000]])
    """
    distance = (target[:, None] * (n_classes - 1) - torch.arange(n_classes, device=target.device)).abs()
    return (1 - distance).clamp_min(0)
