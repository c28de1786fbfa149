"""Tests of DeLong's and Obuchowski's variances against double loops, and of the intervals by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from applications.models.auroc import (
    Auroc,
    auroc_difference,
    auroc_estimate,
    auroc_of,
    auroc_of_counts,
    covariance,
)


def draw(n: int, k: int, rng: np.random.Generator, n_scores: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Draw tied scores [score, question] and the right answers [question] of one system."""
    easiness = rng.normal(size=n)
    scores = np.round(easiness + rng.normal(size=(n_scores, n)), 1)
    return scores, rng.binomial(k, 1 / (1 + np.exp(-easiness)))


def psi(positive: float, negative: float) -> float:
    return float(positive > negative) + 0.5 * float(positive == negative)


def delong(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the covariance matrix of DeLong et al. (1988) for one label per question."""
    positive, negative = np.flatnonzero(right == 1), np.flatnonzero(right == 0)
    above = np.array([[[psi(s[i], s[j]) for j in negative] for i in positive] for s in scores])
    return np.cov(above.mean(2)) / len(positive) + np.cov(above.mean(1)) / len(negative)


def obuchowski(scores: np.ndarray, right: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the covariance matrix of Obuchowski (1997) for counts of right and wrong answers per question."""
    wrong, n = known - right, len(right)
    total = right.sum(), wrong.sum()
    d10, d01 = np.zeros((2, len(scores), n))
    for row, s in enumerate(scores):
        v10 = [sum(wrong[j] * psi(s[i], s[j]) for j in range(n)) / total[1] for i in range(n)]
        v01 = [sum(right[j] * psi(s[j], s[i]) for j in range(n)) / total[0] for i in range(n)]
        auroc = np.dot(right, v10) / total[0]
        d10[row], d01[row] = right * (v10 - auroc), wrong * (v01 - auroc)
    n_right, n_wrong = (right > 0).sum(), (wrong > 0).sum()
    s10 = n_right / ((n_right - 1) * total[0]) * d10 @ d10.T
    s01 = n_wrong / ((n_wrong - 1) * total[1]) * d01 @ d01.T
    s11 = n / (n - 1) * d10 @ d01.T
    return s10 / total[0] + s01 / total[1] + (s11 + s11.T) / (total[0] * total[1])


def matrix(found: list[Auroc | None]) -> list[list[float]]:
    assert found[0] is not None
    assert found[1] is not None
    return [[covariance(a, b) for b in found if b] for a in found if a]


def test_one_answer_per_question_gives_delongs_covariance() -> None:
    scores, right = draw(40, 1, np.random.default_rng(0))
    found = [auroc_of_counts(score, right, np.ones(40, int)) for score in scores]
    np.testing.assert_allclose(matrix(found), delong(scores, right), rtol=1e-8)


def test_several_answers_give_obuchowskis_covariance() -> None:
    rng = np.random.default_rng(1)
    scores, right = draw(30, 3, rng)
    known = right + rng.integers(0, 3, 30)  # some questions have no answer
    found = [auroc_of_counts(score, right, known) for score in scores]
    np.testing.assert_allclose(matrix(found), obuchowski(scores, right, known), rtol=1e-8)


def test_the_value_is_the_auroc_over_answers() -> None:
    scores, right = draw(30, 5, np.random.default_rng(2))
    found = auroc_of_counts(scores[0], right, np.full(30, 5))
    labels = np.concatenate([np.repeat([1, 0], [c, 5 - c]) for c in right])
    assert found is not None
    assert found.value == pytest.approx(roc_auc_score(labels, np.repeat(scores[0], 5)), rel=1e-12)


def test_scores_of_individual_answers_are_possible() -> None:
    rng = np.random.default_rng(3)
    right, question = rng.random(80) < 0.5, np.repeat(np.arange(20), 4)
    score = right + rng.normal(size=80)
    found = auroc_of(*map(torch.from_numpy, (score, right, question)), 20)
    assert found is not None
    assert found.value == pytest.approx(roc_auc_score(right, score))
    np.testing.assert_allclose(found.parts.sum(1), 0, atol=1e-12)


def test_a_score_does_not_differ_from_itself_or_from_a_monotone_transform() -> None:
    scores, right = draw(40, 2, np.random.default_rng(4))
    found = [auroc_of_counts(score, right, np.full(40, 2)) for score in (scores[0], np.exp(scores[0]))]
    assert auroc_difference(*found) == {"value": 0, "low": None, "high": None, "p": None}


def test_perfect_separation_gives_no_interval_and_too_few_right_answers_give_no_value() -> None:
    right = np.repeat([0, 1], 10)
    assert auroc_estimate(auroc_of_counts(np.arange(20.0), right, np.ones(20, int))) == {
        "value": 1,
        "low": None,
        "high": None,
    }
    assert auroc_of_counts(np.arange(20.0), (np.arange(20) < 4).astype(int), np.ones(20, int)) is None
    assert auroc_estimate(None) is auroc_difference(None, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4])
def test_the_variance_of_the_difference_between_two_systems_is_that_of_repeated_draws(k: int) -> None:
    rng, found = np.random.default_rng(k), []
    for _ in range(200):
        easiness = rng.normal(size=100)
        systems = []
        for noise in (0.5, 1.0):  # both systems answer the same questions, with answers of their own
            logit = easiness + 0.5 * rng.normal(size=100)
            right = rng.binomial(k, 1 / (1 + np.exp(-logit)))
            systems.append(auroc_of_counts(logit + noise * rng.normal(size=100), right, np.full(100, k)))
        a, b = systems
        assert a is not None
        assert b is not None
        found.append((a.value - b.value, covariance(a, a) + covariance(b, b) - 2 * covariance(a, b)))
    differences, variances = np.array(found).T
    assert variances.mean() == pytest.approx(differences.var(), rel=0.2)
