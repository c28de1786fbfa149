"""Tests of the average over layers: comparison with scikit-learn, its inputs, saving, and how pages name its layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from datamodules import FeatureDataModule
from probes import load_probe
from probes.fitting.quiet import quiet_lightning
from probes.layer_average import LayerAverage
from probes.report.report import Report, report_page
from probes.report.templates import spans
from probes.saved.card import model_card
from tests.helpers.fitting import descend
from tests.helpers.planted import planted
from tests.helpers.synthetic import add_answer_signals, make_store


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataModule:
    """Make a store with seven layers."""
    folder = tmp_path_factory.mktemp("stores") / "planted"
    add_answer_signals(make_store(folder, *planted(layers=7)))
    module = FeatureDataModule(str(folder))
    module.setup()
    return module


def fitted(data: FeatureDataModule, **options: float) -> LayerAverage:
    quiet_lightning()
    module = LayerAverage(**options)
    descend(module, data, epochs=1, every=10)
    return module


@pytest.fixture(scope="module")
def module(data: FeatureDataModule) -> LayerAverage:
    return fitted(data)


@pytest.fixture(scope="module")
def report(data: FeatureDataModule, module: LayerAverage) -> Report:
    return Report(module, data, seed=0, n_resamples=5)


@pytest.mark.slow
def test_scores_are_the_mean_of_scikit_learns_ridges_of_the_upper_half(
    data: FeatureDataModule, module: LayerAverage
) -> None:
    rows, test = data.batch("train", "val"), data.batch("test").features.double().numpy()
    scores = module.candidate_scores(module.standardised(data.batch("test").features))[:, :, -1]
    for penalty, found in zip(module.penalties, scores, strict=True):
        predicted = []
        for layer in (3, 4, 5, 6):
            x = rows.features[:, layer].double().numpy()
            mean, deviation = x.mean(0), x.std(0, ddof=1)
            ridge = Ridge(alpha=penalty * len(x)).fit((x - mean) / deviation, (rows.right / rows.known).numpy())
            predicted.append(ridge.predict((test[:, layer] - mean) / deviation))
        np.testing.assert_allclose(found.detach(), np.mean(predicted, 0), atol=1e-5)


@pytest.mark.slow
def test_only_the_average_can_be_chosen(data: FeatureDataModule, module: LayerAverage) -> None:
    """Check this where a single layer is better, because only the last layer is planted."""
    assert module.choice is not None
    assert module.val_loss is not None
    assert module.choice.layers == [3, 4, 5, 6]
    assert module.choice.position == "last_prompt"
    assert module.val_loss.shape == (5, 8)
    assert float(module.val_loss[:, 6].min()) < float(module.val_loss[:, 7].min())
    assert module.confidences_by_feature(data.batch("test").features).shape == (24, 7)


@pytest.mark.parametrize(
    ("layers", "averaged"), [([6], [6]), ([1, 6], [6]), ([1, 2, 6], [2, 6]), ([6, 0, 3, 1], [3, 6])]
)
def test_the_upper_half_refers_to_the_layers_that_are_read(
    data: FeatureDataModule, layers: list[int], averaged: list[int]
) -> None:
    some = FeatureDataModule(data.store_path, layers=layers)
    some.setup()
    choice = fitted(some, l2=1.0).choice
    assert choice is not None
    assert choice.layers == averaged


def test_each_position_is_a_candidate(data: FeatureDataModule) -> None:
    answers = FeatureDataModule(data.store_path, target="response", positions=["last_answer", "mean_answer"])
    answers.setup()
    module = fitted(answers)
    named = [[answers.feature_names[feature] for feature in features] for features in module.inputs[4:]]
    assert named == [["1/last_answer"], ["1/mean_answer"]]
    assert module.choice is not None
    assert module.choice.position == "last_answer"  # where the answer's grade is planted


def test_a_token_signal_can_be_the_only_input(data: FeatureDataModule) -> None:
    tokens = FeatureDataModule(data.store_path, target="response", signal="tokens")
    tokens.setup()
    module = fitted(tokens)
    assert module.choice is not None
    assert (module.choice.layers, module.choice.position) == ([], None)
    batch = tokens.batch("test")
    single = module.confidences_by_feature(batch.features)[:, 0]
    torch.testing.assert_close(module.predict(batch.features), single)


@pytest.mark.slow
def test_a_saved_probe_gives_the_confidences_of_predict(
    data: FeatureDataModule, module: LayerAverage, report: Report, tmp_path: Path
) -> None:
    probe = load_probe(report.probe().save(tmp_path / "probe", "card"))
    assert probe.layers == [3, 4, 5, 6]
    assert probe.config["format_version"] == 6
    states = {key: data.store.signals.read("hidden", key) for key in data.store.signals.keys("hidden")}
    features = probe.features({"hidden": states})
    assert features.shape == (120, 32)
    every = data.every()
    torch.testing.assert_close(
        probe.confidences(features).confidence[every.row], module.predict(every.features), atol=1e-6, rtol=0
    )


@pytest.mark.slow
def test_the_report_and_the_card_name_the_layers_and_how_the_questions_were_used(report: Report) -> None:
    page, card = report_page(report.record, []), model_card(report.probe().config)
    for text in (page, card):
        assert "the hidden states of layers 3–6 at `last_prompt`" in text
    assert "96 questions. Their out-of-fold scores were used to choose the L2 penalty" in page
    assert "trained on 96 questions" in card
    assert "L2 penalty was chosen on out-of-fold scores of these questions" in card
    assert report.figures().keys() == {"reliability", "roc", "accuracy", "layers"}


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([0], "layer 0"),
        ([3, 4], "layers 3–4"),
        ([3, 5], "layers 3, 5"),
        ([0, 1, 2, 7, 9, 10], "layers 0–2, 7, 9–10"),
    ],
)
def test_consecutive_layers_are_named_as_a_span(layers: list[int], named: str) -> None:
    assert spans(layers) == named
