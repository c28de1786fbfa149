"""Compare the metrics with loops, scikit-learn, SciPy and torchmetrics. See also test_statistics.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_calibration_error

from probes.metrics import functional as F
from probes.metrics.functional import ranking
from probes.metrics.intervals import resample_weights
from probes.metrics.metrics import QuestionMetric
from tests.helpers.planted import simulated


def test_with_one_answer_per_question_the_auroc_is_the_ordinary_one() -> None:
    rng = np.random.default_rng(0)
    f, y = torch.tensor(rng.random(100).round(1)), torch.tensor(rng.integers(0, 2, 100))
    ours = float(F.capability_auroc(f, y, torch.ones(100)))
    assert ours == pytest.approx(roc_auc_score(y, f), abs=1e-12)
    assert ours == pytest.approx(float(binary_auroc(f, y)), abs=1e-6)


def test_the_hard_auroc_equals_the_auroc_of_torchmetrics_for_mostly_right_questions() -> None:
    f, right, known, _ = simulated()
    theirs = float(binary_auroc(f, (right / known >= 0.5).long()))
    assert float(F.hard_auroc(f, right, known)) == pytest.approx(theirs, abs=1e-6)
    assert torch.isnan(F.hard_auroc(f, known, known))


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


def test_bins_of_equal_mass_contain_equally_many_questions_and_ties_stay_together() -> None:
    f = torch.rand(100, dtype=torch.float64)
    assert torch.bincount(F.bin_index(f, 10, "mass")).tolist() == [10] * 10
    assert len(F.bin_index(torch.tensor([0.1, 0.5, 0.5, 0.5, 0.9], dtype=torch.float64), 5, "mass").unique()) == 3


def test_spearman_equals_scipy() -> None:
    f, right, known, _ = simulated()
    assert float(F.spearman(f, right, known)) == pytest.approx(stats.spearmanr(f, right / known).statistic, abs=1e-12)


def test_ece_and_brier_of_single_answers_equal_torchmetrics_and_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    f, one = torch.tensor(rng.random(500)), torch.ones(500)
    y = torch.tensor(rng.binomial(1, f.numpy() ** 2))
    for n_bins in (10, 15):
        theirs = float(binary_calibration_error(f, y, n_bins=n_bins, norm="l1"))
        assert float(F.expected_calibration_error(f, y, one, n_bins=n_bins)) == pytest.approx(theirs, abs=1e-6)
    assert float(F.response_brier(f, y, one)) == pytest.approx(brier_score_loss(y, f), abs=1e-12)


def test_answers_that_share_their_questions_confidence_have_the_questions_calibration_error() -> None:
    f, _, _, p = simulated(ties=False)
    right = torch.tensor(np.random.default_rng(1).binomial(10, p))
    answers = (torch.arange(10) < right[:, None]).long().flatten()
    for by in ("width", "mass"):
        over_answers = F.expected_calibration_error(f.repeat_interleave(10), answers, torch.ones(600), by=by)
        over_questions = F.expected_calibration_error(f, right, torch.full((60,), 10), by=by)
        assert float(over_answers) == pytest.approx(float(over_questions), abs=1e-12)


def test_brier_terms_differ_between_methods_as_the_capability_brier_does() -> None:
    f, right, known, p = simulated()
    difference = (F.brier_terms(f, right, known) - F.brier_terms(p, right, known)).mean()
    debiased = F.debiased_brier(f, right, known) - F.debiased_brier(p, right, known)
    assert float(difference) == pytest.approx(float(debiased), abs=1e-12)


def test_the_reference_of_the_skill_can_differ_between_questions() -> None:
    f, right, known, _ = simulated()
    constant = torch.full((60,), 0.4, dtype=torch.float64)
    assert float(F.brier_skill(f, right, known, constant)) == float(F.brier_skill(f, right, known, 0.4))
    folds = torch.where(torch.arange(60) < 30, 0.3, 0.5)
    expected = 1 - F.debiased_brier(f, right, known) / F.debiased_brier(folds, right, known)
    assert float(F.brier_skill(f, right, known, folds)) == pytest.approx(float(expected), abs=1e-12)


def test_strata_count_only_pairs_within_a_fold() -> None:
    f, right, known, _ = simulated()
    folds = torch.tensor(np.random.default_rng(0).integers(0, 3, 60)) * 7 - 7
    won = pairs = 0.0
    for fold in folds.unique():
        p, score = (right.double() / known)[folds == fold], f[folds == fold]
        mass = (p[:, None] * (1 - p)).fill_diagonal_(0)
        beats = (score[:, None] > score).double() + (score[:, None] == score).double() / 2
        won, pairs = won + float((mass * beats).sum()), pairs + float(mass.sum())
    assert float(F.capability_auroc(f, right, known, strata=folds)) == pytest.approx(won / pairs, abs=1e-12)
    one_fold = F.capability_auroc(f, right, known, strata=torch.full((60,), 5))
    assert float(one_fold) == float(F.capability_auroc(f, right, known))
    weights = resample_weights(60, 4, 0)
    for one, value in zip(weights, F.capability_auroc(f, right, known, weights, folds), strict=True):
        kept = [F.capability_auroc(f, right, known, one * (folds == fold)) for fold in folds.unique()]
        assert min(kept) <= value <= max(kept)
    assert float(F.hard_auroc(f, right, known, strata=folds)) != float(F.hard_auroc(f, right, known))


def test_the_mean_of_other_folds_ranks_below_chance_but_not_within_folds() -> None:
    rng = np.random.default_rng(0)
    right, known = torch.tensor(rng.binomial(1, 0.5, 200)), torch.ones(200, dtype=torch.int64)
    folds = torch.arange(200) % 10
    others = torch.stack([right[folds != fold].double().mean() for fold in range(10)])[folds]
    assert float(F.capability_auroc(others, right, known)) < 0.45
    assert float(F.capability_auroc(others, right, known, strata=folds)) == 0.5


def looped_squared_error(f: Tensor, right: Tensor, known: Tensor) -> float:
    """Compute the definition over ten bins with the same number of questions."""
    gap, order = (f - right.double() / known).numpy(), np.argsort(f.numpy())
    bins = [gap[part] for part in np.array_split(order, 10)]
    return sum(len(one) / len(f) * (one.mean() ** 2 - one.var(ddof=1) / len(one)) for one in bins)


def test_the_squared_calibration_error_equals_a_loop_over_bins() -> None:
    f, right, known, _ = simulated(200, ties=False)
    f = f + torch.linspace(0, 1e-9, 200)  # the clipped ones tie
    ours = float(F.squared_calibration_error(f, right, known))
    assert ours == pytest.approx(looped_squared_error(f, right, known), abs=1e-12)
    assert float(F.rmsce(f, right, known)) == pytest.approx(ours**0.5, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("miscalibrated", [0.0, 0.15])
def test_the_squared_calibration_error_is_unbiased_where_the_plain_one_is_not(miscalibrated: float) -> None:
    rng, n, k, draws = np.random.default_rng(0), 150, 10, 500
    truth, errors, plain = miscalibrated**2, [], []
    known = torch.full((n,), k)
    for _ in range(draws):
        mean = rng.uniform(0.2, 0.8, n)
        right = torch.tensor(rng.binomial(k, rng.beta(4 * mean, 4 * (1 - mean))))
        f = torch.tensor(mean + miscalibrated)
        errors.append(float(F.squared_calibration_error(f, right, known)))
        plain.append(float(F.expected_calibration_error(f, right, known, by="mass")))
    standard_error = np.std(errors) / draws**0.5
    assert abs(np.mean(errors) - truth) < 3 * standard_error
    if not miscalibrated:  # far from 0, the noise of a gap cancels
        assert np.mean(plain) ** 2 > 10 * standard_error


def test_the_calibration_error_is_floored_and_keeps_a_derivative_at_the_floor() -> None:
    f, known = torch.linspace(0.3, 0.7, 20, dtype=torch.float64), torch.full((20,), 2)
    right = torch.tensor([0, 2] * 10)
    weights = torch.ones(20, dtype=torch.float64, requires_grad=True)
    assert float(F.squared_calibration_error(f, right, known)) < 0
    error = F.rmsce(f, right, known, weights)
    error.backward()
    assert float(error.detach()) == 0
    assert weights.grad is not None
    assert (weights.grad == 0).all()


def test_a_bin_of_one_question_is_merged_with_its_neighbour() -> None:
    f = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.9], dtype=torch.float64)  # bins of one, three and one question
    right, known = torch.tensor([1, 0, 2, 1, 3]), torch.full((5,), 4)
    gap = f - right.double() / 4
    expected = float(gap.mean() ** 2 - gap.var() / 5)
    assert float(F.squared_calibration_error(f, right, known, n_bins=5)) == pytest.approx(expected, abs=1e-12)
    pairs = torch.tensor([0.1, 0.1, 0.9, 0.9], dtype=torch.float64), torch.tensor([0, 0, 4, 3]), torch.full((4,), 4)
    apart = (0.01 + ((-0.1 + 0.15) / 2) ** 2 - 0.25**2 / 4) / 2
    assert float(F.squared_calibration_error(*pairs)) == pytest.approx(apart, abs=1e-12)
    assert torch.isnan(F.rmsce(f[:1], right[:1], known[:1]))


def test_weights_of_calibration_errors_mean_copies() -> None:
    f, right, known, _ = simulated(20)
    weights = resample_weights(20, 30, 0)
    for metric in (F.squared_calibration_error, F.rmsce):
        for one, of_many in zip(weights, metric(f, right, known, weights), strict=True):
            copies = torch.repeat_interleave(torch.arange(20), one.long())
            copied = float(metric(f[copies], right[copies], known[copies]))
            assert float(metric(f, right, known, one)) == pytest.approx(copied, abs=1e-9)
            assert float(of_many) == pytest.approx(copied, abs=1e-9)


@pytest.mark.parametrize("metric", [F.squared_calibration_error, F.capability_auroc])
def test_metrics_are_differentiable_with_respect_to_the_weights(metric: Callable[..., Tensor]) -> None:
    _, right, known, p = simulated(20)
    f = p.clamp(0.01, 0.99)  # without ties, which would lie on an edge of a bin
    weights = torch.ones(20, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(metric(f, right, known, weights), weights)
    for question in (0, 7, 13):
        step = torch.zeros(20, dtype=torch.float64)
        step[question] = 1e-6
        higher, lower = (metric(f, right, known, weights.detach() + sign * step) for sign in (1, -1))
        assert float(gradient[question]) == pytest.approx(float(higher - lower) / 2e-6, abs=1e-7)


def test_the_bounds_of_the_ceiling_contain_the_true_value() -> None:
    rng = np.random.default_rng(5)
    p = rng.beta(0.7, 1.3, 3000)
    known = torch.full((3000,), 10)
    value, low, high = F.auroc_ceiling(torch.tensor(rng.binomial(10, p)), known)
    truth = float(F.capability_auroc(torch.tensor(p), torch.tensor(p), torch.ones(3000)))
    assert low < truth < high
    assert value == pytest.approx(truth, abs=0.01)


def test_the_lower_bound_of_the_ceiling_is_the_mean_over_twenty_half_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    _, right, known, _ = simulated()
    aurocs: list[float] = []

    def recorded(*args: Tensor) -> Tensor:
        aurocs.append(float(F.capability_auroc(*args)))
        return torch.tensor(aurocs[-1], dtype=torch.float64)

    monkeypatch.setattr(ranking, "capability_auroc", recorded)
    _, low, high = F.auroc_ceiling(right, known)
    assert len(aurocs) == 21  # the first is the upper bound
    assert high == aurocs[0]
    assert low == pytest.approx(np.mean(aurocs[1:]))
    assert "20 random half-splits" in str(F.auroc_ceiling.__doc__)


def test_without_spread_there_is_no_ceiling() -> None:
    assert np.isnan(F.auroc_ceiling(torch.full((30,), 5), torch.full((30,), 10))).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preds": torch.tensor([0.1, torch.nan])}, "1 NaN or infinite values"),
        ({"preds": torch.tensor([0.1, 1.5])}, r"confidences in \[0, 1\].*Calibrate"),
        ({"known": torch.tensor([1, 5])}, "`known` to be at least 2"),
        ({"right": torch.tensor([6, 1])}, "`right` to be between 0 and `known`"),
        ({"right": torch.tensor([1])}, r"same shape \[question\]"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Tensor], message: str) -> None:
    good = {"preds": torch.tensor([0.1, 0.2]), "right": torch.tensor([1, 2]), "known": torch.tensor([5, 5])}
    with pytest.raises(ValueError, match=message):
        F.debiased_brier(**(good | change))


@pytest.mark.parametrize(
    "function",
    [
        F.capability_auroc,
        F.debiased_brier,
        F.response_brier,
        F.prediction_rejection_ratio,
        partial(F.brier_skill, reference=0.4),
        partial(F.recall_at_fpr, max_fpr=0.01),
    ],
)
def test_metrics_over_batches_equal_the_function_over_all(function: Callable[..., Tensor]) -> None:
    metric, (f, right, known, _) = QuestionMetric(function), simulated()
    for rows in torch.arange(60).split(7):
        metric.update(f[rows], right[rows], known[rows])
    assert float(metric.compute()) == pytest.approx(float(function(f, right, known)), abs=1e-6)


def test_the_ceiling_exists_with_right_answers_to_a_single_question() -> None:
    value, low, high = F.auroc_ceiling(torch.tensor([2, 0, 0, 0]), torch.tensor([4] * 4))
    assert low <= value <= high
