"""Fit a broader probe, towards which a probe's confidences are shifted for novel questions (back-off).

The broader probe is a ridge regression with Platt scaling. It is fitted to the probe's training questions and to the
questions of the broader stores. To fit its weight in the back-off, groups of questions in the broader stores are held
out in turn. The weight minimises the error on these groups. The probe itself was trained on none of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from probes.fitting.calibration import fit_platt
from probes.fitting.group_ridge import few_layers, fit_ridge, held_out_scores, whole_groups
from probes.saved.novelty import START, Novelty

#: Quantile of the distances of the broader stores' questions at which the back-off is complete.
FULL = 0.1


def fit_broader(
    narrow: Novelty, features: Tensor, right: Tensor, known: Tensor, groups: Sequence[str | None], confidence: Tensor
) -> Novelty:
    """Fit a broader probe, and return a `Novelty` that contains it.

    Args:
        narrow: `Novelty` that was fitted to the training questions, without a broader probe.
        features: [row, layer, width] float32 features of the training questions and of the broader stores' questions.
        right, known: [row] numbers of right answers and of graded answers.
        groups: Group of each row. The groups of training questions are None.
        confidence: [row] confidences of the probe.
    """
    accuracy, few = right / known, few_layers(features)
    other = torch.tensor([group is not None for group in groups])
    novelty = Novelty(narrow.n_hidden, narrow.rank, features[0].numel())
    novelty.load_state_dict(narrow.state_dict(), strict=False)
    distances = narrow.distance(features[other, 0])
    novelty.full.copy_(torch.maximum(distances.quantile(FULL), narrow.quantiles[START]))

    calibrator = fit_platt(held_out_scores(few, accuracy, torch.arange(len(few)) % 5), right, known)
    broader = calibrator(held_out_scores(few, accuracy, whole_groups([str(group) for group in groups])))
    novelty.weight.copy_(least_squares_weight(confidence[other].double(), broader[other], accuracy[other].double()))
    weight, bias = fit_ridge(few, accuracy)
    every = torch.zeros(features.shape[1:])
    few_layers(every[None])[0].copy_(weight * calibrator.slope)
    novelty.broader_weight.copy_(every.flatten())
    novelty.broader_bias.copy_(bias * calibrator.slope + calibrator.intercept)
    return novelty


def least_squares_weight(confidence: Tensor, broader: Tensor, accuracy: Tensor) -> Tensor:
    """Return the weight w in [0, 1] that minimises the squared error of (1 − w) · `confidence` + w · `broader`.

    The arguments are [row].

    >>> half = torch.tensor([0.5, 0.5])
    >>> least_squares_weight(torch.tensor([0.9, 0.1]), half, torch.tensor([0.6, 0.4]))
    tensor(0.7500)
    """
    gap = confidence - broader
    return ((gap * (confidence - accuracy)).sum() / gap.square().sum().clamp_min(1e-12)).clamp(0, 1)
