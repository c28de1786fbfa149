"""Ridge regressions on a few layers, and their scores for held-out groups of questions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.fitting import solvers
from probes.fitting.standardiser import standardiser

#: L2 penalty of the ridge regressions, and the maximum number of layers whose scores are averaged.
RIDGE, MOST_LAYERS = 1.0, 4
MOST_FOLDS = 8


def whole_groups(groups: Sequence[Any]) -> Tensor:
    """Assign whole groups to at most `MOST_FOLDS` folds of similar size. Returns the fold [row] of each row."""
    _, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    fold, filled = np.zeros(len(sizes), dtype=np.int64), np.zeros(min(MOST_FOLDS, len(sizes)), dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):  # the largest group goes into the emptiest fold
        fold[group] = filled.argmin()
        filled[fold[group]] += sizes[group]
    return torch.from_numpy(fold[member])


def each_fold(fold: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield two masks [row] for each fold: its rows, and all other rows."""
    for number in fold.unique():
        yield fold == number, fold != number


def few_layers(features: Tensor) -> Tensor:
    """Select at most `MOST_LAYERS` evenly spaced layers of features [row, layer, width]."""
    return features[:, :: -(-features.shape[1] // MOST_LAYERS)]


def fit_ridge(features: Tensor, target: Tensor, l2: float = RIDGE) -> tuple[Tensor, Tensor]:
    """Fit a ridge regression to each layer of features [row, layer, width], and average the regressions.

    Returns weights [layer, width] and a scalar bias for raw features.
    """
    mean, scale = standardiser(features)
    weight, bias = (one[0] for one in solvers.ridge((features - mean).div_(scale).transpose(0, 1), target, [l2]))
    weight = weight / scale / len(weight)
    return weight, bias.mean() - (weight * mean).sum()


def held_out_scores(features: Tensor, target: Tensor, fold: Tensor, l2: float = RIDGE) -> Tensor:
    """Return held-out scores [row]. Each fold is scored by ridge regressions fitted to the other folds."""
    scores = torch.zeros(len(features), dtype=torch.float64)
    for held, others in each_fold(fold):
        weight, bias = fit_ridge(features[others], target[others], l2)
        scores[held] = (torch.einsum("rld,ld->r", features[held], weight) + bias).double()
    return scores
