"""Tests of simultaneous intervals of clusters, against scipy and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from applications.domains.intervals import LEAST_SIZE, cluster_means, minus_the_rest

SIZES = (10, 20, 40, 130)
CLUSTER = np.repeat(np.arange(4), SIZES)
#: [cluster, question] whether a question is in a cluster.
INSIDE = np.arange(4)[:, None] == CLUSTER


def uneven(seed: int = 0) -> np.ndarray:
    """Return values [question] whose standard deviation differs between the clusters."""
    return np.random.default_rng(seed).normal(size=len(CLUSTER)) * np.array([0.1, 2.0, 0.5, 1.0])[CLUSTER]


def pooled_half_width(values: np.ndarray, share: float) -> float:
    squares = sum(((values[INSIDE[c]] - values[INSIDE[c]].mean()) ** 2).sum() for c in range(4))
    freedom = len(values) - 4
    return float(stats.t.ppf(1 - 0.05 / 8, freedom) * math.sqrt(squares / freedom * share))


def test_the_interval_of_a_mean_is_the_wider_of_two_t_intervals() -> None:
    values = uneven()
    found = cluster_means(values, CLUSTER, 4)
    for c, n in enumerate(SIZES):
        own = stats.ttest_1samp(values[INSIDE[c]], 0).confidence_interval(1 - 0.05 / 4)
        half = max((own.high - own.low) / 2, pooled_half_width(values, 1 / n))
        expected = values[INSIDE[c]].mean() + np.array([0, -half, half])
        np.testing.assert_allclose([column[c] for column in found], expected, atol=1e-10)


def test_the_interval_of_a_difference_is_the_wider_of_welchs_and_the_pooled_interval() -> None:
    values = uneven()
    found = minus_the_rest(values, CLUSTER, 4)
    for c, n in enumerate(SIZES):
        inside, rest = values[INSIDE[c]], values[~INSIDE[c]]
        welch = stats.ttest_ind(inside, rest, equal_var=False).confidence_interval(1 - 0.05 / 4)
        half = max((welch.high - welch.low) / 2, pooled_half_width(values, 1 / n + 1 / len(rest)))
        expected = inside.mean() - rest.mean() + np.array([0, -half, half])
        np.testing.assert_allclose([column[c] for column in found], expected, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 1.5), (1.6, 1.6)])
def test_all_intervals_cover_simultaneously_in_95_percent_of_the_simulations(k: int, alpha: float, beta: float) -> None:
    rng, n_simulations, missed = np.random.default_rng(0), 1000, np.zeros(2)
    for _ in range(n_simulations):
        accuracy = rng.binomial(k, rng.beta(alpha, beta, len(CLUSTER))) / k
        truths = alpha / (alpha + beta), 0.0
        estimates = cluster_means(accuracy, CLUSTER, 4), minus_the_rest(accuracy, CLUSTER, 4)
        missed += [
            ((found.low > truth) | (found.high < truth)).any() for found, truth in zip(estimates, truths, strict=True)
        ]
    assert (missed / n_simulations <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / n_simulations)).all()


@pytest.mark.slow
def test_intervals_cover_if_clusters_differ_in_mean_and_variance() -> None:
    rng, missed = np.random.default_rng(1), 0
    means, concentrations = np.array([0.4, 0.9, 0.5, 0.2]), np.array([0.2, 20, 0.3, 20])
    alpha, beta = (means * concentrations)[CLUSTER], ((1 - means) * concentrations)[CLUSTER]
    for _ in range(1000):
        found = cluster_means(rng.binomial(10, rng.beta(alpha, beta)) / 10, CLUSTER, 4)
        missed += ((found.low > means) | (found.high < means)).any()
    assert missed <= 70


def test_small_clusters_have_a_mean_but_no_interval_and_do_not_widen_the_others() -> None:
    rng = np.random.default_rng(0)
    cluster = np.repeat([0, 1, 2, 3], [40, 40, LEAST_SIZE - 1, 1])
    values = rng.normal(size=len(cluster))
    for function in (cluster_means, minus_the_rest):
        found = function(values, cluster, 5)
        assert np.isfinite(found.value).tolist() == [True, True, True, True, False]
        assert np.isfinite(found.low).tolist() == [True, True, False, False, False]
    alone = cluster_means(values[cluster < 2], cluster[cluster < 2], 2)
    np.testing.assert_allclose(cluster_means(values, cluster, 5).low[:2], alone.low)


def test_a_cluster_without_variance_has_an_interval_from_the_other_clusters() -> None:
    values = np.r_[np.zeros(20), np.random.default_rng(0).uniform(size=60)]
    cluster = np.repeat([0, 1], [20, 60])
    assert cluster_means(values, cluster, 2).high[0] > 0.05
    assert -1 < minus_the_rest(values, cluster, 2).low[0] < minus_the_rest(values, cluster, 2).high[0] < 0


def test_values_without_any_variance_have_no_intervals() -> None:
    for function in (cluster_means, minus_the_rest):
        found = function(np.full(40, 0.5), np.repeat([0, 1], 20), 2)
        assert np.isnan(found.low).all()
        assert np.isfinite(found.value).all()


def test_without_values_there_are_no_estimates() -> None:
    for function in (cluster_means, minus_the_rest):
        assert np.isnan(function(np.zeros(0), np.zeros(0, dtype=np.int64), 3)).all()
