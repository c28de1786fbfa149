"""Simultaneous confidence intervals for the mean of each cluster, and for its difference from the rest."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Values = NDArray[np.float64]
#: Minimum number of questions that a cluster needs for an interval.
LEAST_SIZE = 10
#: Maximum probability that at least one of the intervals misses its true value.
ALPHA = 0.05


class Estimates(NamedTuple):
    """Estimates and the bounds of their simultaneous 95 % intervals, [cluster] float64. Undefined entries are NaN."""

    value: Values
    low: Values
    high: Values


def cluster_means(values: Values, cluster: NDArray[np.int64], n_clusters: int) -> Estimates:
    r"""Compute the mean of each cluster with simultaneous intervals.

    The interval of a cluster c with n questions is the wider of two t intervals. The first uses the variance of the
    cluster and n − 1 degrees of freedom. The second uses the pooled variance within the K clusters:

    .. math::
        s^2 = \frac{\sum_c \sum_{i \in c} (x_i - \bar x_c)^2}{N - K}, \quad
        \bar x_c \pm t_{N-K,\, 1 - \alpha/(2K)} \, s / \sqrt n

    N is the number of questions in the K clusters, and α is 0.05. Dividing α by K is a Bonferroni correction. Clusters
    with fewer than 10 questions have no interval and are not included in K and N. There are no intervals if the
    pooled variance is 0.

    Args:
        values: Finite values, [question].
        cluster: Index of each question's cluster, [question].
    """
    inside = _moments(values, _members(cluster, n_clusters))
    return _estimates(inside.mean, inside, inside.variance / inside.size, inside.size - 1, 1 / inside.size)


def minus_the_rest(values: Values, cluster: NDArray[np.int64], n_clusters: int) -> Estimates:
    """Compute the mean of each cluster minus the mean of all other questions, with simultaneous intervals.

    Each interval is the wider of Welch's interval and an interval based on the pooled variance. There is no interval if
    there are fewer than 10 other questions. See `cluster_means` for the arguments.
    """
    members = _members(cluster, n_clusters)
    inside, rest = _moments(values, members), _moments(values, ~members)
    a, b = inside.variance / inside.size, rest.variance / rest.size
    with np.errstate(invalid="ignore"):
        freedom = (a + b) ** 2 / (a**2 / (inside.size - 1) + b**2 / (rest.size - 1))
    return _estimates(inside.mean - rest.mean, inside, a + b, freedom, 1 / inside.size + 1 / rest.size)


class _Moments(NamedTuple):
    """Mean, variance and size of each set of questions. Variance and size are NaN for fewer than 10 questions."""

    mean: Values
    variance: Values
    size: Values


def _members(cluster: NDArray[np.int64], n_clusters: int) -> NDArray[np.bool_]:
    """Return a mask [cluster, question] of the questions in each cluster."""
    return cluster == np.arange(n_clusters)[:, None]


def _moments(values: Values, members: NDArray[np.bool_]) -> _Moments:
    """Compute the moments of `values` [question] in each set of questions. `members` [set, question] is a mask."""
    count = members.sum(1)
    with np.errstate(invalid="ignore"):
        mean = np.where(members, values, 0).sum(1) / count
    size = np.where(count < LEAST_SIZE, np.nan, count)
    return _Moments(mean, (members * (values - mean[:, None]) ** 2).sum(1) / (size - 1), size)


def _estimates(value: Values, inside: _Moments, square: Values, freedom: Values, share: Values) -> Estimates:
    """Return each value [cluster] with the wider of two intervals.

    `square` and `freedom` are the squared standard error and the degrees of freedom of the first interval. The squared
    standard error of the second interval is `share` times the pooled variance.
    """
    within = inside.size - 1
    n_free, tested = np.nansum(within), np.isfinite(share).sum()
    if not tested:
        return Estimates(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    pooled, level = np.nansum(within * inside.variance) / n_free, 1 - ALPHA / (2 * tested)
    own_half, pooled_half = stdtrit(freedom, level) * np.sqrt(square), stdtrit(n_free, level) * np.sqrt(pooled * share)
    half = np.where(pooled > 0, np.fmax(own_half, pooled_half), np.nan)  # without variance, own_half can be NaN
    return Estimates(value, value - half, value + half)
