"""Compare fits to streamed features with scikit-learn, with float64 computations and with fits in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge

from datamodules import FeatureDataModule, batches, streamed_features
from extract.errors import InputError
from extract.store.signals import Signals
from probes.fitting import backoff, streamed_logistic
from probes.fitting.backoff import backed_off, fit_novelty
from probes.fitting.module import ProbeModule
from probes.fitting.quiet import quiet_lightning
from probes.fitting.streamed import fit_statistics, held_out_scores, ridge
from probes.fitting.sums import Column, outside_folds
from probes.fitting.training import N_FOLDS
from probes.registry import METHODS
from probes.report.report import Report
from tests.helpers.fitting import descend
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store

PENALTIES = [0.01, 0.1, 1.0]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the rows of the test stores into many chunks and buffers."""
    monkeypatch.setattr(streamed_features, "CHUNK_BYTES", 2**11)
    monkeypatch.setattr(batches, "BUFFER_BYTES", 2**13)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with coordinates of different means and spreads. One coordinate is constant."""
    features, accuracy = planted(260, layers=3, width=12, seed=1)
    features[:, 0] *= np.logspace(0, -3, 12, dtype=np.float32)
    features[:, 1] += 300
    features[:, 2, 5] = 7
    folder = tmp_path_factory.mktemp("streamed") / "store"
    make_store(folder, features, accuracy, block_size=48)
    return folder


@pytest.fixture
def make_data(store: Path) -> Callable[..., FeatureDataModule]:
    def make(**options: Any) -> FeatureDataModule:
        data = FeatureDataModule(str(store), **options)
        data.setup()
        return data

    return make


@pytest.fixture
def column(make_data: Callable[..., FeatureDataModule]) -> Callable[[int], Any]:
    """Return a function that returns a column, its targets, its folds and its values in float64."""

    def make(feature: int) -> Any:
        rows = make_data(in_memory=False).batch("train", "val")
        fold = torch.arange(len(rows.row)) % N_FOLDS
        values = rows.features.read()[:, feature].double().numpy()
        return Column(rows.features, feature), rows.target.double(), fold, values

    return make


def fitted(name: str, data: FeatureDataModule) -> ProbeModule:
    quiet_lightning()
    torch.manual_seed(0)
    module = METHODS[name].load()()
    return descend(module, data, epochs=4, every=2)


Fitted = Callable[..., tuple[ProbeModule, FeatureDataModule]]


@pytest.fixture(scope="module")
def fit_once(store: Path) -> Fitted:
    """Return a function that fits a probe on first use, and returns it with its datamodule. Tests must not change it.

    It must be called in a test, where the chunks are small.
    """

    @cache
    def fit(name: str, **options: Any) -> tuple[ProbeModule, FeatureDataModule]:
        data = FeatureDataModule(str(store), **options)
        data.setup()
        return fitted(name, data), data

    return fit


def standardised(values: Any) -> Any:
    spread = values.std(0, ddof=1)
    return (values - values.mean(0)) / np.where(spread > 1e-6 * np.abs(values).max(0), spread, np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("feature", [0, 1, 2], ids=["spreads", "large means", "constant"])
def test_statistics_equal_float64_moments(column: Callable[[int], Any], feature: int) -> None:
    one, target, fold, values = column(feature)
    found = list(outside_folds(one, target, fold, products=True))
    assert len(found) == N_FOLDS + 1
    for number, statistics in enumerate(found):
        rows = (fold != number).numpy()
        z, y = standardised(values[rows]), target.numpy()[rows]
        np.testing.assert_allclose(statistics.mean.numpy(), values[rows].mean(0), rtol=1e-6)
        np.testing.assert_allclose(statistics.covariance.numpy(), z.T @ z / len(z), atol=2e-7)
        np.testing.assert_allclose(statistics.cross.numpy(), z.T @ (y - y.mean()) / len(z), atol=2e-7)
        assert abs(float(statistics.target) - y.mean()) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("feature", [0, 1])
@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_coefficients_equal_those_of_scikit_learn(column: Callable[[int], Any], feature: int, method: str) -> None:
    one, target, fold, values = column(feature)
    if method == "ridge":
        fits = fit_statistics(one, target, fold, lambda statistics: ridge(statistics, PENALTIES))
    else:
        fits = streamed_logistic.logistic(one, target, fold, PENALTIES)
    for number in range(N_FOLDS + 1):
        rows = (fold != number).numpy()
        z, y = standardised(values[rows]), target.numpy()[rows]
        for place, penalty in enumerate(PENALTIES):
            if method == "ridge":
                model = SklearnRidge(alpha=penalty * len(z)).fit(z, y)
            else:
                model = LogisticRegression(C=1 / (penalty * len(z)), tol=1e-12, solver="newton-cholesky")
                model.fit(np.r_[z, z], np.repeat([1, 0], len(z)), np.r_[y, 1 - y])
            assert np.abs(fits.weight[number, place].numpy() - model.coef_).max() < 2e-6
            assert abs(float(fits.bias[number, place]) - float(np.squeeze(model.intercept_))) < 5e-5


@pytest.mark.slow
def test_out_of_fold_scores_come_from_the_fits_to_the_other_folds(
    column: Callable[[int], Any], make_data: Callable[..., FeatureDataModule]
) -> None:
    one, target, fold, values = column(0)
    fits = fit_statistics(one, target, fold, lambda statistics: ridge(statistics, PENALTIES))
    features = make_data(in_memory=False).batch("train", "val").features
    found = held_out_scores(features, 0, fits, fold)
    for row in (0, 1, 57):
        mean, scale, weight, bias = (part[fold[row]].double().numpy() for part in fits)
        np.testing.assert_allclose(found[row].numpy(), weight @ ((values[row] - mean) / scale) + bias, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ridge", "logistic", "difference_of_means", "layer_average", "linear", "counts", "mlp"]
)
def test_a_streamed_probe_equals_the_probe_in_memory(fit_once: Fitted, name: str) -> None:
    (memory, data), (streamed, streamed_data) = fit_once(name), fit_once(name, in_memory=False, num_workers=1)
    assert memory.choice is not None
    assert streamed.choice is not None
    assert (memory.choice.names, memory.choice.value) == (streamed.choice.names, streamed.choice.value)
    test = [one.batch("test").features for one in (data, streamed_data)]
    found = [
        backed_off(module, fit_novelty(module), rows) for module, rows in zip((memory, streamed), test, strict=True)
    ]
    by_feature = [module.confidences_by_feature(rows) for module, rows in zip((memory, streamed), test, strict=True)]
    for one, other in zip((*found[0], by_feature[0]), (*found[1], by_feature[1]), strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "logistic", "difference_of_means", "linear"])
def test_a_probe_does_not_depend_on_the_number_of_workers(fit_once: Fitted, name: str) -> None:
    one, other = (fit_once(name, in_memory=False, num_workers=n)[0] for n in (1, 7))
    assert save(other.state_dict()) == save(one.state_dict())
    assert str(other.choice) == str(one.choice)


@pytest.mark.slow
def test_the_report_is_that_in_memory(fit_once: Fitted) -> None:
    memory, streamed = (
        Report(*fit_once("linear", **options), seed=0, n_resamples=5)
        for options in ({}, {"in_memory": False, "num_workers": 7})
    )
    for key, confidences in memory.confidences.items():
        torch.testing.assert_close(streamed.confidences[key], confidences, atol=1e-6, rtol=0, equal_nan=True)
    torch.testing.assert_close(streamed.novelties, memory.novelties, atol=1e-6, rtol=0, equal_nan=True)
    assert streamed.record.keys() == memory.record.keys()
    assert streamed.figures().keys() == memory.figures().keys()


@pytest.mark.slow
def test_a_closed_form_fit_reads_each_feature_twice(
    make_data: Callable[..., FeatureDataModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the sums and once for the scores. The first rows are also read for the reference."""
    data, read, original = make_data(in_memory=False), [0], Signals.read_rows

    def spy(*arguments: Any) -> torch.Tensor:
        rows = original(*arguments)
        read[0] += len(rows)
        return rows

    monkeypatch.setattr(Signals, "read_rows", spy)
    monkeypatch.setattr("probes.fitting.sums.REFERENCE_ROWS", 8)
    descend(METHODS["ridge"].load()(), data, epochs=1, every=1)
    n = len(data.table.ids)
    assert read[0] <= 3 * (2 * n + 16)


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [2**26, 4 * 12 * 100], ids=["all rows", "100 rows"])
def test_the_novelty_is_fitted_to_evenly_spaced_rows_that_fit_into_memory(
    fit_once: Fitted, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(backoff, "MOST_BYTES", most_bytes)
    used: list[int] = []
    fit = backoff.fit_backoff

    def spy(features: torch.Tensor, *arguments: Any) -> Any:
        used.append(len(features))
        return fit(features, *arguments)

    monkeypatch.setattr(backoff, "fit_backoff", spy)
    modules = [fit_once("ridge", **options)[0] for options in ({}, {"in_memory": False, "num_workers": 7})]
    found = [fit_novelty(module).state_dict() for module in modules]
    assert used == [208, 208] if most_bytes == 2**26 else [70, 70]  # every third row
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_a_broader_probe_equals_that_in_memory(make_data: Callable[..., FeatureDataModule], tmp_path: Path) -> None:
    features, accuracy = planted(90, layers=3, width=12, seed=2)
    make_store(tmp_path / "other", features, accuracy, name="other")
    both = [make_data(in_memory=in_memory, broader=[str(tmp_path / "other")]) for in_memory in (True, False)]
    found = [fit_novelty(fitted("layer_average", data)).broader for data in both]
    assert found[0] is not None
    assert found[1] is not None
    torch.testing.assert_close(dict(found[1].state_dict()), dict(found[0].state_dict()), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_logistic_regression_with_fewer_rows_than_coordinates_converges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_features, "CHUNK_BYTES", 2**24)
    make_store(tmp_path / "store", *planted(120, layers=1, width=300, seed=2))
    found = []
    for in_memory in (True, False):
        data = FeatureDataModule(str(tmp_path / "store"), in_memory=in_memory)
        data.setup()
        found.append(fitted("logistic", data).predict(data.every().features))
    torch.testing.assert_close(*found, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_if_all_targets_of_a_fit_are_equal_its_weights_are_0(column: Callable[[int], Any]) -> None:
    one, _, fold, _ = column(0)
    target = (fold == 1).double()  # all 0 outside fold 1
    for fits in (
        fit_statistics(one, target, fold, lambda statistics: ridge(statistics, PENALTIES)),
        streamed_logistic.logistic(one, target, fold, PENALTIES),
    ):
        assert not fits.weight[1].any()
        assert not fits.bias[1].any()
        assert fits.weight[[0, 2, 3, 4, 5]].abs().sum((1, 2)).min() > 0


@pytest.mark.slow
def test_penalties_without_a_unique_solution_are_refused(make_data: Callable[..., FeatureDataModule]) -> None:
    for name in ("ridge", "logistic"):
        with pytest.raises(InputError, match="`l2` to contain only penalties above 0"):
            descend(METHODS[name].load()(l2=0.0), make_data(in_memory=False), epochs=1, every=1)


def test_a_penalty_that_is_too_small_for_convergence_is_refused(
    column: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_logistic, "MOST_PASSES", 3)
    one, target, fold, _ = column(0)
    with pytest.raises(InputError, match="did not converge within 3 passes. The smallest penalty is 0.001"):
        streamed_logistic.logistic(one, target, fold, [0.001, 1.0])


@pytest.mark.parametrize("name", ["knn", "latent"])
def test_probes_that_need_all_rows_are_refused(make_data: Callable[..., FeatureDataModule], name: str) -> None:
    module = METHODS[name].load()()
    with pytest.raises(InputError, match=f"`in_memory` to be true for {type(module).__name__}"):
        descend(module, make_data(in_memory=False), epochs=1, every=1)


def test_constant_features_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "store", np.ones((80, 2, 4), np.float32), np.full(80, 0.5))
    data = FeatureDataModule(str(tmp_path / "store"), in_memory=False)
    with pytest.raises(InputError, match="features to vary within the training split"):
        descend(METHODS["ridge"].load()(), data, epochs=1, every=1)
