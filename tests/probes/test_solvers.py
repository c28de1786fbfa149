"""The solvers against scikit-learn, loops in float64, and what must hold whatever the data."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from extract.errors import InputError
from probes.fitting import newton, solvers

PENALTIES = [0.001, 0.01, 0.1, 1.0, 10.0]


def problem(rows=60, d=90, features=3, seed=0):
    """Float32 features of very different spread and mean, soft labels of 10 answers, uneven weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(features, rows, d, generator=generator) * torch.logspace(0, -1, d) + torch.randn(
        features, 1, d, generator=generator
    )
    direction = torch.randn(features, d, generator=generator) / math.sqrt(d)
    p = torch.sigmoid(3 * (x @ direction[..., None])[0, :, 0])
    target = torch.binomial(torch.full_like(p, 10), p, generator=generator) / 10
    return x, target, torch.rand(rows, generator=generator) + 0.5


def sklearn_logistic(x, target, weight, penalty):
    """A soft label is two rows of weights y and 1 − y. The default solver, L-BFGS, stops 3e-4 short in the bias."""
    x, target, weight = (tensor.double().numpy() for tensor in (x, target, weight))
    model = LogisticRegression(C=1 / (penalty * weight.sum()), tol=1e-10, solver="newton-cholesky")
    labels = np.repeat([1, 0], len(target))
    model.fit(np.concatenate([x, x]), labels, np.concatenate([weight * target, weight * (1 - target)]))
    return model.coef_[0], model.intercept_[0]


def sklearn_ridge(x, target, weight, penalty):
    x, target, weight = (tensor.double().numpy() for tensor in (x, target, weight))
    model = Ridge(alpha=penalty * weight.sum()).fit(x, target, weight)
    return model.coef_, model.intercept_


@pytest.mark.parametrize(("rows", "d"), [(40, 90), (120, 30), (50, 50)], ids=["wide", "tall", "square"])
@pytest.mark.parametrize(("solve", "reference"), [(solvers.logistic, sklearn_logistic), (solvers.ridge, sklearn_ridge)])
def test_coefficients_are_those_of_scikit_learn(solve, reference, rows, d):
    x, target, weight = problem(rows, d, features=2)
    w, b = solve(x, target, weight, PENALTIES)
    assert (w.shape, b.shape) == ((5, 2, d), (5, 2))
    assert w.dtype == b.dtype == torch.float32
    for place, penalty in enumerate(PENALTIES):
        for feature in range(2):
            coefficients, intercept = reference(x[feature], target, weight, penalty)
            assert np.abs(w[place, feature].numpy() - coefficients).max() < 1e-4
            assert abs(float(b[place, feature]) - intercept) < 1e-4


def test_logistic_ends_where_the_gradient_is_0():
    x, target, weight = problem()
    x = x.double()
    w, b = solvers.logistic(x, target, weight, PENALTIES)
    share = (weight / weight.sum()).double()
    logits = torch.einsum("frd,pfd->pfr", x, w) + b[..., None]
    pull = share * (torch.sigmoid(logits) - target)
    gradient = torch.einsum("pfr,frd->pfd", pull, x) + torch.tensor(PENALTIES)[:, None, None] * w
    assert gradient.norm(dim=-1).max() < 1e-5
    assert pull.sum(-1).abs().max() < 1e-6


@pytest.mark.parametrize("solve", [solvers.logistic, solvers.ridge])
def test_a_large_penalty_leaves_the_mean_alone(solve):
    x, target, weight = problem()
    w, b = solve(x, target, weight, [1e7])
    mean = (weight * target).sum() / weight.sum()
    expected = torch.logit(mean) if solve is solvers.logistic else mean
    assert w.abs().max() < 1e-5
    assert torch.allclose(b, expected.expand_as(b), atol=1e-4)


def test_a_balanced_logistic_without_information_says_half():
    x = torch.zeros(2, 20, 3)
    w, b = solvers.logistic(x, torch.arange(20) % 2.0, torch.ones(20), [0.1])
    assert not w.any()
    assert not b.any()


SOLVERS = {
    "logistic": lambda x, y, v: solvers.logistic(x, y, v, PENALTIES),
    "ridge": lambda x, y, v: solvers.ridge(x, y, v, PENALTIES),
    "difference of means": solvers.difference_of_means,
}
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS.keys())


@every_solver
def test_layers_are_solved_each_for_itself(solve):
    x, target, weight = problem(features=4)
    order = [2, 0, 3, 1]
    w, b = solve(x, target, weight)
    permuted = solve(x[order], target, weight)
    alone = [solve(x[[feature]], target, weight) for feature in order]
    assert torch.allclose(permuted[0], w[:, order], atol=1e-5)
    assert torch.allclose(permuted[1], b[:, order], atol=1e-5)
    assert torch.allclose(torch.cat([one[0] for one in alone], 1), w[:, order], atol=1e-5)


@every_solver
def test_the_order_of_rows_and_the_scale_of_weights_do_not_matter(solve):
    x, target, weight = problem()
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(1))
    for a, b in zip(solve(x, target, weight), solve(x[:, order], target[order], 7 * weight[order]), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@every_solver
def test_a_weight_of_2_is_a_row_twice_and_a_weight_of_0_no_row(solve):
    x, target, _ = problem()
    weight = torch.ones(len(target))
    weight[:5], weight[5:9] = 2, 0
    places = torch.cat([torch.arange(5), torch.arange(5), torch.arange(9, len(target))])
    for a, b in zip(
        solve(x, target, weight), solve(x[:, places], target[places], torch.ones(len(places))), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-5)


@every_solver
def test_the_same_call_gives_the_same_bits_and_leaves_its_arguments(solve):
    x, target, weight = problem()
    kept = x.clone(), target.clone(), weight.clone()
    first, second = solve(x, target, weight), solve(x, target, weight)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept, (x, target, weight), strict=True))


@every_solver
def test_a_constant_coordinate_gets_no_weight(solve):
    x, target, weight = problem()
    x[:, :, 4] = 0  # what an infinite scale makes of it
    assert solve(x, target, weight)[0][:, :, 4].abs().max() < 1e-12


def test_separable_classes_end_at_a_finite_direction():
    x = torch.linspace(-1, 1, 20)[None, :, None] * torch.tensor([1.0, 1000.0])[:, None, None]
    target = (x[0, :, 0] > 0).float()
    w, b = solvers.logistic(x, target, torch.ones(20), [1e-4, 1.0])
    assert w.isfinite().all()
    assert (w > 0).all()
    assert ((x[None, ..., 0] * w + b[..., None] > 0) == (target > 0)).all()
    expected, _ = sklearn_logistic(x[0], target, torch.ones(20), 1e-4)
    assert float(w[0, 0, 0]) == pytest.approx(float(expected[0]), abs=1e-4)


def test_difference_of_means_is_what_a_loop_gives():
    x, target, weight = problem()
    w, b = solvers.difference_of_means(x, target, weight)
    assert (w.shape, b.shape) == ((1, 3, 90), (1, 3))
    for feature in range(3):
        right, wrong, n_right, n_wrong = np.zeros(90), np.zeros(90), 0.0, 0.0
        for row in range(len(target)):
            y, v, point = float(target[row]), float(weight[row]), x[feature, row].double().numpy()
            right, n_right = right + v * y * point, n_right + v * y
            wrong, n_wrong = wrong + v * (1 - y) * point, n_wrong + v * (1 - y)
        right, wrong = right / n_right, wrong / n_wrong
        assert np.abs(w[0, feature].numpy() - (right - wrong)).max() < 1e-6
        assert float(b[0, feature]) == pytest.approx(-(right - wrong) @ (right + wrong) / 2, abs=1e-6)


def test_what_has_no_answer_is_refused_in_one_line(monkeypatch):
    x, target, weight = problem()
    holed = x.clone()
    holed[1, 2, 3] = math.nan
    cases = [
        ((holed, target, weight, [0.1]), "finite `features`, but 1 of 60 rows"),
        ((x, target, weight, [0.1, 0.0]), "penalties above 0"),
    ]
    for solve in (solvers.logistic, solvers.ridge):
        for arguments, message in cases:
            with pytest.raises(InputError, match=message) as error:
                solve(*arguments)
            assert "\n" not in str(error.value)
    for answer in (0.0, 1.0):
        one = torch.full_like(target, answer)
        with pytest.raises(InputError, match=f"all 60 rows with a weight are {answer:g}"):
            solvers.logistic(x, one, weight, [0.1])
        with pytest.raises(InputError, match=f"all 60 rows with a weight are {answer:g}"):
            solvers.difference_of_means(x, one, weight)
    monkeypatch.setattr(newton, "MOST_STEPS", 1)
    with pytest.raises(InputError, match=r"Expected `l2` to be large enough .* 2 of 2 had not after 1 steps"):
        solvers.logistic(x, target, weight, [0.001, 0.01])
