"""Estimate a system's background temperature by comparing the system with references on several metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

from applications.background.matching import (
    Array,
    highest_mismatch_rate,
    invert,
    ks_distances,
    ks_p_values,
    ks_temperatures,
    monotone_curves,
    temperature_limit,
)
from applications.background.systems import Systems
from applications.background.variability import METRICS, Counted, measure
from extract.errors import InputError
from probes.metrics.intervals import Interval, resample_weights

LEVEL = 0.05


@dataclass(frozen=True)
class Cell:
    """Comparison of the tested system with one reference on one metric.

    If the metric decreases with temperature, all values are computed from 1 − metric. Index 0 on the `resample` axis is
    the original set of prompts. The other indices are bootstrap resamples.

    Attributes:
        means: Means of the reference, [resample, temperature].
        tested: Means of the tested system, [resample].
        temperature: Temperatures at which the curve from `monotone_curves` reaches `tested`, [resample].
        ks_temperature: Temperatures from `ks_temperatures`, [resample].
        ks_distance: Kolmogorov–Smirnov distances, [temperature].
        ks_p: P-values of the Kolmogorov–Smirnov tests, [temperature].
        outside: ``above`` if the tested system varies more than the reference does at its highest temperature,
            ``below`` if it varies less than the reference does at its lowest temperature, and empty otherwise.
    """

    means: Array
    tested: Array
    temperature: Array
    ks_temperature: Array
    ks_distance: Array
    ks_p: Array
    outside: str

    @property
    def fits(self) -> bool:
        """Whether the largest p-value of the Kolmogorov–Smirnov tests is at least `LEVEL`."""
        return bool(self.ks_p.max() >= LEVEL)


@dataclass(frozen=True)
class Estimate:
    """Background temperature of a system.

    Attributes:
        cells: Comparison for each reference and metric.
        tested: Dict from metric to the values [prompt] of the tested system.
        references: Values of the references. `references[name][temperature][metric]` has shape [prompt].
        mismatch_rate: Result of `highest_mismatch_rate`. None if the tested system gave different outputs for the same
            prompt.
        limits: `temperature_limit` of each reference. Empty if `mismatch_rate` is None.
        recovery: Result of `recover` for each reference. Empty if a prompt has fewer than four outputs.
    """

    cells: dict[str, dict[str, Cell]]
    tested: dict[str, Array]
    references: dict[str, dict[float, dict[str, Array]]]
    mismatch_rate: float | None
    limits: dict[str, float | None]
    recovery: dict[str, Array]

    def mean_temperature(self, metrics: Sequence[str] = tuple(METRICS), rule: str = "temperature") -> Array:
        """Average one attribute of `Cell` over references and metrics. Returns an array [resample].

        `rule` is the name of the attribute: `temperature` or `ks_temperature`.
        """
        return np.mean([getattr(grid[name], rule) for grid in self.cells.values() for name in metrics], axis=0)


def estimate_temperature(systems: Systems, n_resamples: int, seed: int) -> Estimate:
    """Compare the tested system with all references, and estimate its background temperature.

    Raises:
        InputError: If a reference's outputs vary no more at its highest temperature than at its lowest.
    """
    counts = resample_weights(len(systems.prompts), n_resamples, seed).double().numpy()
    weights = np.vstack([np.ones(len(systems.prompts)), counts]) / len(systems.prompts)
    tested = measure(systems.tested, systems.limit, systems.n)
    references = {
        name: {t: measure(outputs, systems.limit, systems.n) for t, outputs in grid.items()}
        for name, grid in systems.references.items()
    }
    for name, grid in references.items():
        _check_variation(name, grid)
    rate = None
    if all(len(one.texts) == 1 for one in systems.tested):
        rate = highest_mismatch_rate(np.array([one.n for one in systems.tested]))
    return Estimate(
        cells={name: match_reference(tested, grid, weights) for name, grid in references.items()},
        tested=tested,
        references=references,
        mismatch_rate=rate,
        limits={name: _limit(grid, rate, weights[:1]) for name, grid in references.items()} if rate else {},
        recovery={
            name: recover(grid, systems.limit, systems.n // 2, weights)
            for name, grid in systems.references.items()
            if systems.n >= 4
        },
    )


def match_reference(
    tested: Mapping[str, Array], grid: Mapping[float, Mapping[str, Array]], weights: Array
) -> dict[str, Cell]:
    """Compare the tested system with one reference on each metric.

    Each metric has one value per prompt. `weights` has shape [resample, prompt]. Each row sums to 1, and the first row
    is uniform.
    """
    temperatures, cells = np.array([*grid]), {}
    for name in METRICS:
        values, reference = rising(name, [tested])[0], rising(name, [*grid.values()])
        curves, wanted = monotone_curves(reference, weights), weights @ values
        distances = ks_distances(values, reference, weights)
        cells[name] = Cell(
            means=weights @ reference.T,
            tested=wanted,
            temperature=invert(curves, wanted[:, None], temperatures)[:, 0],
            ks_temperature=ks_temperatures(distances, temperatures),
            ks_distance=distances[0],
            ks_p=ks_p_values(values, reference),
            outside="above" if wanted[0] > curves[0, -1] else "below" if wanted[0] < curves[0, 0] else "",
        )
    return cells


def recover(grid: Mapping[float, Sequence[Counted]], limit: int, n: int, weights: Array) -> Array:
    """Estimate a reference's known temperatures from its own held-out outputs.

    At each temperature, half of the outputs play the role of the tested system. The other half serve as the reference.
    Returns the estimates [resample, temperature], averaged over the metrics.
    """
    temperatures = np.array([*grid])
    known, held_out = (
        [measure([one.every_second(start) for one in outputs], limit, n) for outputs in grid.values()]
        for start in (0, 1)
    )
    found = []
    for name in METRICS:
        curves = monotone_curves(rising(name, known), weights)
        found.append(invert(curves, weights @ rising(name, held_out).T, temperatures))
    return np.mean(found, axis=0)


def rising(name: str, values: Sequence[Mapping[str, Array]]) -> Array:
    """Return the values [temperature, prompt] of a metric, or 1 − values if it decreases with temperature."""
    stacked = np.stack([one[name] for one in values])
    return stacked if METRICS[name].rises else 1 - stacked


def _limit(grid: Mapping[float, Mapping[str, Array]], rate: float, weights: Array) -> float | None:
    """Return the `temperature_limit` of a reference."""
    (curve,) = monotone_curves(rising("memf", [*grid.values()]), weights)
    return temperature_limit(curve, rate, np.array([*grid]))


def _check_variation(name: str, grid: Mapping[float, Mapping[str, Array]]) -> None:
    """Check that a reference's outputs vary more at its highest temperature than at its lowest."""
    (low, first), *_, (high, last) = ((t, float(values["memf"].mean())) for t, values in grid.items())
    if last >= first:
        raise InputError(
            f"Expected the maximum exact match fraction (MEMF) of the reference {name!r} to fall with "
            f"temperature, but it is {first:.3f} at temperature {low:g} and {last:.3f} at temperature {high:g}. Check "
            "that the reference's sampler does not ignore the temperature."
        )


def interval(values: Array, n_prompts: int) -> Interval:
    """Return `values[0]` with a 95 % expanded percentile interval.

    The bounds are the quantiles of the other `values` [resample] at Φ(−x) and Φ(x) with x = √(n/(n − 1)) t. Here, n is
    the number of prompts, and t is the 97.5 % quantile of Student's t distribution with n − 1 degrees of freedom
    (Hesterberg, The American Statistician 69, 2015).
    """
    reach = (n_prompts / (n_prompts - 1)) ** 0.5 * stdtrit(n_prompts - 1, 0.975)
    low, high = np.quantile(values[1:], ndtr([-reach, reach]))
    return {"value": float(values[0]), "low": float(low), "high": float(high)}
