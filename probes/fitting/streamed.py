"""Linear probes for features that do not fit in memory. `probes.fitting.solvers` defines the objectives."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.streamed_features import StreamedFeatures
from probes.fitting.solvers import check_fit
from probes.fitting.sums import Column, Statistics, outside_folds


class Fits(NamedTuple):
    """Linear probes fitted on one feature, in float32.

    For each fold, one fit uses the rows outside the fold. The last fit uses all rows.

    Attributes:
        mean, scale: Mean and scale of the feature, [fit, d], used to standardise it.
        weight: Weights of the standardised feature, [fit, penalty, d].
        bias: Biases, [fit, penalty].
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor


def fit_statistics(
    column: Column,
    target: Tensor,
    fold: Tensor,
    solve: Callable[[Statistics], tuple[Tensor, Tensor]],
    products: bool = True,
) -> Fits:
    """Fit linear probes on one feature in a single pass over its rows.

    If all targets of a fit are equal, its weights and bias are 0.

    `solve` maps statistics to weights [penalty, d] and biases [penalty]. The biases apply to centred rows. If
    `products` is false, the `covariance` field of the statistics is undefined.
    """
    fits = []
    for number, statistics in enumerate(outside_folds(column, target, fold, products)):
        weight, bias = solve(statistics)
        solution = weight, bias - weight @ statistics.offset
        varies = targets_vary(target[fold != number])
        fits.append((statistics.mean, statistics.scale, *(torch.where(varies, one, 0.0).float() for one in solution)))
    return Fits(*map(torch.stack, zip(*fits, strict=True)))


def ridge(statistics: Statistics, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Fit ridge regression. See `solvers.ridge`."""
    check_fit(statistics.target[None], penalties)
    matrix, weights, added = statistics.covariance, [], 0.0
    for penalty in penalties:  # changes the diagonal in place
        matrix.diagonal().add_(penalty - added)
        added = penalty
        weights.append(torch.cholesky_solve(statistics.cross[:, None], torch.linalg.cholesky(matrix))[:, 0])
    return torch.stack(weights), statistics.target.expand(len(weights))


def difference_of_means(statistics: Statistics) -> tuple[Tensor, Tensor]:
    """Compute a difference-of-means probe. See `solvers.difference_of_means`."""
    right, wrong = statistics.cross / statistics.target, -statistics.cross / (1 - statistics.target)
    return (right - wrong)[None], -((right - wrong) @ (right + wrong) / 2)[None]


def targets_vary(target: Tensor) -> Tensor:
    """Return whether the targets [row] take more than one value, as a bool tensor."""
    return target.min() < target.max()


def held_out_scores(features: StreamedFeatures, feature: int, fits: Fits, fold: Tensor) -> Tensor:
    """Return held-out scores [row, penalty]. Each fold is scored by probes fitted on the other folds."""

    def score(places: Tensor, rows: Tensor) -> Tensor:
        found = rows.new_empty(len(rows), fits.bias.shape[1])
        for number, (mean, scale, weight, bias) in enumerate(zip(*(one[:-1] for one in fits), strict=True)):
            held = fold[places] == number
            found[held] = ((rows[held, 0] - mean) / scale) @ weight.T + bias
        return found

    return features.map([feature], score)
