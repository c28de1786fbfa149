"""Fit the broader probe of a novelty. Confidences of novel questions are backed off towards it.

The broader probe is a ridge regression with Platt scaling. It is fitted to the training questions of a probe and to the
questions of the broader stores. Its weight in a back-off is fitted to groups of questions of the broader stores: a
broader probe that was fitted without a group is mixed with the probe, which has seen none of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from probes.fitting.calibration import fit_platt
from probes.fitting.group_ridge import fit_ridge, held_out_scores, whole_groups
from probes.saved.novelty import START, Novelty

#: Quantile of the distances of the broader stores' questions at which the back-off is complete.
FULL = 0.1
#: Number of folds in which the calibrator is fitted.
N_FOLDS = 5


def fit_broader(
    narrow: Novelty, features: Tensor, right: Tensor, known: Tensor, groups: Sequence[str | None], confidence: Tensor
) -> Novelty:
    """Return a novelty with a broader probe.

    Args:
        narrow: Novelty of the training questions, without a broader probe.
        features: [row, layer, width] float32 features of the training questions and of the broader stores' questions.
        right, known: [row] numbers of right answers and of graded answers.
        groups: Group of each row. The groups of training questions are None.
        confidence: [row] confidences of the probe.
    """
    accuracy = right / known
    other = torch.tensor([group is not None for group in groups])
    novelty = Novelty(narrow.n_hidden, narrow.rank, features[0].numel())
    novelty.load_state_dict(narrow.state_dict(), strict=False)
    distances = narrow.distance(features[other, 0])
    novelty.full.copy_(torch.maximum(distances.quantile(FULL), narrow.quantiles[START]))

    random, whole = torch.arange(len(features)) % N_FOLDS, whole_groups([str(group) for group in groups])
    calibrator = fit_platt(held_out_scores(features, accuracy, random), right, known)
    broader = calibrator(held_out_scores(features, accuracy, whole))
    novelty.weight.copy_(least_squares_weight(confidence[other].double(), broader[other], accuracy[other].double()))
    weight, bias = fit_ridge(features, accuracy)
    novelty.broader_weight.copy_(weight.flatten() * calibrator.slope)
    novelty.broader_bias.copy_(bias * calibrator.slope + calibrator.intercept)
    return novelty


def least_squares_weight(confidence: Tensor, broader: Tensor, accuracy: Tensor) -> Tensor:
    """Return the weight of `broader` in [0, 1] for which the mixture has the lowest squared error. All are [row].

    >>> half = torch.tensor([0.5, 0.5])
    >>> least_squares_weight(torch.tensor([0.9, 0.1]), half, torch.tensor([0.6, 0.4]))
    tensor(0.7500)
    """
    gap = confidence - broader
    return ((gap * (confidence - accuracy)).sum() / gap.square().sum().clamp_min(1e-12)).clamp(0, 1)
