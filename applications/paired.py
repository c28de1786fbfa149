"""Paired differences a − b between the accuracies of two systems on the same units (questions or facts)."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import stdtrit

from applications.intervals import Estimate, estimate, mean_of
from extract.errors import InputError
from extract.viewing.summary import interval
from probes.metrics.significance import sign_flip

Values = NDArray[np.float64]
Labels = NDArray[np.int64]
MCNEMAR, SIGN_FLIP, CLUSTERED_SIGN_FLIP = "McNemar's test", "sign-flip test", "sign-flip test of clusters"
#: Smaller standard errors are treated as 0.
_LEAST_ERROR = 1e-12
#: Sum of the normal quantiles for a two-sided test at 5 % with a power of 80 %.
_REACH = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))


def standard_error(values: Values, cluster: Labels | None = None) -> float:
    r"""Compute the cluster-robust standard error of the mean.

    .. math::
        \mathrm{SE}^2 = \frac{G}{G-1} \sum_{g=1}^G \Big(\frac1N \sum_{i \in g} (x_i - \bar x)\Big)^2

    for N values in G clusters (Miller, Adding Error Bars to Evals, arXiv 2411.00640).

    Args:
        values: Values, [unit].
        cluster: Cluster of each unit, [unit], numbered from 0. None puts each value in its own cluster.
    """
    centred = values - values.mean()
    sums = centred if cluster is None else np.bincount(cluster, centred)
    return float(np.sqrt(len(sums) / (len(sums) - 1) * (sums**2).sum()) / len(values))


def effective_clusters(cluster: Labels) -> float:
    """Return the effective number of clusters, (Σ n_g)² / Σ n_g² for clusters of n_g units.

    Clustered intervals are unreliable if this number is small.

    >>> effective_clusters(np.repeat([0, 1, 2], 4)), effective_clusters(np.repeat([0, 1, 2], [6, 1, 1]))
    (3.0, 1.6842105263157894)
    """
    sizes = np.bincount(cluster)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def mean_interval(values: Values, cluster: Labels | None = None) -> Estimate:
    """Compute the mean and its 95 % t interval with max(1, `effective_clusters` − 1) degrees of freedom.

    There is no interval if the standard error is 0. See `standard_error` for the arguments.
    """
    mean, error = float(values.mean()), standard_error(values, cluster)
    if error < _LEAST_ERROR:
        return {"value": mean, "low": None, "high": None}
    n_clusters = len(values) if cluster is None else effective_clusters(cluster)
    reach = float(stdtrit(max(1, n_clusters - 1), 0.975)) * error
    return {"value": mean, "low": mean - reach, "high": mean + reach}


def share_interval(shares: Values) -> Estimate:
    """Compute the mean of the fractions `shares` [unit] and its 95 % interval, as in `python -m extract inspect`.

    The interval is a t interval, clipped to [0, 1]. If all n values are the same, its half-width is 1 − 0.025^(1/n).
    """
    mean, low, high = interval(shares) or (float(shares.mean()), None, None)
    return {"value": mean, "low": low, "high": high}


def mcnemar(differences: Values) -> dict[str, float]:
    """Run McNemar's test (McNemar 1947) on the paired binary outcomes of two systems.

    Args:
        differences: Differences between the outcomes, [unit], each −1, 0 or 1.

    Returns:
        A dict with the exact two-sided p-value `p`, and the mid-p value `p_mid` (Fagerland et al. 2013). The mid-p test
        has more power, but its type I error rate can slightly exceed the significance level.

    >>> {name: round(p, 5) for name, p in mcnemar(np.array([1.0, 1, 1, 1, 1, 0, -1])).items()}
    {'p': 0.21875, 'p_mid': 0.125}
    """
    n_above, n_below = int((differences > 0).sum()), int((differences < 0).sum())
    outcome = min(n_above, n_below), n_above + n_below, 0.5
    tail, observed = float(stats.binom.cdf(*outcome)), float(stats.binom.pmf(*outcome))
    return {"p": min(1.0, 2 * tail), "p_mid": 2 * tail - observed}


def detectable(error: float) -> float:
    r"""Return the smallest difference that a two-sided test at 5 % detects with a power of 80 %.

    It is :math:`(z_{0.975} + z_{0.8}) \, \mathrm{SE}`, where SE (`error`) is the standard error of the mean difference.
    """
    return _REACH * error


def n_needed(error: float, n: int, difference: float) -> int:
    """Return the number of units needed to detect `difference` (see `detectable`).

    `error` is the standard error of the mean difference with `n` units.
    """
    return math.ceil(n * (detectable(error) / difference) ** 2)


def check_difference(difference: float) -> None:
    """Raise an InputError if the `difference` option is not in (0, 1]."""
    if not 0 < difference <= 1:
        raise InputError(f"Expected `difference` to be above 0 and at most 1, but got {difference}. Try 0.02.")


def paired_test(differences: Values, n_flips: int, seed: int, cluster: Labels | None = None) -> dict[str, Any]:
    """Run a two-sided test of the hypothesis that the mean of the differences [unit] is 0.

    McNemar's test is used if all differences are −1, 0 or 1 and there are no clusters. Otherwise, a sign-flip test is
    used (see `sign_flip`). `n_flips` is the number of random sign patterns. With clusters, the signs of all differences
    in a cluster are flipped together.

    Returns:
        A dict with the name of the `test`, its p-value `p`, and `p_mid` from `mcnemar` (None for sign-flip tests).
    """
    if cluster is None and np.isin(differences, (-1, 0, 1)).all():
        return {"test": MCNEMAR, **mcnemar(differences)}
    sums = differences if cluster is None else np.bincount(cluster, differences)
    p = sign_flip(torch.from_numpy(sums), n_flips, seed)
    return {"test": SIGN_FLIP if cluster is None else CLUSTERED_SIGN_FLIP, "p": p, "p_mid": None}


def paired_record(differences: Values, n_resamples: int, seed: int, cluster: Labels | None = None) -> dict[str, Any]:
    """Compute the mean difference between two systems with its intervals and tests.

    Args:
        differences: At least two differences, [unit].
        n_resamples: Number of bootstrap resamples. The sign-flip test uses five times as many sign patterns.
        cluster: Cluster of each unit, [unit], numbered from 0.

    Returns:
        The result of `paired_test` with these additional entries:

        - `n`, `value`: Number of units and mean difference.
        - `low`, `high`: Bounds of the clustered interval, or of the t interval if there are no clusters.
        - `t`, `bootstrap`, `clustered`: The three intervals. `clustered` is None without clusters.
        - `n_above`, `n_below`: Numbers of units with a positive difference and with a negative difference.
        - `error`: Standard error of the mean difference.
        - `detectable`: Smallest detectable difference; None if the standard error is 0.
    """
    n = len(differences)
    clustered = None if cluster is None else mean_interval(differences, cluster)
    t_interval, error = mean_interval(differences), standard_error(differences, cluster)
    return {
        "n": n,
        **(clustered or t_interval),
        "t": t_interval,
        "bootstrap": estimate(mean_of(differences), n, n_resamples, seed),
        "clustered": clustered,
        "n_above": int((differences > 0).sum()),
        "n_below": int((differences < 0).sum()),
        "error": error,
        "detectable": detectable(error) if error > _LEAST_ERROR else None,
        **paired_test(differences, 5 * n_resamples, seed, cluster),
    }
