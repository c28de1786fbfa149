"""Tests of the p-values, of the fixed sequences of thresholds, and of the guarantee in small simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binom, norm

from applications.decisions.betting import betting_p_values, hoeffding_p_values
from applications.decisions.learn_then_test import (
    THRESHOLDS,
    Certified,
    certify,
    n_needed,
    n_rejected,
    necessary_abstention,
    oracle_coverage,
)
from applications.decisions.routing import Pair, certify_routing


def all_kept(losses: np.ndarray) -> np.ndarray:
    return np.ones((len(losses), 1), bool)


def p_value(losses: np.ndarray, risk: float, level: float = 0.9) -> float:
    return float(betting_p_values(losses[:, None], all_kept(losses), risk, level)[0])


def questions(n: int, rng: np.random.Generator, k: int = 5, kept: float = 6) -> tuple[np.ndarray, ...]:
    """Draw calibrated confidences, accuracies and losses of k answers."""
    f = rng.beta(0.8, 0.8, n).clip(1e-6, 1 - 1e-6)
    p = rng.beta(kept * f, kept * (1 - f))
    return f, p, 1 - rng.binomial(k, p) / k


# P-values


def test_betting_p_values_equal_a_loop_for_one_threshold() -> None:
    losses, risk, level = np.random.default_rng(0).beta(1, 4, 40), 0.3, 0.9
    kept = np.random.default_rng(1).random((40, 3)) < [0.3, 0.6, 1.0]
    expected = []
    for column in kept.T:
        wealth, highest, past = 1.0, 1.0, [(risk, 0.0)]
        for step, loss in enumerate(losses[column]):
            u = wealth * (1 - level)
            sigma = ((0.25 + sum(square for _, square in past)) / len(past)) ** 0.5
            bet = 0.0 if u >= 1 else norm.pdf(ndtri(u)) / (u * sigma * (column.sum() - step) ** 0.5)
            wealth *= 1 + min(bet, (1 / u - 1) / risk, 1 / (1 - risk)) * (risk - loss)
            mean = sum(value for value, _ in past) / len(past)
            past.append((loss, (loss - mean) ** 2))
            highest = max(highest, wealth)
        expected.append(1 / highest)
    np.testing.assert_allclose(betting_p_values(losses[:, None], kept, risk, level), expected, rtol=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.99])
def test_the_test_keeps_its_level_at_the_boundary(level: float) -> None:
    rng, risk = np.random.default_rng(0), 0.3
    shapes = {
        "right or wrong": lambda size: rng.binomial(1, risk, size),
        "skewed": lambda size: rng.beta(0.3, 0.7, size),
        "constant": lambda size: np.full(size, risk),
        "two answers": lambda size: rng.binomial(2, risk, size) / 2,
        "rarely all wrong": lambda size: np.where(rng.random(size) < risk, 1.0, 0.0),
    }
    for name, draw in shapes.items():
        losses = draw((60, 1500)).astype(float)  # every column is a simulation
        found = betting_p_values(losses, np.ones_like(losses, bool), risk, level) <= (1 - level) * (1 + 1e-9)
        assert found.mean() <= 1 - level + 3 * (level * (1 - level) / 1500) ** 0.5, name


def test_the_test_is_almost_as_powerful_as_the_exact_binomial_test() -> None:
    losses = np.random.default_rng(0).binomial(1, 0.2, (150, 2000)).astype(float)
    ours = betting_p_values(losses, np.ones_like(losses, bool), 0.3, 0.9) <= 0.1 + 1e-9
    exact = binom.cdf(losses.sum(0), 150, 0.3) <= 0.1
    assert ours.mean() >= exact.mean() - 0.05


def test_hoeffdings_p_value_equals_the_formula() -> None:
    losses, kept = np.array([[0.0], [0.5], [1.0], [0.0]]), np.array([[1, 0], [1, 0], [0, 0], [1, 0]], bool)
    mean = (0.0 - 0.4 + 0.5 - 0.4 + 0.0 - 0.4) / 4
    np.testing.assert_allclose(hoeffding_p_values(losses, kept, 0.4), [np.exp(-2 * 4 * mean**2), 1])


def test_the_test_recovers_from_one_early_loss_but_not_from_many() -> None:
    assert p_value(np.append(1.0, np.zeros(60)), 0.2) == pytest.approx(0.1)
    assert p_value(np.ones(60), 0.2) == 1.0
    assert p_value(np.zeros(10), 0.2) > 0.1  # 0.8¹⁰ = 0.107
    assert p_value(np.zeros(11), 0.2) == pytest.approx(0.1)


# Requests


@pytest.mark.parametrize(("risk", "level"), [(0.2, 0.9), (0.3, 0.9), (0.05, 0.95), (0.9, 0.5)])
def test_the_number_of_questions_needed_is_the_smallest_that_certifies_without_a_loss(
    risk: float, level: float
) -> None:
    n = n_needed(risk, level)
    bound = np.log(0.55 * (1 - level)) / np.log(1 - risk)
    assert bound <= n <= 1.1 * bound + 2
    found = [certify(np.full(size, 0.9), np.zeros(size), risk, level).threshold for size in (n - 1, n)]
    assert (found[0] is None, found[1] is None) == (True, False)


def test_an_oracle_reaches_the_necessary_abstention_and_no_rule_beats_it() -> None:
    losses = np.repeat([0.0, 1.0], [60, 40])
    assert necessary_abstention(0.4, 0.25) == pytest.approx(0.2)
    assert oracle_coverage(losses, 0.25) == pytest.approx(0.8)
    assert necessary_abstention(0.1, 0.25) == 0
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = rng.beta(0.5, 0.5, 80)
        assert 1 - oracle_coverage(drawn, 0.2) >= necessary_abstention(drawn.mean(), 0.2) - 1e-9


def test_a_sequence_stops_at_the_first_hypothesis_that_is_not_rejected() -> None:
    assert n_rejected(np.array([True, True, False, True])) == 2
    assert n_rejected(np.array([False, True])) == 0


# Thresholds


@pytest.mark.slow
def test_a_lower_risk_has_a_higher_threshold_and_more_questions_certify_more() -> None:
    rng, coverage = np.random.default_rng(0), dict.fromkeys((80, 320), 0.0)
    for n in (80, 320) * 3:
        f, _, losses = questions(n, rng)
        found = [certify(f, losses, risk) for risk in (0.1, 0.2, 0.3, 0.4)]
        thresholds = [np.inf if one.threshold is None else one.threshold for one in found]
        assert thresholds == sorted(thresholds, reverse=True)
        coverage[n] += found[2].n_kept / n
    assert 0 < coverage[80] < coverage[320]


def test_a_certified_threshold_is_on_the_grid_and_keeps_the_stated_questions() -> None:
    f, _, losses = questions(300, np.random.default_rng(1))
    found = certify(f, losses, 0.3)
    assert found.threshold in THRESHOLDS
    assert found.n_kept == (f >= found.threshold).sum()
    assert losses[f >= found.threshold].mean() < 0.3


def test_everything_is_answered_if_all_answers_are_right_and_nothing_if_all_are_wrong() -> None:
    f = np.random.default_rng(0).random(200)
    assert certify(f, np.zeros(200), 0.1).n_kept == 200
    assert certify(f, np.ones(200), 0.9).threshold is None


def test_tied_confidences_are_kept_together_and_missing_ones_are_never_kept() -> None:
    rng = np.random.default_rng(0)
    f = np.where(rng.random(300) < 0.5, 0.9, 0.2)
    losses = rng.binomial(1, np.where(f > 0.5, 0.05, 0.9)).astype(float)
    assert certify(f, losses, 0.2).n_kept == (f > 0.5).sum()
    f[:30] = np.nan
    assert certify(f, losses, 0.2).n_kept == (f > 0.5).sum()


def test_an_easy_set_is_answered_completely_even_with_an_uninformative_confidence() -> None:
    rng = np.random.default_rng(0)
    found = certify(rng.random(400), 1 - rng.binomial(5, 0.88, 400) / 5, 0.2)
    assert found.n_kept == 400


def test_the_result_depends_only_on_the_seed() -> None:
    f, _, losses = questions(300, np.random.default_rng(2))
    assert certify(f, losses, 0.3) == certify(f, losses, 0.3, seed=0)
    assert isinstance(certify(f, losses, 0.3, seed=1), Certified)


def true_risk(threshold: float | None, f: np.ndarray, p: np.ndarray) -> float:
    return 0.0 if threshold is None else float(1 - p[f >= threshold].mean())


@pytest.mark.slow
def test_the_guarantee_holds_with_questions_but_not_with_answers_as_the_unit() -> None:
    rng, risk, n_sets = np.random.default_rng(0), 0.3, 40
    f_all, p_all, _ = questions(50_000, rng, kept=0.5)  # answers to a question are nearly all right or all wrong
    ours, naive, found = 0, 0, 0
    for seed in range(n_sets):
        f, p, _ = questions(80, rng, kept=0.5)
        right = rng.binomial(1, p[:, None], (80, 5))
        ours += true_risk((one := certify(f, 1 - right.mean(1), risk, seed=seed)).threshold, f_all, p_all) > risk
        found += one.threshold is not None
        each = certify(f.repeat(5), 1.0 - right.ravel(), risk, seed=seed)
        naive += true_risk(each.threshold, f_all, p_all) > risk
    assert ours / n_sets <= 0.1 + 2 * (0.09 / n_sets) ** 0.5
    assert found / n_sets > 0.5
    assert naive / n_sets > 0.2


def test_a_routed_system_keeps_its_risk_if_the_strong_model_has_it() -> None:
    rng = np.random.default_rng(0)
    f, p, losses = questions(400, rng)
    strong = 1 - rng.binomial(5, 0.1 + 0 * p) / 5
    cost = np.ones(400)
    pair = Pair(1 - losses, strong, cost, 3 * cost, cost)
    threshold = certify_routing(f, pair, 0.2, 0.9, 0)
    assert threshold is not None
    assert 0 < threshold < 1
    assert (1 - pair.accuracy(f < threshold)).mean() < 0.2
    assert pair.cost(f < threshold).mean() < 4
    assert certify_routing(f, pair, 0.05, 0.9, 0) is None
