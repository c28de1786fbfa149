"""Tests of the estimates of Pass@K against brute force over subsets of answers, and of unbiasedness by simulation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch

from applications.passk.estimators import (
    Values,
    oracle_errors,
    pass_at_k,
    pass_of_split,
    predict,
    predictive_band,
    squared_errors,
)
from extract.errors import InputError
from probes.metrics.functional import debiased_brier

#: All counts with n from 1 to 6.
EVERY = np.array([(c, n) for n in range(1, 7) for c in range(n + 1)]).T
N_SIMULATED = 40_000


def brute_force(c: int, n: int, k: int) -> float:
    """Return the share of the subsets of k answers that contain a right one."""
    subsets = list(combinations([1] * c + [0] * (n - c), k))
    return sum(any(subset) for subset in subsets) / len(subsets)


def of_pair(c: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([c]), np.array([n])


def assert_unbiased(draws: Values, expected: float) -> None:
    """Check that the mean of draws is within 3 standard errors of the expected value."""
    assert abs(draws.mean() - expected) < 3 * draws.std() / len(draws) ** 0.5


@pytest.mark.parametrize(("c", "n"), EVERY.T.tolist())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(c: int, n: int) -> None:
    found = pass_at_k(*of_pair(c, n), range(1, n + 1))[:, 0]
    np.testing.assert_allclose(found, [brute_force(c, n, k) for k in range(1, n + 1)], rtol=0, atol=1e-15)
    assert found[-1] == (c > 0)
    np.testing.assert_allclose(found[0], c / n, rtol=1e-15)
    assert c > 0 or not found.any()


def test_questions_with_different_numbers_of_answers_keep_their_order() -> None:
    right, known = np.array([2, 0, 3, 2]), np.array([4, 3, 3, 4])
    expected = [[brute_force(c, n, k) for c, n in zip(right, known, strict=True)] for k in (3, 1)]
    np.testing.assert_allclose(pass_at_k(right, known, [3, 1]), expected)


@pytest.mark.parametrize("k", [0, 4])
def test_more_answers_than_were_graded_are_refused_even_if_none_is_right(k: int) -> None:
    with pytest.raises(InputError, match=rf"`k` to be between 1 and 3, the smallest .* but got {k}\."):
        pass_at_k(np.array([0, 0]), np.array([5, 3]), [1, k])


def test_the_mean_over_questions_is_not_the_pooled_estimate() -> None:
    right, known = np.array([4, 0]), np.array([4, 4])
    assert pass_at_k(right, known, [2]).mean() == 0.5
    pooled = pass_at_k(right.sum(keepdims=True), known.sum(keepdims=True), [2])
    np.testing.assert_allclose(pooled, 1 - 4 * 3 / (8 * 7))


def test_a_split_draws_its_subsets_from_each_source() -> None:
    right, known = np.array([[1, 0], [2, 0], [1, 1]]), np.array([[3, 3], [4, 4], [2, 2]])
    found = pass_of_split(right, known, [2, 1, 0])
    subsets = [(a, b) for a in combinations([1, 0, 0], 2) for b in combinations([1, 1, 0, 0], 1)]
    np.testing.assert_allclose(found, [sum(any(a + b) for a, b in subsets) / len(subsets), 0])


def test_pass_at_k_of_a_split_is_unbiased() -> None:
    rng, p = np.random.default_rng(0), np.array([0.1, 0.4])
    known = np.array([[5], [3]]).repeat(N_SIMULATED, 1)
    found = pass_of_split(rng.binomial(known, p[:, None]), known, [3, 1])
    assert_unbiased(found, 1 - 0.9**3 * 0.6)


# Errors of predictions


def halves(c: int, n: int, score: Callable[[int, int, int], float]) -> float:
    """Return the mean of a score of (right answers in a half of n // 2, right answers in the other half) over divisions."""
    grades = [1] * c + [0] * (n - c)
    divisions = list(combinations(range(n), n // 2))
    seen = [sum(grades[i] for i in chosen) for chosen in divisions]
    return float(np.mean([score(one, c - one, n - n // 2) for one in seen]))


@pytest.mark.parametrize(("c", "n", "k"), [(c, n, k) for n in (4, 5, 6) for c in range(n + 1) for k in (1, 2)])
def test_squared_errors_are_the_mean_over_all_divisions_into_disjoint_halves(c: int, n: int, k: int) -> None:
    prediction = 0.3

    def product(a: int, b: int, other: int) -> float:
        return (prediction - brute_force(a, n // 2, k)) * (prediction - brute_force(b, other, k))

    found = squared_errors(np.array([[prediction]]), *of_pair(c, n), [k])
    np.testing.assert_allclose(found, halves(c, n, product), atol=1e-14)


@pytest.mark.parametrize(("c", "n", "k"), [(c, n, k) for n in (4, 5, 6) for c in range(n + 1) for k in (1, 2)])
def test_errors_of_the_oracle_are_the_mean_over_all_divisions_into_halves(c: int, n: int, k: int) -> None:
    def error(a: int, b: int, other: int) -> float:
        prediction = 1 - (1 - a / (n // 2)) ** k
        actual, again = brute_force(b, other, k), brute_force(a, n // 2, k)
        return prediction**2 - 2 * prediction * actual + actual * again

    np.testing.assert_allclose(oracle_errors(*of_pair(c, n), [k]), halves(c, n, error), atol=1e-14)


def test_squared_errors_of_one_answer_are_the_debiased_brier_score() -> None:
    right, known = EVERY[:, EVERY[1] > 1]
    confidence = np.random.default_rng(0).random(len(right))
    expected = debiased_brier(*map(torch.from_numpy, (confidence, right, known)))
    found = squared_errors(predict(confidence, [1]), right, known, [1])
    np.testing.assert_allclose(found.mean(), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_squared_errors_are_unbiased_although_plain_ones_are_not(k: int) -> None:
    rng, p, confidence = np.random.default_rng(0), 0.2, 0.35
    known = np.full(N_SIMULATED, 6)
    right = rng.binomial(known, p)
    predicted = predict(np.full(N_SIMULATED, confidence), [k])
    expected = ((1 - confidence) ** k - (1 - p) ** k) ** 2
    assert_unbiased(squared_errors(predicted, right, known, [k])[0], expected)
    assert (np.square(predicted - pass_at_k(right, known, [k]))).mean() > 1.5 * expected


@pytest.mark.parametrize("k", [1, 3])
def test_errors_of_the_oracle_are_unbiased(k: int) -> None:
    rng, p = np.random.default_rng(0), 0.2
    known = np.full(N_SIMULATED, 7)
    seen = rng.binomial(3, p, 10 * N_SIMULATED)  # answers to the same question that are not scored
    expected = np.square((1 - seen / 3) ** k - (1 - p) ** k).mean()
    assert_unbiased(oracle_errors(rng.binomial(known, p), known, [k])[0], expected)


def test_errors_need_twice_as_many_answers() -> None:
    with pytest.raises(InputError, match="between 1 and 5"):
        squared_errors(np.zeros((1, 1)), *of_pair(0, 5), [3])


# Dataset curve


def test_the_band_is_that_of_independent_questions() -> None:
    confidence = np.array([0.1, 0.5, 0.9])
    band = predictive_band(confidence, [2])
    solved = 1 - (1 - confidence) ** 2
    reach = 1.96 * (solved * (1 - solved)).sum() ** 0.5 / 3
    np.testing.assert_allclose(band["value"], solved.mean())
    np.testing.assert_allclose(band["low"], solved.mean() - reach)
    np.testing.assert_allclose(band["high"], 1)


@pytest.mark.slow
def test_the_band_contains_95_of_100_runs_if_the_confidences_are_the_true_accuracies() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 1, 400)
    for k in (1, 4):
        band = predictive_band(p, [k])
        runs = (rng.binomial(k, p, (4000, 400)) > 0).mean(1)
        covered = ((band["low"] <= runs) & (runs <= band["high"])).mean()
        assert covered == pytest.approx(0.95, abs=0.015)
