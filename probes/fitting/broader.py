"""Fit a broader probe to an existing probe's training questions and to the questions of other stores.

The broader probe is a ridge regression with Platt scaling.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from probes.fitting.calibration import fit_platt
from probes.fitting.distance import fit_distance
from probes.fitting.group_ridge import few_layers, fit_ridge, held_out_scores, whole_groups
from probes.saved.novelty import Broader

#: L2 penalty of the ridge regressions.
L2 = 3.0
#: Rewordings of held-out questions are excluded from training if at least this many of the existing probe's questions
#: remain.
LEAST_ROWS = 50


def fit_broader(
    features: Tensor,
    n_hidden: int,
    right: Tensor,
    known: Tensor,
    groups: Sequence[str],
    questions: Sequence[str],
    is_own: Tensor,
) -> Broader:
    """Fit a broader probe, its `Distance`, and the weight for mixing the broader probe with the existing one.

    The broader probe and the `Distance` are fitted to all questions. The weight is fitted by cross-validation over the
    question groups that the existing probe was not trained on. Rewordings of the held-out questions are excluded from
    training, unless this would leave fewer than `LEAST_ROWS` of the existing probe's training questions. During
    cross-validation, the existing probe is replaced by a ridge regression on its remaining training questions.

    Args:
        features: Features of all questions, [row, layer, width] float32.
        n_hidden: Width of the hidden states, which are the first coordinates of the features.
        right, known: Number of right answers and number of graded answers, [row].
        groups, questions: Question group and question id of each row. A question and its rewordings have the same id.
        is_own: Mask of the existing probe's training questions, [row] bool.
    """
    accuracy, question = right / known, torch.from_numpy(np.unique(questions, return_inverse=True)[1])
    x, random = few_layers(features).flatten(1)[:, None], whole_groups(questions)
    group = torch.full_like(question, -1)
    group[~is_own] = whole_groups([one for one, own in zip(groups, is_own.tolist(), strict=True) if not own])
    broad, narrow = torch.zeros(2, len(x), dtype=torch.float64)
    for number in group[~is_own].unique():
        held, others = group == number, group != number
        unrelated = others & ~torch.isin(question, question[held])
        train = unrelated if (unrelated & is_own).sum() >= LEAST_ROWS else others
        for scores, rows in ((broad, train), (narrow, train & is_own)):
            weight, bias = fit_ridge(x[rows], accuracy[rows], L2)
            scores[held] = (x[held, 0] @ weight[0] + bias).double()
    every = torch.ones_like(is_own)
    calibrators = [
        fit_platt(held_out_scores(x[rows], accuracy[rows], random[rows], L2), right[rows], known[rows])
        for rows in (every, is_own)
    ]
    broad, narrow = (calibrator(scores) for calibrator, scores in zip(calibrators, (broad, narrow), strict=True))

    distance = fit_distance(features[:, 0, :n_hidden], group, rows=~is_own)
    broader = Broader(features[0].numel(), n_hidden, distance.rank)
    broader.known.load_state_dict(distance.state_dict())
    broader.share.copy_(mixture_weight(narrow[~is_own], broad[~is_own], accuracy[~is_own].double()))
    (weight, bias), coordinates = fit_ridge(x, accuracy, L2), torch.zeros_like(features[0])
    few_layers(coordinates[None])[0].copy_(weight.reshape(-1, features.shape[2]))
    broader.weight.copy_(coordinates.flatten() * calibrators[0].slope)
    broader.bias.copy_(bias * calibrators[0].slope + calibrators[0].intercept)
    return broader


def mixture_weight(narrow: Tensor, broad: Tensor, accuracy: Tensor) -> Tensor:
    """Return the weight w in [0, 1] of the least-squares fit of (1 − w) · `narrow` + w · `broad` to `accuracy`.

    All three arguments have shape [row].

    >>> half = torch.tensor([0.5, 0.5])
    >>> mixture_weight(torch.tensor([0.9, 0.1]), half, torch.tensor([0.6, 0.4]))
    tensor(0.7500)
    """
    gap = narrow - broad
    return ((gap * (narrow - accuracy)).sum() / gap.square().sum().clamp_min(1e-12)).clamp(0, 1)
