"""The metrics against loops, scikit-learn, SciPy and torchmetrics. What they estimate is in test_statistics.py."""

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


def simulated(n: int = 60, k: int = 10, seed: int = 0, ties: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Confidence, right, known, and the true p."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.8, 1.2, n)
    f = np.clip(p + rng.normal(0, 0.2, n), 0.01, 0.99)
    known = rng.integers(2, k + 1, n)
    right = rng.binomial(known, p)
    return torch.tensor(np.round(f, 1) if ties else f), torch.tensor(right), torch.tensor(known), torch.tensor(p)


def test_with_one_answer_a_question_it_is_the_ordinary_auroc() -> None:
    rng = np.random.default_rng(0)
    f, y = torch.tensor(rng.random(100).round(1)), torch.tensor(rng.integers(0, 2, 100))
    ours = float(F.capability_auroc(f, y, torch.ones(100)))
    assert ours == pytest.approx(roc_auc_score(y, f), abs=1e-12)
    assert ours == pytest.approx(float(binary_auroc(f, y)), abs=1e-6)


def test_the_skill_of_the_reference_is_zero() -> None:
    f, right, known, _ = simulated()
    assert float(F.brier_skill(torch.full((60,), 0.4, dtype=torch.float64), right, known, 0.4)) == 0
    assert float(F.brier_skill(f, right, known, 0.4)) > 0.3


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


def test_the_ceiling_survives_right_answers_to_a_single_question() -> None:
    value, low, high = F.auroc_ceiling(torch.tensor([2, 0, 0, 0]), torch.tensor([4] * 4))
    assert low <= value <= high
