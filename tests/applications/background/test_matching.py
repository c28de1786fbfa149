"""Tests of the matching of temperatures, against scipy and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, ks_2samp

from applications.background.matching import (
    highest_mismatch_rate,
    invert,
    ks_distances,
    ks_temperatures,
    monotone_curves,
    temperature_limit,
)

T = np.array([0.0, 0.1, 0.2, 0.5])
ONCE = np.full((1, 30), 1 / 30)


def test_ks_distances_equal_those_of_scipy_with_ties_and_resampled_prompts() -> None:
    rng = np.random.default_rng(0)
    tested, reference = rng.integers(0, 9, 30) / 8, rng.integers(0, 9, (4, 30)) / 8
    counts = rng.multinomial(30, ONCE[0], size=5)
    found = ks_distances(tested, reference, np.vstack([ONCE, counts / 30]))
    for row, count in zip(found, [np.ones(30, int), *counts], strict=True):
        expected = [ks_2samp(np.repeat(tested, count), np.repeat(one, count)).statistic for one in reference]
        np.testing.assert_allclose(row, expected, atol=1e-12)


def test_the_authors_temperature_is_the_mean_of_all_best_temperatures() -> None:
    distances = np.array([[0.3, 0.1, 0.1 + 1e-15, 0.2], [0.0, 0.1, 0.1, 0.0]])
    np.testing.assert_allclose(ks_temperatures(distances, T), [0.15, 0.25])


def test_curves_never_decrease_and_average_violations() -> None:
    means = np.array([0.0, 0.3, 0.1, 0.4])
    (curve,) = monotone_curves(np.tile(means[:, None], 30), ONCE)
    np.testing.assert_allclose(curve, [0, 0.2, 0.2, 0.4])


def test_curves_are_inverted_linearly_and_flat_parts_count_at_their_centre() -> None:
    curves = np.array([[0.0, 0.2, 0.2, 0.4]])
    values = np.array([[0.0, 0.1, 0.2, 0.3, 0.4, 0.9]])
    np.testing.assert_allclose(invert(curves, values, T), [[0, 0.075, 0.15, 0.325, 0.5, 0.5]])
    floor = np.array([[0.0, 0.0, 0.1, 0.4]])
    np.testing.assert_allclose(invert(floor, np.array([[0.0, 0.1]]), T), [[0, 0.2]])


def test_inverting_a_curve_at_its_own_points_gives_their_temperatures() -> None:
    reference = np.sort(np.random.default_rng(0).random((4, 30)), axis=0)
    weights = np.random.default_rng(1).dirichlet(np.ones(30), 50)
    curves = monotone_curves(reference, weights)
    np.testing.assert_allclose(invert(curves, weights @ reference.T, T), np.tile(T, (50, 1)))


def test_the_limit_of_the_mismatch_rate_has_at_least_95_percent_confidence() -> None:
    rate = highest_mismatch_rate(np.array([20, 20, 20]))
    assert binom.pmf(0, 3 * 19, rate) == pytest.approx(0.05)
    unequal = rate * np.array([0.0, 1.0, 2.0])  # same mean rate
    assert np.prod((1 - unequal) ** 19) <= 0.05


def test_the_limit_holds_if_the_prompt_that_varies_has_few_outputs() -> None:
    n = np.array([2] + [100] * 29)
    only_first = highest_mismatch_rate(n) * len(n)  # rate of the first prompt if the others never vary
    assert only_first > 1 or (1 - only_first) ** (n[0] - 1) <= 0.05


def test_the_temperature_limit_is_on_the_grid_or_below_its_first_step() -> None:
    curve = np.array([0.0, 0.01, 0.02, 0.3])
    assert temperature_limit(curve, 0.02, T) == 0.2
    assert temperature_limit(curve, 0.001, T) is None
    assert temperature_limit(curve, 1, T) == 0.5
