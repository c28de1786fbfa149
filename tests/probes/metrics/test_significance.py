"""Compare p-values with enumeration, loops and simulation, and test resampling of questions with their answers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from probes.metrics import functional as F
from probes.metrics.intervals import bootstrap, by_question, paired_bootstrap, resample_weights
from probes.metrics.significance import bootstrap_p, holm, sign_flip
from probes.report.evaluate import METRICS, Scored, estimate, evaluate
from tests.helpers.planted import simulated


def enumerated(differences: list[float]) -> float:
    """Return the share of all sign patterns whose sum is at least as far from 0."""
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product([1, -1], repeat=len(differences))
    ]
    return sum(one >= abs(sum(differences)) - 1e-9 for one in sums) / len(sums)


@pytest.mark.parametrize("n", [1, 2, 7, 11])
def test_the_sign_flip_test_of_few_questions_tries_all_patterns(n: int) -> None:
    rng = np.random.default_rng(n)
    for differences in (rng.normal(0.4, 1, n), rng.integers(-3, 4, n) / 10, np.zeros(n)):
        assert sign_flip(torch.tensor(differences)) == pytest.approx(enumerated(differences.tolist()), abs=1e-12)


def test_random_flips_come_close_to_all_patterns_and_depend_only_on_the_seed() -> None:
    differences = torch.tensor(np.random.default_rng(0).normal(0.35, 1, 20))
    exact = sign_flip(differences)
    padded = torch.cat(
        [differences, torch.zeros(5, dtype=torch.float64)]
    )  # a zero changes no sum, but there are more than 20
    drawn = sign_flip(padded, n_flips=20_000)
    assert 0.02 < exact < 0.5
    assert abs(drawn - exact) < 4 * (exact * (1 - exact) / 20_000) ** 0.5
    assert drawn == sign_flip(padded, n_flips=20_000)
    assert drawn != sign_flip(padded, n_flips=20_000, seed=1)


def test_no_p_value_is_below_the_resolution_of_its_draws() -> None:
    assert sign_flip(torch.ones(500), n_flips=999) == 1 / 1000
    assert sign_flip(torch.ones(20)) == 2 / 2**20
    assert bootstrap_p(lambda w: w.sum(-1), lambda w: 0 * w.sum(-1), 50, n_resamples=1999) == 2 / 2000


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, 40])
def test_without_a_difference_sign_flip_p_values_are_uniform(n: int) -> None:
    rng = np.random.default_rng(0)
    p_values = [sign_flip(torch.tensor(rng.normal(0, rng.uniform(0.1, 3, n))), 999, seed) for seed in range(400)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_holm_equals_a_textbook_example_and_a_loop() -> None:
    example = torch.tensor([0.01, 0.04, 0.03, 0.005], dtype=torch.float64)
    assert holm(example).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    rng = np.random.default_rng(0)
    for n in (1, 5, 30):
        values = rng.random(n) ** 3
        looped, greatest = np.empty(n), 0.0
        for rank, i in enumerate(np.argsort(values)):
            greatest = max(greatest, min(1.0, (n - rank) * values[i]))
            looped[i] = greatest
        assert holm(torch.tensor(values)).tolist() == pytest.approx(looped.tolist(), abs=1e-12)


def test_missing_p_values_are_not_counted_in_holms_correction() -> None:
    adjusted = holm(torch.tensor([torch.nan, 0.02, torch.nan, 0.5], dtype=torch.float64))
    assert adjusted.isnan().tolist() == [True, False, True, False]
    assert adjusted[[1, 3]].tolist() == pytest.approx([0.04, 0.5])
    assert holm(torch.tensor([torch.nan])).isnan().all()
    assert len(holm(torch.tensor([]))) == 0


@pytest.mark.slow
def test_the_bootstrap_p_value_counts_the_resampled_differences_on_either_side_of_zero() -> None:
    f, right, known, p = simulated()
    better, worse = (lambda w, one=one: F.debiased_brier(one, right, known, w) for one in (p, f))
    differences = [float(better(one) - worse(one)) for one in resample_weights(60, 500, 3)]
    below, above = sum(one <= 0 for one in differences), sum(one >= 0 for one in differences)
    expected = 2 * min(1 + below, 1 + above) / 501
    assert bootstrap_p(better, worse, 60, n_resamples=500, seed=3) == pytest.approx(expected, abs=1e-12)
    assert bootstrap_p(worse, better, 60, n_resamples=500, seed=3) == pytest.approx(expected, abs=1e-12)
    assert bootstrap_p(worse, worse, 60, n_resamples=500) == 1


def test_a_difference_without_values_has_no_p_value() -> None:
    assert bootstrap_p(lambda w: w.sum(-1) * torch.nan, lambda w: w.sum(-1), 60) is None
    assert bootstrap_p(lambda w: w.sum(-1), lambda w: w.sum(-1), 1) is None


def test_without_a_difference_bootstrap_p_values_are_about_uniform() -> None:
    rng, low = np.random.default_rng(0), 0
    for seed in range(300):
        d = torch.tensor(rng.normal(0, 1, 60))
        p = bootstrap_p(lambda w, d=d: (w * d).sum(-1), lambda w: 0 * w.sum(-1), 60, n_resamples=400, seed=seed)
        assert p is not None
        low += p <= 0.1
    assert stats.binom.ppf(0.0005, 300, 0.1) <= low <= stats.binom.ppf(0.9995, 300, 0.1)


def test_answers_are_resampled_with_their_questions() -> None:
    rng = np.random.default_rng(0)
    question = torch.tensor(rng.permutation(np.repeat(np.arange(40), rng.integers(1, 9, 40))))
    ease = torch.tensor(rng.normal(size=40))[question]
    y = (ease + torch.tensor(rng.normal(size=len(question))) > 0).long()
    f, one = torch.sigmoid(ease), torch.ones(len(question))

    def metric(weights: Tensor) -> Tensor:
        return F.capability_auroc(f, y, one, weights)

    for weights in resample_weights(40, 5, 0):
        rows = torch.cat([(question == q).nonzero()[:, 0].repeat(int(weights[q])) for q in range(40)])
        copied = F.response_brier(f[rows], y[rows], one[rows])
        ours = by_question(lambda w: F.response_brier(f, y, one, w), question)(weights[None])
        assert float(ours[0]) == pytest.approx(float(copied), abs=1e-12)
    clustered = bootstrap(by_question(metric, question), 40, 1000)
    alone = bootstrap(metric, len(question), 1000)
    assert clustered is not None
    assert alone is not None
    assert clustered["value"] == pytest.approx(alone["value"], abs=1e-12)
    assert clustered["high"] - clustered["low"] > 1.2 * (alone["high"] - alone["low"])
    same = paired_bootstrap(by_question(metric, question), by_question(metric, question), 40, n_resamples=100)
    assert same == {"value": 0, "low": 0, "high": 0}


@pytest.mark.parametrize("shared", [False, True], ids=["a confidence per answer", "a confidence per question"])
@pytest.mark.parametrize("folds", [1, 5])
def test_merged_answers_have_the_same_metrics_and_intervals(shared: bool, folds: int) -> None:
    generator = torch.Generator().manual_seed(folds)
    question = torch.arange(30).repeat_interleave(10)
    confidence = torch.rand(300, generator=generator, dtype=torch.float64).mul(8).round() / 8  # with ties
    confidence = confidence[question] if shared else confidence
    right = (torch.rand(300, generator=generator) < confidence).long()
    scored = Scored(confidence, right, torch.ones_like(right), question, question % folds)
    merged = scored.merged()
    assert merged.copies is not None
    assert len(merged.right) < 300 == merged.copies.sum()
    assert not shared or len(merged.right) <= 60
    found = evaluate(scored, 0, 0.5, n_resamples=100)
    for name in METRICS["response"]:
        expected = estimate(scored, name, n_resamples=100)
        assert expected is not None
        assert found[name] == pytest.approx(expected, abs=1e-12), name


def test_questions_and_no_answers_are_not_merged() -> None:
    none = torch.empty(0, dtype=torch.float64)
    assert Scored(none, none, none, none.long()).merged().copies is None
    assert Scored(torch.ones(3), torch.ones(3), torch.ones(3)).merged().copies is None
