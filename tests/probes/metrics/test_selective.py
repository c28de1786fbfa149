"""Compare metrics of selective prediction and error detection with loops, scikit-learn and published definitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from probes.metrics import functional as F
from probes.metrics.intervals import resample_weights
from probes.report.evaluate import CAPABILITY, METRICS
from tests.helpers.planted import simulated

PRR_50 = partial(F.prediction_rejection_ratio, max_rejection=0.5)
NAMES = ("aurc", "e_aurc", "prr", "prr_50", "auprc", "recall_at_fpr_1", "recall_at_fpr_5")


def remaining(order: list[int], quality: np.ndarray, most: float) -> np.ndarray:
    """Return the mean quality of the first N, N − 1, … questions, until a fraction `most` of them is rejected."""
    n = len(order)
    return np.array([quality[order[: n - r]].mean() for r in range(int(most * n))])


def orders_of(f: list[float]) -> list[list[int]]:
    """Return all orders in which higher scores come first."""
    return [list(o) for o in permutations(range(len(f))) if all(f[a] >= f[b] for a, b in pairwise(o))]


@pytest.mark.parametrize("shuffled", [False, True])
def test_areas_are_averages_over_the_orders_of_ties(shuffled: bool) -> None:
    f = torch.tensor([0.9, 0.5, 0.5, 0.5, 0.1, 0.1, 0.7, 0.5])
    right, known = torch.tensor([3, 0, 4, 1, 2, 0, 2, 3]), torch.full((8,), 4)
    if shuffled:
        f, right = (values[torch.randperm(8, generator=torch.Generator().manual_seed(0))] for values in (f, right))
    p = (right / 4).double().numpy()
    for most, ratio in ((1.0, F.prediction_rejection_ratio), (0.5, PRR_50)):
        area = np.mean([remaining(order, p, most).mean() for order in orders_of(f.tolist())])
        oracle = remaining(np.argsort(-p).tolist(), p, most).mean()
        expected = (area - p.mean()) / (oracle - p.mean())
        assert float(ratio(f, right, known)) == pytest.approx(expected, abs=1e-12)
        if most == 1:
            assert float(F.aurc(f, right, known)) == pytest.approx(1 - area, abs=1e-12)
            assert float(F.e_aurc(f, right, known)) == pytest.approx(oracle - area, abs=1e-12)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("most", [1.0, 0.5, 0.25])
def test_the_rejection_ratio_equals_that_of_lm_polygraph(most: float, single: bool) -> None:
    f, right, known, _ = simulated(ties=False)
    f = f + torch.linspace(0, 1e-9, 60)  # the clipped ones tie
    if single:
        right, known = (right / known > 0.5).long(), torch.ones_like(known)
    quality = (right / known).double().numpy()
    ours = float(F.prediction_rejection_ratio(f, right, known, max_rejection=most))
    # rejection curves of the scores, of the qualities and of a random order
    curve, oracle = (remaining(np.argsort(-s).tolist(), quality, most) for s in (f.numpy(), quality))
    assert ours == pytest.approx((curve - quality.mean()).sum() / (oracle - quality.mean()).sum(), abs=1e-6)


def test_half_of_an_odd_number_of_rejections_is_interpolated() -> None:
    f, right, known, _ = simulated(61, ties=False)
    f, quality = f + torch.linspace(0, 1e-9, 61), (right / known).double().numpy()
    neighbours = [
        float(F.prediction_rejection_ratio(f, right, known, max_rejection=count / 61)) for count in (30, 30.5, 31)
    ]
    curve, oracle = (remaining(np.argsort(-s).tolist(), quality, 0.5) for s in (f.numpy(), quality))
    theirs = (curve - quality.mean()).sum() / (oracle - quality.mean()).sum()
    assert neighbours[0] == pytest.approx(theirs, abs=1e-6)
    assert min(neighbours[0], neighbours[2]) < float(PRR_50(f, right, known)) < max(neighbours[0], neighbours[2])
    assert float(PRR_50(f, right, known)) == neighbours[1]


def test_malinins_ratio_of_single_answers_is_twice_the_auroc_minus_one() -> None:
    rng = np.random.default_rng(0)
    f, wrong = rng.random(80), rng.integers(0, 2, 80)
    errors = [np.r_[0, wrong[np.argsort(s)].cumsum()] for s in (-f, wrong)]  # by questions kept, as a share of all
    random = wrong.sum() * np.arange(81) / 80
    ours, oracle = (np.trapezoid(random - curve) for curve in errors)
    assert ours / oracle == pytest.approx(2 * roc_auc_score(1 - wrong, f) - 1, abs=1e-12)


def test_the_best_order_has_no_excess_area_and_a_ratio_of_one() -> None:
    _, right, known, _ = simulated()
    for metric, best in ((F.e_aurc, 0), (F.prediction_rejection_ratio, 1), (PRR_50, 1)):
        assert float(metric(right / known, right, known)) == pytest.approx(best, abs=1e-12)
        assert float(metric(-right / known, right, known)) != pytest.approx(best, abs=0.1)


def test_the_excess_area_subtracts_the_area_of_the_oracle_in_the_paper() -> None:
    y, risk = torch.arange(10_000) % 5 > 0, 0.2
    area, excess = (float(metric(torch.zeros(10_000), y, torch.ones(10_000))) for metric in (F.aurc, F.e_aurc))
    assert area - excess == pytest.approx(risk + (1 - risk) * np.log(1 - risk), abs=1e-4)


@pytest.mark.parametrize("max_fpr", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("case", ["single", "single with ties", "questions", "resample"])
def test_detection_of_wrong_answers_equals_scikit_learn(case: str, max_fpr: float) -> None:
    f, right, known, _ = simulated(300, ties=case != "single")
    if case.startswith("single"):
        right, known = (right / known > 0.5).long(), torch.ones_like(known)
    weights = resample_weights(300, 1, 0)[0] if case == "resample" else torch.ones(300, dtype=torch.float64)
    p = right.double() / known
    wrong, score = np.r_[np.ones(300), np.zeros(300)], np.r_[-f, -f]
    share = np.r_[weights * (1 - p), weights * p]
    expected = average_precision_score(wrong, score, sample_weight=share)
    assert float(F.auprc(f, right, known, weights)) == pytest.approx(expected, abs=1e-12)
    fpr, tpr, _ = roc_curve(wrong, score, sample_weight=share, drop_intermediate=False)
    expected = np.interp(max_fpr + 1e-13, fpr, tpr)  # where the curve is vertical, its highest point
    assert float(F.recall_at_fpr(f, right, known, weights, max_fpr)) == pytest.approx(expected, abs=1e-9)


def test_detection_of_wrong_answers_equals_a_loop_over_thresholds() -> None:
    f, right, known, _ = simulated()
    p = right.double() / known
    detected = flagged = false = area = recall = 0.0
    for score in f.unique():
        wrong, rest = float((1 - p)[f == score].sum()), float(p[f == score].sum())
        allowed = 0.05 * float(p.sum()) - false
        recall += wrong * min(max(allowed / rest, 0), 1) if rest else wrong * (allowed >= 0)
        detected, flagged, false = detected + wrong, flagged + wrong + rest, false + rest
        area += wrong * detected / flagged
    assert float(F.auprc(f, right, known)) == pytest.approx(area / detected, abs=1e-12)
    assert float(F.recall_at_fpr(f, right, known)) == pytest.approx(recall / detected, abs=1e-12)


def test_wrong_answers_below_all_right_ones_are_detected_without_false_positives() -> None:
    y, f = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0.1, 0.2, 0.4, 0.3, 0.5])
    assert float(F.recall_at_fpr(f, y, torch.ones(5), max_fpr=0.01)) == pytest.approx(2 / 3)
    assert float(F.recall_at_fpr(f, y, torch.ones(5), max_fpr=0)) == pytest.approx(2 / 3)
    assert float(F.recall_at_fpr(f, y, torch.ones(5), max_fpr=0.5)) == 1
    one_wrong = torch.arange(101) != 29  # in floating point, 0.29 · 100 is less than 29
    assert float(F.recall_at_fpr(torch.arange(101.0), one_wrong, torch.ones(101), max_fpr=0.29)) == 1
    assert float(F.auprc(f, y, torch.ones(5))) == pytest.approx((1 + 1 + 3 / 4) / 3, abs=1e-12)


@pytest.mark.slow
def test_the_area_of_questions_is_the_expected_area_of_a_random_answer_to_each() -> None:
    f, right, known, _ = simulated()
    drawn = torch.rand(4000, 60, generator=torch.Generator().manual_seed(0)) < right / known
    both = torch.arange(120) < 60  # a right and a wrong answer to each question, of which one has weight 0
    areas = F.aurc(f.repeat(2), both, torch.ones(120), torch.cat([drawn, ~drawn], 1))
    assert float(areas.mean()) == pytest.approx(float(F.aurc(f, right, known)), abs=4 * float(areas.std()) / 4000**0.5)


@pytest.mark.parametrize("name", ["auprc", "recall_at_fpr_1", "recall_at_fpr_5"])
def test_detection_over_many_questions_is_that_of_a_random_answer_to_each(name: str) -> None:
    f, right, known, _ = simulated(4000)
    drawn = torch.rand(200, 4000, generator=torch.Generator().manual_seed(0)) < right / known
    values = torch.stack([CAPABILITY[name](f, answers, torch.ones(4000)) for answers in drawn])
    tolerance = 4 * float(values.std()) / 200**0.5 + 1e-3  # a ratio is biased by O(1/N)
    assert float(values.mean()) == pytest.approx(float(CAPABILITY[name](f, right, known)), abs=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_order_of_the_scores_matters(name: str) -> None:
    f, right, known, _ = simulated()
    weights, order = resample_weights(60, 5, 0), torch.randperm(60, generator=torch.Generator().manual_seed(0))
    expected = CAPABILITY[name](f, right, known, weights)
    for scores in (f**3, (10 * f).exp()):
        assert torch.equal(CAPABILITY[name](scores, right, known, weights), expected)
    permuted = CAPABILITY[name](f[order], right[order], known[order], weights[:, order])
    assert torch.allclose(permuted, expected, atol=1e-12, rtol=0)


def test_a_constant_has_the_score_of_chance() -> None:
    _, right, known, _ = simulated()
    constant, risk = torch.full((60,), 0.3), float((1 - right.double() / known).mean())
    chance = {"aurc": risk, "prr": 0, "prr_50": 0, "auprc": risk, "recall_at_fpr_1": 0.01, "recall_at_fpr_5": 0.05}
    for name, value in chance.items():
        assert float(CAPABILITY[name](constant, right, known)) == pytest.approx(value, abs=1e-12), name


def test_a_better_order_has_a_smaller_area() -> None:
    f, right, known, p = simulated()
    mean = float((1 - right.double() / known).mean())
    assert float(F.aurc(p, right, known)) < float(F.aurc(f, right, known)) < mean < float(F.aurc(-f, right, known))


@pytest.mark.parametrize("name", NAMES[2:])
def test_without_right_or_wrong_answers_most_metrics_are_undefined(name: str) -> None:
    f, _, known, _ = simulated()
    assert torch.isnan(CAPABILITY[name](f, known, known))
    none_right = CAPABILITY[name](f, torch.zeros_like(known), known)
    assert torch.isnan(none_right) if name != "auprc" else none_right == 1


@pytest.mark.parametrize("name", NAMES)
def test_weights_mean_copies(name: str) -> None:
    f, right, known, _ = simulated(20)
    weights = resample_weights(20, 30, 0)
    for one, of_many in zip(weights, CAPABILITY[name](f, right, known, weights), strict=True):
        copies = torch.repeat_interleave(torch.arange(20), one.long())
        copied = float(CAPABILITY[name](f[copies], right[copies], known[copies]))
        assert float(of_many) == pytest.approx(copied, abs=1e-9)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_with_respect_to_a_weight_is_the_influence_of_the_question(name: str, ties: bool) -> None:
    metric: Callable[..., Tensor] = CAPABILITY[name]
    f, right, known, _ = simulated(20, ties=ties)
    weights = torch.ones(20, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(metric(f, right, known, weights), weights)
    for question in range(20):
        step = torch.zeros(20, dtype=torch.float64)
        step[question] = 1e-6
        higher, lower = (metric(f, right, known, weights.detach() + sign * step) for sign in (1, -1))
        assert float(gradient[question]) == pytest.approx(float(higher - lower) / 2e-6, abs=1e-7)


def test_selective_metrics_are_reported_for_questions_and_answers() -> None:
    assert set(NAMES) <= set(METRICS["capability"])
    assert set(NAMES) <= set(METRICS["response"])
