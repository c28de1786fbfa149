"""Tests of paired comparisons against scipy, statsmodels and brute force, and by simulation."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import normal_sample_size_one_tail

from applications.paired import (
    CLUSTERED_SIGN_FLIP,
    MCNEMAR,
    SIGN_FLIP,
    check_difference,
    detectable,
    mcnemar,
    mean_interval,
    n_needed,
    paired_record,
    share_interval,
    standard_error,
)
from extract.errors import InputError
from probes.metrics.significance import holm, sign_flip


@pytest.mark.parametrize("n", [2, 7, 150])
def test_the_t_interval_equals_that_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    found, expected = mean_interval(values), stats.ttest_1samp(values, 0).confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx(tuple(expected), rel=1e-8, abs=1e-8)


def test_the_interval_of_shares_is_clipped_and_exists_even_if_all_are_the_same() -> None:
    assert share_interval(np.array([0.0, 0, 0, 0.5]))["low"] == 0
    assert share_interval(np.ones(20)) == {"value": 1, "low": pytest.approx(0.025 ** (1 / 20)), "high": 1}


def test_intervals_cover_the_mean_with_one_very_large_cluster() -> None:
    rng, cluster = np.random.default_rng(0), np.repeat(np.arange(25), [8] * 24 + [200])
    draws = [0.5 * rng.normal(size=25)[cluster] + rng.normal(size=len(cluster)) for _ in range(1000)]
    found = [mean_interval(draw, cluster) for draw in draws]
    assert np.mean([one["low"] <= 0 <= one["high"] for one in found]) > 0.93


def test_the_clustered_standard_error_equals_that_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 12, 90)
    values = rng.normal(size=90) + rng.normal(size=12)[cluster]
    fitted = sm.OLS(values, np.ones(90)).fit(cov_type="cluster", cov_kwds={"groups": cluster})
    expected = float(fitted.bse[0])
    assert standard_error(values, cluster) == pytest.approx(expected, rel=1e-8)
    degrees = 90**2 / sum((cluster == i).sum() ** 2 for i in range(12)) - 1
    found, reach = mean_interval(values, cluster), stats.t.ppf(0.975, degrees) * expected
    assert (found["low"], found["high"]) == pytest.approx((values.mean() - reach, values.mean() + reach), rel=1e-8)


def test_clusters_of_one_question_give_the_t_interval() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert mean_interval(values, np.arange(20)) == pytest.approx(mean_interval(values))


@pytest.mark.parametrize(("above", "below"), [(0, 0), (1, 0), (3, 3), (9, 2), (2, 9), (60, 41)])
def test_mcnemar_equals_statsmodels_and_the_sum_of_probabilities(above: int, below: int) -> None:
    differences = np.concatenate([np.ones(above), -np.ones(below), np.zeros(11)])
    found = mcnemar(differences)
    n, least = above + below, min(above, below)
    if n:  # statsmodels divides by 0
        expected = reference_mcnemar([[5, above], [below, 6]], exact=True).pvalue
        assert found["p"] == pytest.approx(expected, rel=1e-8)
    assert found["p_mid"] == pytest.approx(
        2 * sum(comb(n, i) for i in range(least + 1)) / 2**n - comb(n, least) / 2**n, rel=1e-8
    )


def test_mcnemar_is_the_sign_flip_test_of_one_answer_per_question() -> None:
    differences = np.array([1.0] * 7 + [-1.0] * 2 + [0.0] * 8)
    assert mcnemar(differences)["p"] == pytest.approx(sign_flip(torch.from_numpy(differences)), rel=1e-12)


@pytest.mark.slow
def test_holm_equals_statsmodels() -> None:
    p_values = np.random.default_rng(0).uniform(size=15) ** 3
    expected = multipletests(p_values, method="holm")[1]
    np.testing.assert_allclose(holm(torch.from_numpy(p_values)), expected, rtol=1e-8)


def test_the_sample_size_equals_that_of_statsmodels() -> None:
    expected = normal_sample_size_one_tail(0.02, 0.8, 0.025, std_null=0.4, std_alternative=0.4)
    assert n_needed(0.4 / np.sqrt(150), 150, 0.02) == np.ceil(expected)


def test_a_detectable_difference_is_detected_with_a_power_of_80_percent() -> None:
    rng, n = np.random.default_rng(0), 100
    difference = detectable(0.5 / np.sqrt(n))
    p_values = stats.ttest_1samp(difference + 0.5 * rng.normal(size=(4000, n)), 0, axis=1).pvalue
    assert np.mean(p_values <= 0.05) == pytest.approx(0.8, abs=0.02)


def test_the_sign_of_the_difference_follows_the_order_of_the_systems() -> None:
    differences = np.random.default_rng(0).normal(0.2, 1, 40)
    record, swapped = (paired_record(sign * differences, 200, 0) for sign in (1, -1))
    assert record["value"] == -swapped["value"] > 0
    assert (record["n_above"], record["n_below"]) == (swapped["n_below"], swapped["n_above"])
    assert (record["p"], record["error"]) == pytest.approx((swapped["p"], swapped["error"]))


def test_the_choice_of_test_depends_on_the_differences_and_clusters() -> None:
    differences, cluster = np.array([1.0, -1, 0, 1, 0, 1]), np.array([0, 0, 1, 1, 2, 2])
    records = (
        paired_record(differences, 100, 0),
        paired_record(differences / 2, 100, 0),
        paired_record(differences, 100, 0, cluster),
    )
    assert [record["test"] for record in records] == [MCNEMAR, SIGN_FLIP, CLUSTERED_SIGN_FLIP]
    assert records[0]["p"] == pytest.approx(records[1]["p"])


def test_clusters_are_flipped_as_a_whole() -> None:
    differences = np.ones(12)
    assert paired_record(differences, 100, 0)["p"] == 2 / 2**12
    assert paired_record(differences, 100, 0, np.repeat([0, 1, 2], 4))["p"] == 2 / 2**3


def test_identical_systems_have_no_interval_and_a_p_value_of_1() -> None:
    record = paired_record(np.zeros(30), 100, 0)
    assert (record["value"], record["low"], record["detectable"], record["p"]) == (0, None, None, 1)


@pytest.mark.parametrize("difference", [0, -0.1, 1.5, float("nan")])
def test_an_impossible_difference_is_refused(difference: float) -> None:
    with pytest.raises(InputError, match="`difference` to be above 0 and at most 1"):
        check_difference(difference)


def draw_differences(n: int, k: int, cluster: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Draw the differences [question] of two systems with the same distribution, with k answers per question."""
    logits = rng.normal(size=n) + 0.8 * rng.normal(size=(2, n))
    if cluster is not None:
        logits += 0.8 * rng.normal(size=(2, cluster.max() + 1))[:, cluster]
    right = rng.binomial(k, 1 / (1 + np.exp(-logits)))
    return (right[0] - right[1]) / k


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize(("n", "least", "most"), [(150, 0.93, 0.97), (30, 0.91, 1.0)])
def test_intervals_contain_the_true_difference(n: int, least: float, most: float, clustered: bool) -> None:
    rng, cluster = np.random.default_rng(n), np.arange(n) % (n // 3) if clustered else None
    found = [mean_interval(draw_differences(n, 2, cluster, rng), cluster) for _ in range(1000)]
    assert least <= np.mean([one["low"] <= 0 <= one["high"] for one in found]) <= most


@pytest.mark.slow
def test_mcnemar_rejects_a_true_null_in_at_most_5_percent_of_draws() -> None:
    rng = np.random.default_rng(0)
    found = [mcnemar(draw_differences(60, 1, None, rng)) for _ in range(1000)]
    for name in ("p", "p_mid"):
        rate = np.mean([one[name] <= 0.05 for one in found])
        assert rate <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5
        assert rate > 0.02


@pytest.mark.slow
def test_correlated_questions_need_clusters_to_keep_the_error_rate() -> None:
    rng, cluster = np.random.default_rng(0), np.arange(60) % 15
    rejected = np.zeros(2)
    for draw in range(200):
        differences = rng.normal(size=15)[cluster] + rng.normal(size=60)
        for i, of_clusters in enumerate((None, cluster)):
            rejected[i] += paired_record(differences, 100, draw, of_clusters)["p"] <= 0.05
    assert rejected[0] > 0.15 * 200
    assert rejected[1] <= 0.05 * 200 + 3 * (0.05 * 0.95 * 200) ** 0.5
