"""Find the temperature at which a reference varies as much as the tested system.

The reference and the tested system share the resampling weights [resample, prompt]. Each row sums to 1.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import ks_2samp

Array = NDArray[np.float64]


def ks_distances(tested: Array, reference: Array, weights: Array) -> Array:
    """Compute the Kolmogorov–Smirnov distances [resample, temperature] between the tested system and the reference.

    Args:
        tested: Values of the metric, [prompt].
        reference: Values of the metric, [temperature, prompt].
        weights: Resampling weights, [resample, prompt].
    """
    signed, columns = np.hstack([weights, -weights]), []
    for values in reference:
        pooled = np.concatenate([tested, values])
        order = np.argsort(pooled)
        last = np.flatnonzero(np.diff(pooled[order], append=np.inf))  # last position of each distinct value
        columns.append(np.abs(signed[:, order].cumsum(axis=1)[:, last]).max(axis=1))
    return np.stack(columns, axis=1)


def ks_temperatures(distances: Array, temperatures: Array) -> Array:
    """Return the temperature [resample] at which `distances` [resample, temperature] is smallest.

    If several temperatures tie, their mean is returned, as in Messina and Scotta.
    """
    smallest = distances <= distances.min(axis=1, keepdims=True) + 1e-9
    return np.asarray(smallest @ temperatures / smallest.sum(axis=1))


def ks_p_values(tested: Array, reference: Array) -> Array:
    """Compute the asymptotic p-values [temperature] of the two-sample Kolmogorov–Smirnov tests.

    The tests assume independent samples, so they are conservative if both systems answer the same prompts.
    """
    return np.array([ks_2samp(tested, values, method="asymp").pvalue for values in reference])


def monotone_curves(reference: Array, weights: Array) -> Array:
    """Fit one monotone curve per resample to the weighted means of `reference` over prompts.

    `reference` has shape [temperature, prompt], and the result has shape [resample, temperature].
    """
    return np.stack([isotonic_regression(means).x for means in weights @ reference.T])


def invert(curves: Array, values: Array, temperatures: Array) -> Array:
    """Return the temperatures [resample, system] at which `curves` reach `values`.

    Each flat part of a curve is treated as one point at its mean temperature. The points are joined by straight lines.
    This is centred isotonic regression (Oron and Flournoy, Stat. Biopharm. Res. 9, 2017). Values outside the range of
    the curve get the temperature of the nearest point. The value 0 gets the lowest temperature.

    Args:
        curves: Non-decreasing curves, [resample, temperature].
        values: Values of the metric, [resample, system].
        temperatures: Temperatures in ascending order, [temperature].
    """
    found = []
    for curve, wanted in zip(curves, values, strict=True):
        levels, level, sizes = np.unique(curve, return_inverse=True, return_counts=True)
        found.append(np.interp(wanted, levels, np.bincount(level, temperatures) / sizes))
    return np.where(values > 0, np.stack(found), temperatures[0])


def highest_mismatch_rate(n_outputs: NDArray[np.int64]) -> float:
    """Return the 95 % upper confidence limit for a system's mean mismatch rate.

    The limit applies only if all sampled outputs for each prompt are identical.

    The mismatch rate of a prompt is 1 minus its maximum exact match fraction (MEMF). For M prompts, the limit is
    1 − 0.05^(1 / (M (N − 1))), where N is the minimum of `n_outputs` [prompt]. The limit also holds if the prompts have
    different mismatch rates.
    """
    return float(1 - 0.05 ** (1 / (len(n_outputs) * (n_outputs.min() - 1))))


def temperature_limit(curve: Array, rate: float, temperatures: Array) -> float | None:
    """Return the highest temperature above 0 with a mismatch rate of at most `rate`.

    Returns None if there is no such temperature. `curve` [temperature] contains the non-decreasing mismatch rates of
    the reference.
    """
    within = temperatures[(curve <= rate) & (temperatures > 0)]
    return float(within[-1]) if len(within) else None
