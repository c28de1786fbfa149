"""Float64 sums over the rows of a streamed feature, for moments and linear fits.

A reference close to the mean is subtracted from all rows to prevent cancellation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from datamodules.streamed_features import StreamedFeatures
from extract.running.progress import Progress
from probes.fitting.standardiser import rounded

#: Number of rows whose mean is the reference.
REFERENCE_ROWS = 1024


class Column:
    """One streamed feature. The `reference` vector [d] is subtracted from each of its rows."""

    def __init__(self, features: StreamedFeatures, feature: int) -> None:
        self._features, self._feature = features, [feature]
        first = features[torch.arange(min(REFERENCE_ROWS, len(features.rows)))]
        self.reference = first[:, self._feature][:, 0].double().mean(0)

    def chunks(self, function: Callable[[Tensor, Tensor], Any]) -> Iterator[tuple[Tensor, Any]]:
        """Apply a function to chunks of the feature's rows (see `StreamedFeatures.chunks`).

        The function receives the row indices, [row], and the rows minus `reference`, [row, d].
        """

        def of_rows(places: Tensor, rows: Tensor) -> Any:
            return function(places, rows[:, 0].double().sub_(self.reference))

        return self._features.chunks(self._feature, of_rows)


class Statistics(NamedTuple):
    """Statistics for the linear regression of a target y on a standardised feature z.

    Attributes:
        mean, scale: Standardiser, [d] float32 each.
        offset: Mean of z, [d] float64. It is not exactly 0, because the standardiser is rounded to float32.
        target: Mean of y.
        cross: Covariance of y and z, with divisor n, [d] float64.
        covariance: Covariance of z, with divisor n, [d, d] float64. It is defined only if `Sums.xx` is a
            matrix.
    """

    mean: Tensor
    scale: Tensor
    offset: Tensor
    target: Tensor
    cross: Tensor
    covariance: Tensor


@dataclass
class Sums:
    """Sums over rows with targets y and features x. A reference vector has been subtracted from each x.

    Attributes:
        n: Number of rows.
        y: Σ y.
        x, xy: Σ x and Σ y x, [d] each.
        xx: Σ x xᵀ [d, d], or only its diagonal [d].
        low, high: Minimum and maximum of x, [d] each.
    """

    n: int
    y: Tensor
    x: Tensor
    xy: Tensor
    xx: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def zeros(cls, reference: Tensor, products: bool) -> Self:
        """Return empty sums, to which rows can be added. If `products` is false, `xx` is only the diagonal."""
        zero = torch.zeros_like(reference)
        xx = torch.outer(zero, zero) if products else zero.clone()
        return cls(0, zero.sum(), zero, zero.clone(), xx, zero + torch.inf, zero - torch.inf)

    def add_rows(self, x: Tensor, y: Tensor) -> None:
        """Add rows x [row, d] with targets y [row]."""
        if not len(x):
            return
        self.n += len(x)
        self.y += y.sum()
        self.x += x.sum(0)
        self.xy += y @ x
        if self.xx.dim() == 2:
            self.xx.addmm_(x.T, x)
        else:
            self.xx += x.square().sum(0)
        low, high = x.aminmax(dim=0)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)

    def add(self, other: Self) -> None:
        """Merge the sums in `other` into these sums, in place."""
        self.n += other.n
        for name in ("y", "x", "xy", "xx"):
            getattr(self, name).add_(getattr(other, name))
        self.low, self.high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)

    def standardiser(self, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the scale, each [d]. See `probes.fitting.standardiser`."""
        squares = self.xx.diagonal() if self.xx.dim() == 2 else self.xx
        variance = (squares - self.x.square() / self.n).clamp_min(0) / (self.n - 1)
        largest = torch.maximum((reference + self.low).abs(), (reference + self.high).abs())
        return rounded(reference + self.x / self.n, variance.sqrt(), largest)

    def statistics(self, reference: Tensor) -> Statistics:
        """Compute the statistics. The sums are overwritten."""
        mean, scale = self.standardiser(reference)
        inverse, centre, target = 1 / scale.double(), self.x / self.n, self.y / self.n
        cross = (self.xy / self.n - target * centre) * inverse
        covariance = self.xx.div_(self.n)
        if covariance.dim() == 2:
            covariance.addr_(centre, centre, alpha=-1).mul_(inverse).mul_(inverse[:, None])
        return Statistics(mean, scale, (reference + centre - mean) * inverse, target, cross, covariance)


def fold_sums(column: Column, target: Tensor, fold: Tensor, products: bool) -> list[Sums]:
    """Compute the `Sums` of each fold's rows.

    `target` [row] is float64, and `fold` [row] is int64. If `products` is false, `Sums.xx` is only the diagonal.
    """
    sums = [Sums.zeros(column.reference, products) for _ in range(int(fold.max()) + 1)]
    for places, x in column.chunks(lambda _, x: x):
        for number, of_fold in enumerate(sums):
            held = fold[places] == number
            of_fold.add_rows(x[held], target[places][held])
    return sums


def outside_folds(column: Column, target: Tensor, fold: Tensor, products: bool) -> Iterator[Statistics]:
    """Yield the statistics of the rows outside each fold, then those of all rows. See `fold_sums`."""
    sums = fold_sums(column, target, fold, products)
    for number in range(len(sums) + 1):
        total = Sums.zeros(column.reference, products)
        for other in (one for i, one in enumerate(sums) if i != number):
            total.add(other)
        yield total.statistics(column.reference)


def moments(features: StreamedFeatures) -> tuple[Tensor, Tensor]:
    """Compute the mean and scale [feature, d_model] of streamed features. See `probes.fitting.standardiser`."""
    found, nothing = [], torch.zeros(len(features.rows), dtype=torch.int64, device=features.device)
    with Progress("standardise", features.shape[1], "features") as progress:
        for feature in range(features.shape[1]):
            column = Column(features, feature)
            (sums,) = fold_sums(column, nothing.double(), nothing, products=False)
            found.append(sums.standardiser(column.reference))
            progress(1, 0)
    mean, scale = map(torch.stack, zip(*found, strict=True))
    return mean, scale
