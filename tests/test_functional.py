"""The metrics against loops, scikit-learn and simulations (spec: debiased Brier, capability AUROC, ECE)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from probes import functional as F
from probes import metrics
from probes.intervals import bootstrap, paired_bootstrap, resample_weights


def simulated(n: int = 60, k: int = 10, seed: int = 0, ties: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Confidence, right, known, and the true p."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.8, 1.2, n)
    f = np.clip(p + rng.normal(0, 0.2, n), 0.01, 0.99)
    known = rng.integers(2, k + 1, n)
    right = rng.binomial(known, p)
    return torch.tensor(np.round(f, 1) if ties else f), torch.tensor(right), torch.tensor(known), torch.tensor(p)


def looped_auroc(f: Tensor, right: Tensor, known: Tensor, owner: list[int] | None = None) -> float:
    """The definition: pairs of different questions."""
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
def test_capability_auroc_equals_a_double_loop_with_ties(seed: int) -> None:
    f, right, known, _ = simulated(seed=seed)
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


def test_with_one_answer_a_question_it_is_the_ordinary_auroc() -> None:
    rng = np.random.default_rng(0)
    f, y = torch.tensor(rng.random(100).round(1)), torch.tensor(rng.integers(0, 2, 100))
    ours = float(F.capability_auroc(f, y, torch.ones(100)))
    assert ours == pytest.approx(roc_auc_score(y, f), abs=1e-12)
    assert ours == pytest.approx(float(binary_auroc(f, y)), abs=1e-6)


def test_it_equals_a_weighted_auroc_without_the_diagonal() -> None:
    f, right, known, _ = simulated()
    p = (right.double() / known).numpy()
    exploded = roc_auc_score(np.r_[np.ones(60), np.zeros(60)], np.r_[f, f], sample_weight=np.r_[p, 1 - p])
    total, diagonal = p.sum() * (1 - p).sum(), (p * (1 - p)).sum()
    assert float(F.capability_auroc(f, right, known)) == pytest.approx(
        (exploded * total - diagonal / 2) / (total - diagonal), abs=1e-12
    )


def test_a_constant_confidence_has_auroc_one_half_and_one_class_has_none() -> None:
    _, right, known, _ = simulated()
    assert float(F.capability_auroc(torch.full((60,), 0.3), right, known)) == pytest.approx(0.5, abs=1e-12)
    assert torch.isnan(F.capability_auroc(torch.rand(60), known, known))
    assert torch.isnan(F.spearman(torch.full((60,), 0.3), right, known))


def test_the_debiased_brier_is_unbiased_and_the_plain_one_is_not() -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(1, 2, 50)
    f = torch.tensor(np.clip(p + 0.1, 0, 1))
    truth = float(((f - torch.tensor(p)) ** 2).mean())
    draws = [torch.tensor(rng.binomial(10, p)) for _ in range(1000)]
    known = torch.full((50,), 10)
    debiased = torch.stack([F.debiased_brier(f, right, known) for right in draws])
    plain = torch.stack([((f - right / 10) ** 2).mean() for right in draws])
    assert abs(float(debiased.mean()) - truth) < 3 * float(debiased.std()) / 1000**0.5
    assert float(plain.mean()) - truth == pytest.approx(float((p * (1 - p)).mean()) / 10, rel=0.05)


def test_response_minus_capability_brier_is_the_irreducible_part() -> None:
    f, right, known, _ = simulated()
    irreducible = (right * (known - right) / (known * (known - 1)).double()).mean()
    difference = F.response_brier(f, right, known) - F.debiased_brier(f, right, known)
    assert float(difference) == pytest.approx(float(irreducible), abs=1e-12)


def test_the_skill_of_the_reference_is_zero() -> None:
    f, right, known, _ = simulated()
    assert float(F.brier_skill(torch.full((60,), 0.4), right, known, 0.4)) == 0
    assert float(F.brier_skill(f, right, known, 0.4)) > 0.3


def test_the_last_bin_is_closed() -> None:
    ones, right, known = torch.ones(10), torch.full((10,), 5), torch.full((10,), 10)
    for by in ("width", "mass"):
        assert float(F.expected_calibration_error(ones, right, known, by=by)) == 0.5


def test_ece_equals_a_loop_over_bins() -> None:
    f, right, known, _ = simulated(200, ties=False)
    p, total = right.double() / known, 0.0
    for b in range(10):
        inside = (f >= b / 10) & (f < (b + 1) / 10)
        total += float(abs((f[inside] - p[inside]).sum())) / 200
    assert float(F.expected_calibration_error(f, right, known)) == pytest.approx(total, abs=1e-9)


def test_bins_of_equal_mass_hold_equally_many_and_ties_stay_together() -> None:
    f = torch.rand(100, dtype=torch.float64)
    assert torch.bincount(F.bin_index(f, 10, "mass")).tolist() == [10] * 10
    assert len(F.bin_index(torch.tensor([0.1, 0.5, 0.5, 0.5, 0.9], dtype=torch.float64), 5, "mass").unique()) == 3


def test_spearman_equals_scipy() -> None:
    f, right, known, _ = simulated()
    assert float(F.spearman(f, right, known)) == pytest.approx(stats.spearmanr(f, right / known).statistic, abs=1e-12)


def test_the_ceiling_brackets_and_finds_the_true_one() -> None:
    rng = np.random.default_rng(5)
    p = rng.beta(0.7, 1.3, 3000)
    known = torch.full((3000,), 10)
    value, low, high = F.auroc_ceiling(torch.tensor(rng.binomial(10, p)), known)
    truth = float(F.capability_auroc(torch.tensor(p), torch.tensor(p), torch.ones(3000)))
    assert low < truth < high
    assert value == pytest.approx(truth, abs=0.01)


def test_without_spread_there_is_no_ceiling() -> None:
    assert np.isnan(F.auroc_ceiling(torch.full((30,), 5), torch.full((30,), 10))).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preds": torch.tensor([0.1, torch.nan])}, "1 are NaN or infinite"),
        ({"preds": torch.tensor([0.1, 1.5])}, r"confidences in \[0, 1\].*Calibrate"),
        ({"known": torch.tensor([1, 5])}, "`known` of at least 2"),
        ({"right": torch.tensor([6, 1])}, "`right` between 0 and `known`"),
        ({"right": torch.tensor([1])}, r"one shape \[question\]"),
    ],
)
def test_metrics_refuse_what_they_cannot_mean(change: dict[str, Tensor], message: str) -> None:
    good = {"preds": torch.tensor([0.1, 0.2]), "right": torch.tensor([1, 2]), "known": torch.tensor([5, 5])}
    with pytest.raises(ValueError, match=message):
        F.debiased_brier(**(good | change))


@pytest.mark.parametrize(
    ("metric", "function"),
    [
        (metrics.CapabilityAUROC(), F.capability_auroc),
        (metrics.DebiasedBrier(), F.debiased_brier),
        (metrics.Spearman(), F.spearman),
        (metrics.HardAUROC(), F.hard_auroc),
        (metrics.ExpectedCalibrationError(by="mass"), lambda *a: F.expected_calibration_error(*a, by="mass")),
        (metrics.BrierSkill(0.4), lambda *a: F.brier_skill(*a, reference=0.4)),
    ],
)
def test_metrics_over_batches_equal_the_function_over_all(metric: metrics.QuestionMetric, function: object) -> None:
    f, right, known, _ = simulated()
    for rows in torch.arange(60).split(7):
        metric.update(f[rows], right[rows], known[rows])
    assert callable(function)
    assert float(metric.compute()) == pytest.approx(float(function(f, right, known)), abs=1e-6)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = {"auroc": 0, "brier": 0}
    population = rng.beta(1, 1.5, 20000)
    noise = rng.normal(0, 0.25, 20000)
    score = np.clip(population + noise, 0, 1)
    soft = torch.tensor(population)
    truths = {
        "auroc": float(F.capability_auroc(torch.tensor(score), soft, torch.ones(20000))),
        "brier": float(((score - population) ** 2).mean()),
    }
    for trial in range(100):
        rows = rng.choice(20000, 150, replace=False)
        f, right, known = (
            torch.tensor(score[rows]),
            torch.tensor(rng.binomial(10, population[rows])),
            torch.full((150,), 10),
        )
        for name, metric in (("auroc", F.capability_auroc), ("brier", F.debiased_brier)):
            interval = bootstrap(lambda w, m=metric, a=(f, right, known): m(*a, weights=w), 150, 500, seed=trial)
            assert interval is not None
            covered[name] += interval["low"] <= truths[name] <= interval["high"]
    assert all(88 <= count <= 100 for count in covered.values()), covered


def test_a_paired_difference_with_itself_is_zero_and_nan_has_no_interval() -> None:
    f, right, known, _ = simulated()
    same = paired_bootstrap(
        lambda w: F.capability_auroc(f, right, known, w), lambda w: F.capability_auroc(f, right, known, w), 60
    )
    assert same == {"value": 0, "low": 0, "high": 0}
    assert bootstrap(lambda w: torch.full((len(w),), torch.nan), 60) is None


def test_the_ceiling_survives_right_answers_to_a_single_question() -> None:
    value, low, high = F.auroc_ceiling(torch.tensor([2, 0, 0, 0]), torch.tensor([4] * 4))
    assert low <= value <= high
