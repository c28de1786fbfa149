"""Means over nearest neighbours, as a pure function: Euclidean, each neighbour weighing one over its distance."""

from collections.abc import Sequence

import torch
from torch import Tensor

#: Share of two float32 vectors' squared lengths below which their squared distance is rounding.
ROUNDING = 1e-12
_CHUNK = 2**22  # distances that are in memory together


def neighbour_means(queries: Tensor, points: Tensor, labels: Tensor, n_neighbors: Sequence[int]) -> Tensor:
    """Mean label of the nearest points, for several numbers of neighbours; in float64.

    scikit-learn's `KNeighborsRegressor(weights="distance")`, and for labels 0 and 1 its classifier's probability of 1:
    where points lie at no distance at all, their mean. Which of several points at the same distance count as the last
    neighbours is arbitrary there; here all of them do, and share the places that are left.

    Args:
        queries: [row, d] finite; a row with NaN gives NaN.
        points: [point, d] finite.
        labels: [point].
        n_neighbors: Numbers of neighbours, from 1 to the number of points.

    Returns:
        [n_neighbors, row] float64.

    >>> points, labels = torch.tensor([[0.0], [3.0], [9.0]]), torch.tensor([0.0, 1.0, 1.0])
    >>> neighbour_means(torch.tensor([[1.0], [3.0]]), points, labels, [1, 2])  # ⅔ of 0 and ⅓ of 1; a point itself
    tensor([[0.0000, 1.0000],
            [0.3333, 1.0000]], dtype=torch.float64)
    """
    points, labels = points.double(), labels.double()
    lengths, found = points.square().sum(1), []
    for chunk in queries.split(max(1, _CHUNK // len(points))):
        squared, slack, which = _nearest(chunk.double(), points, lengths, max(n_neighbors))
        found.append(torch.stack([_mean(squared, slack, labels[which], k) for k in n_neighbors]))
    return torch.cat(found, dim=1)


def _nearest(rows: Tensor, points: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest points to each row, nearest first, with all others that are as far as the last one, and some more.

    Returns:
        Their squared distances, how far these may be off, and which points they are: [row, near] each.
    """
    sizes = rows.square().sum(1, keepdim=True) + lengths
    every, n_near = torch.addmm(sizes, rows, points.T, alpha=-2), k
    while True:  # until what is left is farther away than the last neighbour
        n_near = min(2 * n_near, len(points))
        squared, which = every.topk(n_near, dim=1, largest=False)
        slack = ROUNDING * sizes.gather(1, which)
        if n_near == len(points) or not (squared[:, -1] <= squared[:, k - 1] + 2 * slack[:, -1]).any():
            return torch.where(squared <= slack, 0.0, squared), slack, which  # NaN stays


def _mean(squared: Tensor, slack: Tensor, labels: Tensor, k: int) -> Tensor:
    """Mean label [row] of the k nearest points, given near ones in their order, [row, near] each."""
    edge = squared[:, k - 1 : k]
    nearer, tied = squared < edge - slack, (squared - edge).abs() <= slack
    counted = nearer + tied * ((k - nearer.sum(1, keepdim=True)) / tied.sum(1, keepdim=True))
    here = (squared == 0) & (counted > 0)
    weight = torch.where(here.any(1, keepdim=True), counted * here, counted / squared.sqrt())
    return (weight * labels).sum(1) / weight.sum(1)
