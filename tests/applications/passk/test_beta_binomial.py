"""Tests of the beta-binomial models: likelihood and Pass@K in closed form, recovered parameters, and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import comb
from scipy.stats import beta, betabinom

from applications.passk.beta_binomial import (
    LEAST,
    MOST,
    BetaBinomial,
    Quantity,
    coordinate,
    deviance,
    fit,
    moments,
    pass_at,
    profile_interval,
)
from applications.passk.estimators import Counts, Values, distinct, pass_at_k

ZERO_INFLATED = BetaBinomial(0.6, 1.5, 0.25)


def simulate(model: BetaBinomial, n_questions: int, n: Counts | int, seed: int = 0) -> tuple[Counts, Counts, Values]:
    """Draw counts from a model, and return the distinct pairs with their weights."""
    rng = np.random.default_rng(seed)
    p = rng.beta(model.alpha, model.beta, n_questions) * (rng.random(n_questions) >= model.zero_share)
    known = np.broadcast_to(n, n_questions)
    (right, known), place = distinct(rng.binomial(known, p), known)
    return right, known, np.bincount(place).astype(float)


def total(model: BetaBinomial, counts: tuple[Counts, Counts, Values]) -> float:
    return float(counts[2] @ model.log_likelihood(*counts[:2]))


# Closed forms


def test_the_likelihood_is_that_of_scipy_for_the_grades_in_order() -> None:
    c = np.arange(6)
    expected = betabinom.pmf(c, 5, 0.6, 1.5) / comb(5, c)
    found = BetaBinomial(0.6, 1.5).log_likelihood(c, np.full(6, 5))
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)
    inflated = ZERO_INFLATED.log_likelihood(c, np.full(6, 5))
    np.testing.assert_allclose(np.exp(inflated), 0.75 * expected + 0.25 * (c == 0), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 5, 300])
def test_pass_at_k_in_closed_form_is_the_product_and_the_integral(k: int) -> None:
    drawn = np.arange(k)
    product = 1 - np.prod((1.5 + drawn) / (0.6 + 1.5 + drawn))
    np.testing.assert_allclose(BetaBinomial(0.6, 1.5).pass_at_k([k]), product, rtol=1e-12)
    np.testing.assert_allclose(ZERO_INFLATED.pass_at_k([k]), 0.75 * product, rtol=1e-12)
    integral = quad(lambda p: (1 - (1 - p) ** k) * beta.pdf(p, 0.6, 1.5), 0, 1, limit=200)[0]
    np.testing.assert_allclose(product, integral, rtol=1e-6)


@pytest.mark.parametrize("c", [0, 2])
def test_the_posterior_of_a_question_is_that_of_bayes(c: int) -> None:
    n, k = 6, 20

    def weighed(value: float) -> float:
        return (
            0.75
            * quad(lambda p: (1 - (1 - p) ** k) ** value * p**c * (1 - p) ** (n - c) * beta.pdf(p, 0.6, 1.5), 0, 1)[0]
        )

    expected = weighed(1) / (weighed(0) + 0.25 * (c == 0))
    found = ZERO_INFLATED.posterior_pass_at_k(np.array([c]), np.array([n]), [k])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_mean_posterior_is_the_population_value() -> None:
    c, n = np.arange(8), np.full(8, 7)
    share = comb(7, c) * np.exp(ZERO_INFLATED.log_likelihood(c, n))
    np.testing.assert_allclose(
        ZERO_INFLATED.posterior_pass_at_k(c, n, [9, 50]) @ share, ZERO_INFLATED.pass_at_k([9, 50])
    )


# Fits


@pytest.mark.parametrize("n", [10, np.random.default_rng(0).integers(2, 20, 5000)])
def test_a_fit_recovers_the_parameters_of_5000_questions(n: Counts | int) -> None:
    right, known, weights = simulate(BetaBinomial(0.4, 1.2), 5000, n)
    found = fit(right, known, weights)
    assert found.alpha == pytest.approx(0.4, rel=0.07)
    assert found.beta == pytest.approx(1.2, rel=0.07)
    assert found.zero_share == 0
    measured = weights @ pass_at_k(right, known, [2])[0] / weights.sum()
    assert found.pass_at_k([2])[0] == pytest.approx(measured, abs=0.01)


def test_a_fit_recovers_the_share_of_questions_that_are_never_answered_right() -> None:
    counts = simulate(ZERO_INFLATED, 5000, 60)
    found = fit(*counts, zero_inflated=True)
    assert found.zero_share == pytest.approx(0.25, abs=0.03)
    assert found.alpha == pytest.approx(0.6, rel=0.12)
    low, high = profile_interval(*counts, found, coordinate("zero_share"), True)
    assert 0.15 < low < 0.25 < high < 0.3
    assert total(found, counts) > total(fit(*counts), counts) + 5


def test_a_fit_is_the_maximum_of_the_likelihood() -> None:
    counts = simulate(ZERO_INFLATED, 300, 12)
    found = fit(*counts, zero_inflated=True)
    best = total(found, counts)
    for scale in (0.97, 1.03):
        assert total(found._replace(alpha=found.alpha * scale), counts) < best
        assert total(found._replace(beta=found.beta * scale), counts) < best
        assert total(found._replace(zero_share=found.zero_share * scale), counts) < best


def test_weights_are_repeated_questions() -> None:
    right, known, weights = simulate(ZERO_INFLATED, 300, 12)
    repeated = np.repeat(right, weights.astype(int)), np.repeat(known, weights.astype(int))
    np.testing.assert_allclose(fit(*repeated, zero_inflated=True), fit(right, known, weights, True), rtol=1e-3)


@pytest.mark.slow
def test_the_moments_exclude_sampling_noise() -> None:
    right, known, weights = simulate(BetaBinomial(0.4, 1.2), 200_000, 3)
    np.testing.assert_allclose(moments(right, known, weights), (0.4, 1.2), rtol=0.03)


@pytest.mark.parametrize("right", [[0] * 5, [8] * 5, [4] * 5, [0, 8, 0, 8, 8]])
@pytest.mark.parametrize("zero_inflated", [False, True])
def test_any_counts_have_a_finite_fit_within_the_bounds(right: list[int], zero_inflated: bool) -> None:
    found = fit(np.array(right), np.full(5, 8), zero_inflated=zero_inflated)
    for parameter in found[:2]:
        assert LEAST * 0.999 <= parameter <= MOST * 1.001
    assert 0 <= found.zero_share < 1
    assert np.isfinite(found.pass_at_k([1, 1000])).all()


# Intervals


def interval(counts: tuple[Counts, Counts, Values], quantity: Quantity, zero_inflated: bool) -> tuple[float, float]:
    return profile_interval(*counts, fit(*counts, zero_inflated), quantity, zero_inflated)


def test_the_ends_of_an_interval_have_the_critical_deviance() -> None:
    counts = simulate(BetaBinomial(0.4, 1.2), 200, 10)
    best = fit(*counts)
    low, high = np.exp(interval(counts, coordinate("alpha"), False))
    assert low < best.alpha < high
    for end in (low, high):
        assert deviance(*counts, best, {"alpha": end}, False) == pytest.approx(3.841, rel=0.01)
    assert deviance(*counts, best, {"alpha": best.alpha}, False) == pytest.approx(0, abs=1e-6)


def test_a_profile_is_the_maximum_over_the_other_parameters() -> None:
    counts = simulate(BetaBinomial(0.4, 1.2), 100, 10)
    best = fit(*counts)
    others = max(total(BetaBinomial(0.5, value), counts) for value in np.geomspace(0.1, 10, 2000))
    found = deviance(*counts, best, {"alpha": 0.5}, False)
    assert found == pytest.approx(2 * (total(best, counts) - others), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 64, 1024])
def test_the_interval_of_pass_at_k_is_its_range_over_likely_parameters(k: int) -> None:
    counts = simulate(BetaBinomial(0.4, 1.2), 100, 10)
    best = fit(*counts)
    grid = [BetaBinomial(a, b) for a in np.geomspace(0.2, 0.8, 60) for b in np.geomspace(0.5, 3, 60)]
    likely = [one for one in grid if 2 * (total(best, counts) - total(one, counts)) <= 3.841]
    values = [one.pass_at_k([k])[0] for one in likely]
    np.testing.assert_allclose(interval(counts, pass_at(k), False), (min(values), max(values)), atol=0.004)


def test_at_the_boundary_of_the_zero_share_the_intervals_are_one_sided() -> None:
    counts = simulate(BetaBinomial(0.8, 1.2), 400, 10, seed=0)
    best = fit(*counts, zero_inflated=True)
    assert best.zero_share < 1e-6
    low, high = interval(counts, coordinate("zero_share"), True)
    assert low == pytest.approx(0, abs=1e-9)
    assert 0.01 < high < 0.1
    below, above = interval(counts, pass_at(1024), True)
    assert below < best.pass_at_k([1024])[0] - 0.01  # because a share of zeros cannot be excluded
    plain = interval(counts, pass_at(1024), False)
    assert below < plain[0]
    assert above == pytest.approx(plain[1], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("zero_share", [0.0, 0.15])
def test_intervals_contain_the_truth_in_95_of_100_simulations(zero_share: float) -> None:
    truth, contain = BetaBinomial(0.5, 0.6, zero_share), 0
    expected = truth.pass_at_k([64])[0]
    for seed in range(30):
        low, high = interval(simulate(truth, 300, 10, seed), pass_at(64), True)
        contain += low <= expected <= high
    assert contain >= 26  # with a coverage of 95 %, the probability of fewer is 0.3 %
