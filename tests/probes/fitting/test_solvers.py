"""Compare the solvers with scikit-learn and float64 loops, and check properties that hold for all data."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from extract.errors import InputError
from probes.fitting import newton, solvers

PENALTIES = [0.001, 0.01, 0.1, 1.0, 10.0]


def problem(rows=60, d=90, features=3, seed=0):
    """Return float32 features with very different spreads and means, and soft labels from 10 answers."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(features, rows, d, generator=generator) * torch.logspace(0, -1, d) + torch.randn(
        features, 1, d, generator=generator
    )
    direction = torch.randn(features, d, generator=generator) / math.sqrt(d)
    p = torch.sigmoid(3 * (x @ direction[..., None])[0, :, 0])
    target = torch.binomial(torch.full_like(p, 10), p, generator=generator) / 10
    return x, target


def sklearn_logistic(x, target, penalty):
    """Fit soft labels as two rows with weights y and 1 − y.

    The default solver, L-BFGS, stops with an error of 3e-4 in the bias.
    """
    x, target = (tensor.double().numpy() for tensor in (x, target))
    model = LogisticRegression(C=1 / (penalty * len(target)), tol=1e-10, solver="newton-cholesky")
    labels = np.repeat([1, 0], len(target))
    model.fit(np.concatenate([x, x]), labels, np.concatenate([target, 1 - target]))
    return model.coef_[0], model.intercept_[0]


def sklearn_ridge(x, target, penalty):
    x, target = (tensor.double().numpy() for tensor in (x, target))
    model = Ridge(alpha=penalty * len(target)).fit(x, target)
    return model.coef_, model.intercept_


@pytest.mark.parametrize(("rows", "d"), [(40, 90), (120, 30), (50, 50)], ids=["wide", "tall", "square"])
@pytest.mark.parametrize(("solve", "reference"), [(solvers.logistic, sklearn_logistic), (solvers.ridge, sklearn_ridge)])
def test_coefficients_equal_those_of_scikit_learn(solve, reference, rows, d):
    x, target = problem(rows, d, features=2)
    w, b = solve(x, target, PENALTIES)
    assert (w.shape, b.shape) == ((5, 2, d), (5, 2))
    assert w.dtype == b.dtype == torch.float32
    for place, penalty in enumerate(PENALTIES):
        for feature in range(2):
            coefficients, intercept = reference(x[feature], target, penalty)
            assert np.abs(w[place, feature].numpy() - coefficients).max() < 1e-4
            assert abs(float(b[place, feature]) - intercept) < 1e-4


@pytest.mark.parametrize("change", ["none", "equal rows", "two dimensions"])
def test_logistic_regression_ends_where_the_gradient_is_0(change):
    x, target = problem()
    if change == "equal rows":  # with different targets, and a singular Gram matrix
        x[:, 30:] = x[:, :30].clone()
    elif change == "two dimensions":
        x = x[..., :2] @ x[:, :2]
    x = x.double()
    w, b = solvers.logistic(x, target, PENALTIES)
    logits = torch.einsum("frd,pfd->pfr", x, w) + b[..., None]
    pull = (torch.sigmoid(logits) - target) / len(target)
    gradient = torch.einsum("pfr,frd->pfd", pull, x) + torch.tensor(PENALTIES)[:, None, None] * w
    assert gradient.norm(dim=-1).max() < 1e-5
    assert pull.sum(-1).abs().max() < 1e-6


@pytest.mark.parametrize("solve", [solvers.logistic, solvers.ridge])
def test_a_large_penalty_leaves_only_the_mean(solve):
    x, target = problem()
    w, b = solve(x, target, [1e7])
    mean = target.mean()
    expected = torch.logit(mean) if solve is solvers.logistic else mean
    assert w.abs().max() < 1e-5
    assert torch.allclose(b, expected.expand_as(b), atol=1e-4)


def test_balanced_logistic_regression_without_information_predicts_one_half():
    x = torch.zeros(2, 20, 3)
    w, b = solvers.logistic(x, torch.arange(20) % 2.0, [0.1])
    assert not w.any()
    assert not b.any()


SOLVERS = {
    "logistic": lambda x, y: solvers.logistic(x, y, PENALTIES),
    "ridge": lambda x, y: solvers.ridge(x, y, PENALTIES),
    "difference of means": solvers.difference_of_means,
}
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS.keys())


@every_solver
def test_layers_are_solved_independently(solve):
    x, target = problem(features=4)
    order = [2, 0, 3, 1]
    w, b = solve(x, target)
    permuted = solve(x[order], target)
    alone = [solve(x[[feature]], target) for feature in order]
    assert torch.allclose(permuted[0], w[:, order], atol=1e-5)
    assert torch.allclose(permuted[1], b[:, order], atol=1e-5)
    assert torch.allclose(torch.cat([one[0] for one in alone], 1), w[:, order], atol=1e-5)


@every_solver
def test_the_size_of_chunks_does_not_matter(solve, monkeypatch):
    x, target = problem(features=5)
    found = []
    for n_features in (1, 2, 5):
        monkeypatch.setattr(solvers, "CPU_CHUNK_BYTES", n_features * 8 * x[0].numel())
        found.append(solve(x, target))
    for w, b in found[1:]:
        assert torch.allclose(w, found[0][0], atol=1e-6)
        assert torch.allclose(b, found[0][1], atol=1e-6)


@every_solver
def test_the_order_of_rows_does_not_matter(solve):
    x, target = problem()
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(1))
    for a, b in zip(solve(x, target), solve(x[:, order], target[order]), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@every_solver
def test_the_same_call_gives_the_same_bits_and_does_not_change_its_arguments(solve):
    x, target = problem()
    kept = x.clone(), target.clone()
    first, second = solve(x, target), solve(x, target)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept, (x, target), strict=True))


@every_solver
def test_a_constant_coordinate_gets_no_weight(solve):
    x, target = problem()
    x[:, :, 4] = 0  # the result of an infinite scale
    assert solve(x, target)[0][:, :, 4].abs().max() < 1e-12


def test_separable_classes_have_a_finite_solution():
    x = torch.linspace(-1, 1, 20)[None, :, None] * torch.tensor([1.0, 1000.0])[:, None, None]
    target = (x[0, :, 0] > 0).float()
    w, b = solvers.logistic(x, target, [1e-4, 1.0])
    assert w.isfinite().all()
    assert (w > 0).all()
    assert ((x[None, ..., 0] * w + b[..., None] > 0) == (target > 0)).all()
    expected, _ = sklearn_logistic(x[0], target, 1e-4)
    assert float(w[0, 0, 0]) == pytest.approx(float(expected[0]), abs=1e-4)


def test_separable_classes_with_a_tiny_penalty_converge():
    for seed in range(10):
        x = torch.randn(1, 20, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        target = torch.arange(20) % 2.0
        w, b = solvers.logistic(x, target, [1e-6])
        pull = torch.sigmoid(x[0] @ w[0, 0] + b[0]) - target
        assert (pull @ x[0] / 20 + 1e-6 * w[0, 0]).norm() < 1e-10


def test_the_other_penalties_do_not_change_a_fit():
    x = torch.randn(1, 5, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).repeat(1, 2, 1)
    target = (torch.arange(10) >= 5).double()
    target[0] = 1
    penalties = [1e6, 1e-6, 1e-2, 1e-2, 1e2]
    w, b = solvers.logistic(x, target, penalties)
    for place, penalty in enumerate(penalties):
        alone = solvers.logistic(x, target, [penalty])
        assert torch.allclose(w[place], alone[0][0], atol=1e-5)
        assert torch.allclose(b[place], alone[1][0], atol=1e-5)


def test_the_bias_is_accurate_if_few_answers_are_right():
    x = torch.randn(1, 1000, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    target = torch.zeros(1000)
    target[3] = 1
    w, b = solvers.logistic(x, target, [0.1, 1.0])
    for place, penalty in enumerate([0.1, 1.0]):
        coefficients, intercept = sklearn_logistic(x[0], target, penalty)
        assert np.abs(w[place, 0].numpy() - coefficients).max() < 1e-5
        assert abs(float(b[place, 0]) - intercept) < 2e-5


def test_an_error_does_not_change_the_number_of_threads(monkeypatch):
    x, target = problem()
    before = torch.get_num_threads()
    monkeypatch.setattr(newton, "MOST_STEPS", 1)
    with pytest.raises(InputError):
        solvers.logistic(x, target, [0.001])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before


def test_difference_of_means_equals_a_loop():
    x, target = problem()
    w, b = solvers.difference_of_means(x, target)
    assert (w.shape, b.shape) == ((1, 3, 90), (1, 3))
    for feature in range(3):
        right, wrong, n_right, n_wrong = np.zeros(90), np.zeros(90), 0.0, 0.0
        for row in range(len(target)):
            y, point = float(target[row]), x[feature, row].double().numpy()
            right, n_right = right + y * point, n_right + y
            wrong, n_wrong = wrong + (1 - y) * point, n_wrong + 1 - y
        right, wrong = right / n_right, wrong / n_wrong
        assert np.abs(w[0, feature].numpy() - (right - wrong)).max() < 1e-6
        assert float(b[0, feature]) == pytest.approx(-(right - wrong) @ (right + wrong) / 2, abs=1e-6)


def test_unsolvable_problems_give_a_one_line_error(monkeypatch):
    x, target = problem()
    for solve in (solvers.logistic, solvers.ridge):
        with pytest.raises(InputError, match="penalties above 0") as error:
            solve(x, target, [0.1, 0.0])
        assert "\n" not in str(error.value)
    for answer in (0.0, 1.0):
        one = torch.full_like(target, answer)
        with pytest.raises(InputError, match=f"all 60 values are {answer:g}"):
            solvers.logistic(x, one, [0.1])
        with pytest.raises(InputError, match=f"all 60 values are {answer:g}"):
            solvers.difference_of_means(x, one)
    monkeypatch.setattr(newton, "MOST_STEPS", 1)
    with pytest.raises(InputError, match=r"`l2` to be large enough .* 6 of 6 fits did not converge within 1 steps"):
        solvers.logistic(x, target, [0.001, 0.01])
