"""Test what the figures estimate and how often their intervals contain it, with loops, libraries and simulations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from probes.metrics import functional as F
from probes.metrics import intervals
from probes.metrics.intervals import bootstrap, paired_bootstrap, resample_weights
from probes.report.evaluate import CAPABILITY, METRICS, WITHOUT_INTERVAL, Scored, compare, evaluate, metric_of
from tests.helpers.planted import simulated


def looped_auroc(f: Tensor, right: Tensor, known: Tensor, owner: list[int] | None = None) -> float:
    """Compute the definition over pairs of different questions."""
    p, owner = (right.double() / known).tolist(), owner or list(range(len(f)))
    won = pairs = 0.0
    for i in range(len(f)):
        for j in range(len(f)):
            if owner[i] != owner[j]:
                mass = p[i] * (1 - p[j])
                won += mass * (float(f[i] > f[j]) + 0.5 * float(f[i] == f[j]))
                pairs += mass
    return won / pairs


@pytest.mark.parametrize("seed", range(4))
def test_the_auroc_equals_a_double_loop_with_ties(seed: int) -> None:
    f, right, known, _ = simulated(seed=seed)
    assert len(f.unique()) < len(f) / 2
    assert float(F.capability_auroc(f, right, known)) == pytest.approx(looped_auroc(f, right, known), abs=1e-12)


def test_weights_mean_copies_and_copies_are_not_paired_with_themselves() -> None:
    f, right, known, _ = simulated(20)
    weights = resample_weights(20, 5, 0)
    for one in weights:
        copies = torch.repeat_interleave(torch.arange(20), one.long())
        looped = looped_auroc(f[copies], right[copies], known[copies], copies.tolist())
        assert float(F.capability_auroc(f, right, known, one)) == pytest.approx(looped, abs=1e-12)
        for metric in (F.debiased_brier, F.spearman, F.expected_calibration_error):
            copied = metric(f[copies], right[copies], known[copies])
            assert float(metric(f, right, known, one)) == pytest.approx(float(copied), abs=1e-12)
    many = F.capability_auroc(f, right, known, weights)
    assert torch.allclose(many, torch.stack([F.capability_auroc(f, right, known, one) for one in weights]))


@pytest.mark.parametrize("resample", [False, True])
def test_the_auroc_equals_scikit_learn_without_pairs_from_the_same_question(resample: bool) -> None:
    f, right, known, _ = simulated()
    w = resample_weights(60, 1, 3)[0].double().numpy() if resample else np.ones(60)
    p = (right.double() / known).numpy()
    exploded = roc_auc_score(np.r_[np.ones(60), np.zeros(60)], np.r_[f, f], sample_weight=np.r_[w * p, w * (1 - p)])
    total, diagonal = (w * p).sum() * (w * (1 - p)).sum(), (w**2 * p * (1 - p)).sum()
    assert float(F.capability_auroc(f, right, known, torch.tensor(w))) == pytest.approx(
        (exploded * total - diagonal / 2) / (total - diagonal), abs=1e-12
    )


def test_a_constant_confidence_has_auroc_one_half_exactly_in_every_resample() -> None:
    for seed in range(20):
        _, right, known, _ = simulated(seed=seed)
        constant = torch.full((60,), 0.3)
        assert float(F.capability_auroc(constant, right, known)) == 0.5
        assert (F.capability_auroc(constant, right, known, resample_weights(60, 50, seed)) == 0.5).all()


def test_one_class_has_no_auroc_and_a_constant_has_no_rank_correlation() -> None:
    _, right, known, _ = simulated()
    assert torch.isnan(F.capability_auroc(torch.rand(60), known, known))
    assert torch.isnan(F.spearman(torch.full((60,), 0.3), right, known))


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 10])
def test_the_debiased_brier_is_unbiased_and_the_raw_one_too_large_by_the_noise_of_k_answers(k: int) -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(0.5, 1.2, 150)
    f = torch.tensor(np.clip(p + rng.normal(0, 0.2, 150), 0, 1))
    truth = float(((f - torch.tensor(p)) ** 2).mean())
    n_draws = 500
    draws = [torch.tensor(rng.binomial(k, p)) for _ in range(n_draws)]
    known = torch.full((150,), k)
    debiased = torch.stack([F.debiased_brier(f, right, known) for right in draws])
    raw = torch.stack([((f - right / k) ** 2).mean() for right in draws])
    noise = float((p * (1 - p)).mean()) / k
    assert abs(float(debiased.mean()) - truth) < 3 * float(debiased.std()) / n_draws**0.5
    assert abs(float(raw.mean()) - truth - noise) < 3 * float(raw.std()) / n_draws**0.5
    assert noise > 10 * float(raw.std()) / n_draws**0.5  # so that the raw one fails the first assertion


@pytest.mark.parametrize("seed", range(4))
def test_response_minus_capability_brier_is_the_irreducible_part(seed: int) -> None:
    f, right, known, _ = simulated(seed=seed)
    irreducible = (right * (known - right) / (known * (known - 1)).double()).mean()
    difference = F.response_brier(f, right, known) - F.debiased_brier(f, right, known)
    assert float(difference) == pytest.approx(float(irreducible), abs=1e-12)


def test_full_confidence_in_half_right_answers_has_a_calibration_error_of_one_half() -> None:
    ones, right, known = torch.ones(10), torch.full((10,), 5), torch.full((10,), 10)
    for by in ("width", "mass"):
        assert float(F.expected_calibration_error(ones, right, known, by=by)) == 0.5


def test_saturated_confidences_have_every_figure_with_a_finite_interval() -> None:
    _, right, known, p = simulated()
    saturated = (p > 0.5).double()
    figures = evaluate(Scored(saturated, right, known), 0, reference=0.4, n_resamples=200)
    for name in set(CAPABILITY) - set(WITHOUT_INTERVAL):
        assert figures[name] is not None, name
        assert np.isfinite(list(figures[name].values())).all()
    one_sided = evaluate(Scored(torch.ones(60), right, known), 0, reference=0.4, n_resamples=200)
    assert {name for name in CAPABILITY if one_sided[name] is None} == {"spearman"}


@pytest.mark.parametrize("target", ["capability", "response"])
def test_calibration_errors_have_a_value_and_no_interval(target: str) -> None:
    f, right, known, _ = simulated()
    if target == "response":
        right, known = (right / known > 0.5).long(), torch.ones_like(known)
    question = torch.arange(60) if target == "response" else None
    scored = Scored(f, right, known, question)
    figures = evaluate(scored, 0, reference=0.4, n_resamples=50)
    for name in set(WITHOUT_INTERVAL) & set(METRICS[target]):
        value = float(METRICS[target][name](f, right, known))
        assert figures[name] == {"value": pytest.approx(value, abs=1e-12), "low": None, "high": None}
    single = evaluate(scored.take(torch.arange(1)), 0, reference=0.4)
    assert all(single[name] is None for name in METRICS[target])


def test_integer_confidences_have_the_same_skill_as_floats() -> None:
    _, right, known, p = simulated()
    saturated = (p > 0.5).long()
    floats = F.brier_skill(saturated.double(), right, known, 0.4)
    assert float(F.brier_skill(saturated, right, known, 0.4)) == float(floats)


def test_a_perfect_reference_leaves_no_skill_to_measure() -> None:
    full = torch.full((10,), 7)
    assert float(F.debiased_brier(torch.ones(10), full, full)) == 0
    assert torch.isnan(F.brier_skill(torch.ones(10), full, full, reference=1.0))


@pytest.mark.slow
def test_the_intervals_contain_the_truth_about_as_often_as_stated() -> None:
    rng, n, k, draws = np.random.default_rng(0), 150, 10, 100

    def questions(size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw f ~ Beta(1, 2), p ~ Beta with mean f and a + b = 1, and g halfway between f and noise."""
        f = rng.beta(1, 2, size)
        return torch.tensor(rng.beta(f, 1 - f)), torch.tensor(f), torch.tensor((f + rng.random(size)) / 2)

    p, f, g = questions(300_000)
    aurocs = [float(F.capability_auroc(score, p, torch.ones_like(p))) for score in (f, g)]
    brier, variance = 1 / 12, 1 / 12 + 1 / 18  # E Var(p | f), and with Var f
    weaker = brier + (1 / 12 + 1 / 18 + 1 / 36) / 4
    alone = {"auroc": aurocs[0], "brier": brier, "brier_skill": 1 - brier / (variance + (0.4 - 1 / 3) ** 2)}
    truth = alone | {"auroc_difference": aurocs[0] - aurocs[1], "brier_difference": brier - weaker}
    held = dict.fromkeys(truth, 0)
    for draw in range(draws):
        p, f, g = questions(n)
        right, known = torch.tensor(rng.binomial(k, p)), torch.full((n,), k)
        first, second = Scored(f, right, known), Scored(g, right, known)
        figures = {name: bootstrap(metric_of(first, name, 0.4), n, 200, draw) for name in alone}
        rows = compare("f", "g", first, second, "simulated", n_resamples=200, seed=draw)
        for name, interval in (figures | {f"{row['metric']}_difference": row for row in rows}).items():
            held[name] += interval["low"] <= truth[name] <= interval["high"]
    least, most = stats.binom.ppf([0.0005, 0.9995], draws, 0.95)
    assert all(least <= count <= most for count in held.values()), held


def test_the_interval_of_a_mean_equals_scipys_bca_interval_at_students_level() -> None:
    f, right, known, _ = simulated(30)
    terms = (f**2 - 2 * f * right / known + right * (right - 1) / (known * (known - 1))).numpy()
    ours = bootstrap(lambda w: F.debiased_brier(f, right, known, w), 30, n_resamples=40_000)
    assert ours is not None
    level = 1 - 2 * stats.norm.sf(stats.t.ppf(0.975, 29) * (30 / 29) ** 0.5)
    theirs = stats.bootstrap(
        (terms,), np.mean, n_resamples=40_000, confidence_level=level, rng=np.random.default_rng(0)
    ).confidence_interval
    assert [ours["low"], ours["high"]] == pytest.approx(list(theirs), abs=0.03 * (theirs.high - theirs.low))


def test_the_interval_of_a_brier_score_reaches_further_to_the_bad_side() -> None:
    f, right, known, _ = simulated(150)
    interval = bootstrap(lambda w: F.debiased_brier(f, right, known, w), 150)
    assert interval is not None
    assert interval["high"] - interval["value"] > 1.1 * (interval["value"] - interval["low"])


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_few_questions_have_ordered_and_finite_intervals_or_none(n: int) -> None:
    for seed in range(8):
        f, right, known, _ = simulated(n, seed=seed)
        for name in CAPABILITY:
            interval = bootstrap(metric_of(Scored(f, right, known), name, 0.4), n, 100, seed)
            if interval is not None:
                assert -np.inf < interval["low"] <= interval["high"] < np.inf, name


def test_resamples_are_drawn_once_and_their_values_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    f, right, known, _ = simulated()
    assert intervals.resample_weights(60, 100, 0) is intervals.resample_weights(60, 100, 0)
    answers = Scored(f, (right > 2).long(), torch.ones_like(known), torch.arange(60) // 3)
    metrics = [metric_of(scored, "prr_50") for scored in (Scored(f, right, known), answers)]
    whole = [bootstrap(metric, n, 100) for metric, n in zip(metrics, (60, 20), strict=True)]
    monkeypatch.setattr(intervals, "_CHUNK", 180)
    monkeypatch.setattr(intervals, "_LEAST_RESAMPLES", 1)
    metrics = [metric_of(scored, "prr_50") for scored in (Scored(f, right, known), answers)]
    assert whole == [bootstrap(metric, n, 100) for metric, n in zip(metrics, (60, 20), strict=True)]


def test_a_single_question_and_a_nan_metric_have_no_interval() -> None:
    f, right, known, _ = simulated(1)
    assert bootstrap(lambda w: F.debiased_brier(f, right, known, w), 1) is None
    assert bootstrap(lambda w: w.sum(-1) * torch.nan, 60) is None


def test_a_paired_difference_with_itself_is_zero() -> None:
    f, right, known, _ = simulated()
    same = paired_bootstrap(
        lambda w: F.capability_auroc(f, right, known, w), lambda w: F.capability_auroc(f, right, known, w), 60
    )
    assert same == {"value": 0, "low": 0, "high": 0}
