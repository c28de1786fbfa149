"""Tests of calibration, baselines, the linear probe and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from datamodules import FeatureDataModule
from extract.errors import InputError
from probes.baselines.registry import available, baselines_of, confidence
from probes.fitting.standardiser import standardiser
from probes.linear import Linear
from probes.report.evaluate import compare
from probes.report.plots import by_layer
from probes.report.report import Report
from tests.helpers.fitting import fit


@pytest.fixture
def drafts() -> None:
    """Save pictures at full quality."""


@pytest.fixture(scope="module")
def data(small_store: Path) -> FeatureDataModule:
    module = FeatureDataModule(str(small_store))
    module.setup()
    return module


@pytest.fixture(scope="module")
def fitted(data: FeatureDataModule) -> Linear:
    return fit(data)


@pytest.fixture(scope="module")
def report(data: FeatureDataModule, fitted: Linear) -> Report:
    return Report(fitted, data, seed=0, n_resamples=100)


def test_the_linear_probe_equals_a_penalised_logistic_regression(data: FeatureDataModule) -> None:
    module = fit(data, epochs=120, l2=0.1, lr=0.1)
    train = data.batch("train")
    mean, scale = standardiser(train.features)
    x = ((train.features - mean) / scale)[:, 2].double().numpy()
    p = (train.right / train.known).double().numpy()
    n = len(p)
    reference = LogisticRegression(C=1 / (0.1 * n), tol=1e-10, max_iter=10_000).fit(
        np.r_[x, x], np.r_[np.ones(n), np.zeros(n)], np.r_[p, 1 - p]
    )
    np.testing.assert_allclose(module.weight[0, 2].detach().numpy(), reference.coef_[0], atol=5e-3)


def test_the_probe_finds_the_planted_layer_and_direction(report: Report) -> None:
    figures = report.record["splits"]["test"]["capability"]
    assert figures["linear"]["auroc"]["low"] > 0.5
    assert figures["linear"]["auroc"]["value"] > figures["base_rate"]["auroc"]["value"]
    assert figures["linear"]["brier_skill"]["value"] > 0


def test_a_constant_feature_is_left_out_and_not_amplified() -> None:
    features = torch.randn(50, 1, 4)
    features[:, 0, 1] = 1000.0
    features[:, 0, 2] = 1000.0 + 1e-4 * torch.randn(50)  # rounding noise of a constant
    mean, scale = standardiser(features)
    z = (features - mean) / scale
    assert torch.equal(z[:, 0, 1:3], torch.zeros(50, 2))
    assert torch.allclose(z[:, 0, [0, 3]].std(0), torch.ones(2))


def test_features_whose_sum_exceeds_float32_are_standardised() -> None:
    features = torch.randn(50, 1, 4)
    features[:, 0, 1] = 3e38 - 1e38 * torch.rand(50)
    mean, scale = standardiser(features)
    z = (features - mean) / scale
    assert torch.allclose(z.mean(0), torch.zeros(1, 4), atol=1e-5)
    assert torch.allclose(z.std(0), torch.ones(1, 4))


def test_the_choice_and_the_calibrator_depend_only_on_validation_data(fitted: Linear, small_store: Path) -> None:
    other = FeatureDataModule(str(small_store))
    other.setup()
    other.batch("test").right[:] = 0  # regardless of the test split
    other.batch("test").target[:] = 0
    same, first = fit(other).choice, fitted.choice
    assert same is not None
    assert first is not None
    assert (same.names, same.value) == (first.names, first.value)
    assert str(same.calibrator) == str(first.calibrator)


def test_shuffled_labels_give_one_half(small_store: Path) -> None:
    shuffled = FeatureDataModule(str(small_store))
    shuffled.setup()
    rng = np.random.default_rng(3)
    order = rng.permutation(120)
    shuffled.table.right[:] = shuffled.table.right[order]
    for split, rows in shuffled.split_rows.items():
        batch = shuffled.batch(split)
        batch.right[:] = torch.from_numpy(shuffled.table.right).float()[rows]
        batch.target[:] = batch.right / batch.known
    figures = Report(fit(shuffled), shuffled, seed=0, n_resamples=100).record["splits"]["test"]["capability"]["linear"]
    assert figures["auroc"]["low"] <= 0.5 <= figures["auroc"]["high"]


def test_a_checkpoint_gives_the_same_confidences(data: FeatureDataModule, tmp_path: Path) -> None:
    module = Linear(l2=0.1)
    trainer = L.Trainer(
        max_epochs=5,
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, data)
    path = trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    loaded = Linear.load_from_checkpoint(path, weights_only=True)
    features = data.batch("test").features
    torch.testing.assert_close(
        loaded.candidate_scores(loaded.standardised(features)), module.candidate_scores(module.standardised(features))
    )


def test_baselines_are_confidences_from_training_and_validation_data_only(data: FeatureDataModule) -> None:
    for name in baselines_of("question"):
        if available(name, data):
            given = confidence(name, data)(data.split_rows)
            assert given.shape == (120,)
            assert ((given >= 0) & (given <= 1)).all(), name
    known = torch.cat([data.split_rows["train"], data.split_rows["val"]])
    accuracy = torch.from_numpy(data.table.accuracy)
    group = data.table.groups[0]
    members = [row for row in known.tolist() if data.table.groups[row] == group]
    assert float(confidence("base_rate", data)(data.split_rows)[0]) == pytest.approx(float(accuracy[members].mean()))
    assert float(confidence("constant", data)(data.split_rows)[5]) == pytest.approx(float(accuracy[known].mean()))


def test_a_pair_on_different_answers_is_refused(report: Report) -> None:
    with pytest.raises(ValueError, match="same grades"):
        compare("linear", "consistency", report.methods["linear"], report.methods["consistency"])


def test_the_report_is_complete_and_its_pictures_are_valid(
    data: FeatureDataModule, report: Report, tmp_path: Path
) -> None:
    pictures = report.write(tmp_path)
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["identity"] == data.store.sha256
    assert record["chosen"].keys() == {"layers", "position", "l2", "calibrator"}
    methods = record["splits"]["test"]["capability"]
    assert set(methods) == {"linear", *(name for name in baselines_of("question") if available(name, data))}
    for figures in methods.values():
        assert {
            "auroc",
            "auroc_ceiling",
            "auroc_hard",
            "brier",
            "brier_skill",
            "ece_width",
            "ece_mass",
            "spearman",
            "prr_50",
            "recall_at_fpr_1",
        } < set(figures)
        assert figures["n_questions"] == 24
        for metric in ("auroc", "brier", "prr_50", "auprc"):
            assert figures[metric]["low"] <= figures[metric]["value"] <= figures[metric]["high"]
        for metric in ("ece_width", "ece_mass", "rmsce"):
            assert figures[metric]["value"] >= 0
            assert figures[metric]["low"] is figures[metric]["high"] is None
    assert methods["linear"]["n_samples"] == 144
    assert methods["consistency"]["n_samples"] == 72
    assert {(row["a"], row["b"]) for row in record["paired"]} == {
        ("linear", name) for name in baselines_of("question") if available(name, data)
    }
    assert set(pictures) == {"reliability", "roc", "layers", "accuracy"}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in pictures.values())
    text = (tmp_path / "report.md").read_text()
    assert all(f"plots/{name}.png" in text for name in pictures)


def test_the_plot_by_layer_names_its_metrics_and_the_layers_of_the_probe() -> None:
    interval = {"value": 0.7, "low": 0.6, "high": 0.8}
    intervals = {"auroc": [interval] * 2, "brier": [interval] * 2}
    names = ["3/last_prompt", "4/last_prompt"]
    for layers, label in ([3], "chosen on validation: layer 3"), ([3, 4], "average of layers 3 to 4"):
        figure = by_layer("linear", names, intervals, layers, [interval, interval], {})
        assert [axes.get_ylabel() for axes in figure.axes] == ["capability AUROC", "Brier score (debiased)"]
        assert label in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_predictions_are_those_of_the_saved_probe(data: FeatureDataModule, report: Report) -> None:
    rows = report.predictions().to_pylist()
    probe = report.probe()
    (layer,) = probe.layers
    hidden = data.store.signals.read("hidden", f"{layer}/{probe.position}")
    expected = dict(zip(data.table.ids, probe.confidences(hidden).confidence.tolist(), strict=True))
    assert len(rows) == 120
    for row in rows:
        assert row["linear"] == pytest.approx(expected[row["question_id"]], abs=1e-6)


@pytest.mark.parametrize("l2", [[], [-1.0], -0.1, float("nan"), [0.1, float("inf")]])
def test_impossible_penalties_are_refused(l2: Any) -> None:
    with pytest.raises(InputError, match="`l2` to be one or more finite, non-negative penalties"):
        Linear(l2=l2)
