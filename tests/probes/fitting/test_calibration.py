"""Compare calibrators with scikit-learn, SciPy and loops, and check the validation of saved calibrators."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from extract.errors import InputError
from probes.fitting.calibration import (
    base_rate_calibrator,
    cross_fitted_losses,
    fit_calibrator,
    fit_isotonic,
    fit_platt,
    fit_platt_many,
    fit_temperature,
)
from probes.saved.calibrators import CALIBRATORS, Calibrator, Isotonic, Platt, Temperature

KINDS = sorted(CALIBRATORS)


def simulated(n: int = 300, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-odds that are twice too large, and the counts of right and known answers."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0.5, 3, n)
    known = rng.integers(1, 11, n)
    return torch.tensor(score), torch.tensor(rng.binomial(known, 1 / (1 + np.exp(-score / 2)))), torch.tensor(known)


def loss(calibrator: Calibrator, score: Tensor, right: Tensor, known: Tensor) -> float:
    """Return the negative log-likelihood of the answers, in nats."""
    f = calibrator(score)
    return float(-(right * f.log() + (known - right) * (1 - f).log()).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_increases_the_likelihood_matches_the_mean_and_keeps_the_order(kind: str) -> None:
    score, right, known = simulated()
    calibrator = fit_calibrator(kind, score, right, known)
    assert type(calibrator) is CALIBRATORS[kind]
    assert calibrator.problem() is None
    assert loss(calibrator, score, right, known) < loss(Platt(1.0, 0.0), score, right, known) - 20
    assert float((known * calibrator(score)).sum() / right.sum()) == pytest.approx(1, abs=0.05)
    f = calibrator(torch.linspace(-20, 20, 1000, dtype=torch.float64))
    assert (f.diff() >= 0).all()
    assert ((f > 0) & (f < 1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_confidences_have_the_shape_and_dtype_of_the_scores(kind: str) -> None:
    calibrator = fit_calibrator(kind, *simulated())
    score = torch.randn(4, 3, 2).transpose(0, 2)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        f = calibrator(score.to(dtype))
        assert (f.dtype, f.shape) == (dtype, score.shape)
    one = calibrator(score[0, 0, 0])
    assert one.shape == ()
    assert float(one) == float(calibrator(score)[0, 0, 0])
    assert calibrator(torch.tensor([torch.nan, 1.0])).isnan().tolist() == [True, False]
    assert calibrator(torch.tensor([torch.inf, -torch.inf])).isfinite().all()


def test_joint_fits_equal_single_fits_and_scikit_learn() -> None:
    score, right, known = simulated()
    noise = torch.tensor(np.random.default_rng(1).normal(size=(4, 300)))
    candidates = torch.cat(
        [torch.stack([score, score * 100 + 7, -score, score * 0 + 3, score * torch.nan]), score + 3 * noise]
    )
    slope, intercept = fit_platt_many(candidates, right, known)
    base = float(torch.logit(right.sum() / known.sum().double()))
    for i in range(len(candidates)):
        alone = fit_platt(candidates[i], right, known)
        assert [float(slope[i]), float(intercept[i])] == pytest.approx(
            [float(alone.slope), float(alone.intercept)], abs=1e-9
        )
    assert slope[2:5].tolist() == [0, 0, 0]
    assert intercept[2:5].tolist() == pytest.approx([base] * 3, abs=1e-12)
    for i in (0, 1, 5, 8):
        exploded = LogisticRegression(C=1e10, tol=1e-10, max_iter=1000).fit(
            np.r_[candidates[i], candidates[i]][:, None],
            np.r_[np.ones(300), np.zeros(300)],
            np.r_[right, known - right],
        )
        exact = fit_platt_many(candidates[i : i + 1], right, known, ridge=0)
        assert float(exact[0][0]) == pytest.approx(exploded.coef_[0, 0], rel=1e-4)
        assert float(exact[1][0]) == pytest.approx(exploded.intercept_[0], abs=1e-3)


def test_the_slope_is_finite_if_scores_separate_right_from_wrong_answers() -> None:
    score, known = torch.linspace(-1, 1, 20), torch.full((20,), 4)
    right = (score > 0) * 4
    assert 1 < float(fit_platt(score, right, known).slope) < 1e4
    assert 1e-4 < float(fit_temperature(score, right, known).temperature) < 1


def test_the_temperature_maximises_the_likelihood() -> None:
    score, right, known = simulated()
    found = fit_temperature(score, right, known)
    best = minimize_scalar(
        lambda log: loss(Temperature(np.exp(log)), score, right, known),
        bounds=(-3, 5),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert float(found.temperature) == pytest.approx(np.exp(best.x), rel=3e-3)  # except for the small penalty
    assert float(found.temperature) == pytest.approx(2, abs=0.3)
    assert float(fit_temperature(score * 1e3, right, known).temperature) == pytest.approx(
        float(found.temperature) * 1e3
    )


def test_temperature_scaling_gives_one_half_if_wrong_answers_have_higher_scores() -> None:
    score, right, known = simulated()
    for turned in (-score, score * 0):
        f = fit_temperature(turned, right, known)(turned)
        assert torch.allclose(f, torch.full_like(f, 0.5), atol=0.002)


def test_isotonic_regression_equals_scikit_learn_but_is_never_certain() -> None:
    score, right, known = simulated()
    score = score.round(decimals=1)
    right = torch.where(score < -3, 0, torch.where(score > 4, known, right))
    ours = fit_isotonic(score, right, known)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(score, right / known, known)
    grid = torch.linspace(-12, 12, 500, dtype=torch.float64)
    margin = 0.5 / float(known.sum())
    inner = (grid > -2.5) & (grid < 3.5)
    assert torch.allclose(ours(grid)[inner], torch.tensor(theirs.predict(grid))[inner], atol=1e-7)
    assert ours(grid)[[0, -1]].tolist() == pytest.approx([margin, 1 - margin])
    assert len(ours.x) < 60


def test_isotonic_regression_of_a_constant_or_falling_score_is_the_mean_accuracy() -> None:
    score, right, known = simulated()
    mean = float(right.sum() / known.sum())
    constant = fit_isotonic(torch.full_like(score, 2.0), right, known)
    assert constant(torch.tensor([-1.0, 2.0, 9.0])).tolist() == pytest.approx([mean] * 3)
    assert constant.problem() is None
    falling = fit_isotonic(torch.arange(300.0), torch.where(torch.arange(300) < 150, known, 0), known)
    assert falling.y.unique().numel() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_only_right_or_only_wrong_answers_give_the_base_rate(kind: str) -> None:
    score, _, known = simulated()
    margin = 0.5 / float(known.sum())
    for right, base_rate in ((known * 0, margin), (known, 1 - margin)):
        confidence = fit_calibrator(kind, score, right, known)(score)
        assert confidence.tolist() == pytest.approx([base_rate] * len(score), abs=1e-12)


def test_impossible_fits_give_a_one_line_error() -> None:
    score, right, known = simulated()
    with pytest.raises(InputError, match=r"at least 30 rows.*but got 29.*Use the `platt` calibrator"):
        fit_isotonic(score[:29], right[:29], known[:29])


@pytest.mark.parametrize("kind", KINDS)
def test_the_cross_fitted_loss_is_computed_on_rows_outside_the_fit(kind: str) -> None:
    score, right, known = simulated()
    calibrator, new = fit_calibrator(kind, score, right, known), simulated(3000, seed=1)
    p = new[1] / new[2]
    f = calibrator(new[0])
    of_new_rows = float(-(p * f.log() + (1 - p) * (1 - f).log()).mean())
    rows = torch.arange(300)
    assert float(cross_fitted_losses(kind, score, right, known, rows).mean()) == pytest.approx(of_new_rows, rel=0.1)
    few = [values[:35] for values in (score, right, known, rows)]  # too few for isotonic regression without a fifth
    assert torch.equal(cross_fitted_losses(kind, *few), cross_fitted_losses(None, *few)) == (kind == "isotonic")
    # all rows belong to one question, which is held out as a whole, so none are left for the fit
    same = cross_fitted_losses(kind, score, right, known, torch.zeros(300, dtype=torch.int64))
    assert same.tolist() == pytest.approx([math.log(2)] * 300)


def test_the_base_rate_is_the_mean_accuracy_and_never_0_or_1() -> None:
    score, right, known = simulated()
    n = float(known.sum())
    for counts, rate in ((right, float(right.sum()) / n), (known * 0, 0.5 / n), (known, 1 - 0.5 / n)):
        assert base_rate_calibrator(counts, known)(score).tolist() == pytest.approx([rate] * len(score))
    assert float(base_rate_calibrator(right[:0], known[:0])(score[:1])) == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_calibrator_is_restored_from_its_saved_tensors(kind: str) -> None:
    calibrator = fit_calibrator(kind, *simulated())
    saved = calibrator.state_dict()
    assert {tensor.dtype for tensor in saved.values()} == {torch.float64}
    again = CALIBRATORS[kind].of_zeros(len(saved["x"]) if kind == "isotonic" else 0)
    again.load_state_dict(saved)
    score = torch.randn(100)
    assert torch.equal(again(score), calibrator(score))
    assert repr(again) == repr(calibrator)


@pytest.mark.parametrize(
    ("calibrator", "problem"),
    [
        (Platt(-0.1, 0.0), "`slope` is -0.1, below 0"),
        (Platt(1.0, float("nan")), "`intercept` contains nan"),
        (Temperature(0.0), "`temperature` is 0.0, not above 0"),
        (Temperature(float("inf")), "`temperature` contains inf"),
        (Isotonic([0.0, 0.0], [0.1, 0.2]), "`x` is not increasing"),
        (Isotonic([-1.7e308, 1.7e308], [0.1, 0.2]), "`x` is not increasing"),
        (Isotonic([0.0, 1.0], [0.2, 0.1]), "`y` is decreasing"),
        (Isotonic([0.0, 1.0], [0.2, 1.1]), "`y` contains 1.1, outside [0, 1]"),
        (Isotonic([0.0, float("nan")], [0.2, 0.3]), "`x` contains nan"),
        (Isotonic([0.0, 1.0], [0.2]), "`x` has the shape [2] and `y` has the shape [1]"),
        (Isotonic([], []), "`x` has the shape [0] and `y` has the shape [0]"),
    ],
)
def test_values_that_no_fit_can_give_are_named(calibrator: Calibrator, problem: str) -> None:
    assert calibrator.problem() == problem
