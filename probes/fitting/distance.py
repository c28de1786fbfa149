"""Fit a `Distance`, which measures how far questions or answers are from a given set."""

import torch
from torch import Tensor

from probes.fitting.group_ridge import each_fold
from probes.fitting.standardiser import standardiser
from probes.saved.distance import N_QUANTILES, RANK, START, Distance

#: Minimum number of rows per principal direction.
ROWS_PER_DIRECTION = 10
#: Maximum number of rows for computing principal directions, which takes quadratic time.
MOST_ROWS = 2048
#: The remoteness reaches 1 at this quantile of the distances of held-out question groups.
FULL = 0.1


def fit_distance(hidden: Tensor, fold: Tensor, groups: Tensor | None = None, rows: Tensor | None = None) -> Distance:
    """Fit a `Distance` to a set of questions or answers.

    Args:
        hidden: Hidden states of the set, [row, d_model] float32.
        fold: Fold of each row, [row] int64. `Distance.quantiles` summarises each row's distance to the rows in the
            other folds.
        groups: Fold of each row in a second split that keeps question groups together, [row] int64. `Distance.full` is
            computed from each row's distance to the other folds of this split. If None, `full` is the highest quantile.
        rows: Mask of the rows used for the quantiles, [row] bool. If None, all rows are used.
    """
    largest_fold = max(int((one - one.min()).bincount().max()) for one in (fold, groups) if one is not None)
    rank = min(RANK, (len(hidden) - largest_fold) // ROWS_PER_DIRECTION)  # the same for all fits
    distance, held_out = principal(hidden, rank), distances(hidden, rank, fold)
    held_out = held_out if rows is None else held_out[rows]
    distance.quantiles.copy_(held_out.quantile(torch.linspace(0, 1, N_QUANTILES)))
    full = distance.quantiles[-1] if groups is None else distances(hidden, rank, groups).quantile(FULL)
    distance.full.copy_(torch.maximum(full, distance.quantiles[START]))
    return distance


def principal(hidden: Tensor, rank: int) -> Distance:
    """Create a `Distance` from hidden states [row, d_model], with at most `rank` principal directions."""
    mean, scale = (one[0] for one in standardiser(hidden[:, None]))
    rows = hidden[:: -(-len(hidden) // MOST_ROWS)]  # evenly spaced, because rows are ordered by question
    _, singular, directions = torch.linalg.svd((rows - mean) / scale, full_matrices=False)
    variances = singular.square() / len(rows)
    rank = min(rank, max(0, int((variances > 1e-6 * variances[0]).sum()) - 1))
    distance = Distance(hidden.shape[1], rank)
    rest = variances[rank:].sum() / (hidden.shape[1] - rank)
    values = {"mean": mean, "scale": scale, "directions": directions[:rank], "variances": variances[:rank]}
    for name, value in {**values, "rest": rest if rest > 0 else torch.ones(())}.items():
        getattr(distance, name).copy_(value)
    return distance


def distances(hidden: Tensor, rank: int, fold: Tensor) -> Tensor:
    """Compute the distance [row] of each row from the rows in the other folds. See `Distance`."""
    found = hidden.new_zeros(len(hidden))
    for held, others in each_fold(fold):
        found[held] = principal(hidden[others], rank).distance(hidden[held])
    return found
