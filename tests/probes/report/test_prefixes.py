"""Tests of training on prefixes of answers and of the results by fraction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score

from datamodules import FeatureDataModule
from probes.comparison.folds import fit
from probes.fitting.backoff import fit_novelty
from probes.fitting.calibration import fit_platt
from probes.registry import METHODS
from probes.report.prefixes import by_fraction, length_quantiles, prefix_curves
from probes.saved.novelty import flat
from tests.helpers.token_states import token_store


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataModule:
    """Return answers with evidence in single tokens, which can be in any part of the answer."""
    store = token_store(tmp_path_factory.mktemp("store") / "made", n=100, longest=16)
    data = FeatureDataModule(str(store.path), target="response", signal="hidden_tokens", prefixes=True)
    data.setup()
    return data


@pytest.mark.slow
def test_results_by_fraction_are_those_of_each_prefix(data: FeatureDataModule) -> None:
    module = fit(lambda: METHODS["multimax"].load()(lr=0.03, l2=0.01), data, epochs=15, seed=0)
    assert module.choice is not None
    rows = by_fraction(module, data, n_resamples=100, seed=0)
    test, val = (data.batch(split, prefixes=True) for split in ("test", "val"))
    layer, head = module.choice.layers[0], module.head()
    for row, calibrator in zip(rows, (*module.choice.prefixes, module.choice.calibrator), strict=True):
        part = test.take(test.fraction == row["fraction"])
        of_val = val.take(val.fraction == row["fraction"])
        with torch.no_grad():
            score, fitted = (
                head(part.features[:, layer]),
                fit_platt(head(of_val.features[:, layer]), of_val.right, of_val.known),
            )
        np.testing.assert_allclose(fitted(score).numpy(), calibrator(score).numpy(), atol=1e-4)
        right, confidence = part.right.numpy(), calibrator(score).double().numpy()
        assert row["auroc"]["value"] == pytest.approx(roc_auc_score(right, confidence), abs=1e-6)
        assert row["brier"]["value"] == pytest.approx(brier_score_loss(right, confidence), abs=1e-6)
        whole = module.choice.calibrator(score).double().numpy()
        assert row["brier_whole"]["value"] == pytest.approx(brier_score_loss(right, whole), abs=1e-6)
    auroc = [row["auroc"]["value"] for row in rows]
    assert auroc[0] < auroc[2] < auroc[3]
    assert auroc[3] > 0.8
    assert {axes.get_ylabel() for axes in prefix_curves(rows).axes} == {"AUROC", "Brier score"}


@pytest.mark.slow
def test_short_prefixes_are_not_novel(data: FeatureDataModule) -> None:
    module = fit(METHODS["multimax"].load(), data, epochs=1, seed=0)
    assert module.choice is not None
    test = data.batch("test", prefixes=True)
    features = flat(module.selected(test.features, module.choice.features))[test.fraction == 0.25]
    found = fit_novelty(module)(features, torch.full((len(features),), 0.5))
    assert found.is_novel.float().mean() < 0.1


def test_lengths_are_quantiles_of_the_answers_outside_the_test_split(data: FeatureDataModule) -> None:
    lengths = data.store.signals.read_ragged("hidden_tokens", "0/answer_tokens").lengths
    own = lengths[torch.cat([data.split_rows["train"], data.split_rows["val"]])]
    found = length_quantiles(data)
    assert len(found) == 101
    assert found == sorted(found)
    assert (found[0], found[50], found[-1]) == (own.min(), np.quantile(own, 0.5, method="nearest"), own.max())


@pytest.mark.slow
def test_a_probe_without_evidence_returns_the_base_rate_for_every_prefix(data: FeatureDataModule) -> None:
    shuffled = FeatureDataModule(
        data.store_path, target="response", signal="hidden", positions=["mean_answer"], prefixes=True
    )
    shuffled.setup()
    module = fit(METHODS["response"].load(), shuffled, epochs=1, seed=0)
    assert module.choice is not None
    assert module.warning is not None
    assert len(module.choice.prefixes) == 3
    base_rate = float(module.choice.calibrator(torch.zeros(1)))
    for calibrator in module.choice.prefixes:
        assert calibrator(torch.tensor([-5.0, 5.0])).tolist() == pytest.approx([base_rate] * 2)
