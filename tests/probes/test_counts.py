"""Tests of the probe that classifies the number of right answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule
from probes.counts import Counts, count_labels
from probes.metrics.functional import capability_auroc
from probes.saved.head import CountsHead, expected_log_odds
from tests.helpers.fitting import descend
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataModule:
    store = make_store(tmp_path_factory.mktemp("store") / "made", *planted(n=200), k=6)
    data = FeatureDataModule(str(store.path))
    data.setup()
    return data


def test_labels_are_one_hot_or_keep_the_mean() -> None:
    target = torch.tensor([0.0, 1 / 3, 0.4, 1.0])
    labels = count_labels(target, n_classes=7)
    torch.testing.assert_close(labels.sum(1), torch.ones(4))
    torch.testing.assert_close(labels @ torch.arange(7.0), 6 * target)
    torch.testing.assert_close(labels[1], torch.eye(7)[2], atol=1e-6, rtol=0)


def test_the_score_is_the_log_odds_of_the_expected_share() -> None:
    logits = torch.randn(50, 5) * 20
    p = np.exp(logits.double().numpy() - logits.double().numpy().max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    share = (p * np.arange(5)).sum(1) / 4
    expected = np.log(share) - np.log((p * (4 - np.arange(5))).sum(1) / 4)
    np.testing.assert_allclose(expected_log_odds(logits).numpy(), expected, atol=1e-3)


@pytest.mark.slow
def test_the_probe_finds_the_planted_layer_and_can_be_saved(data: FeatureDataModule, tmp_path: Path) -> None:
    module = descend(Counts(l2=[0.01, 0.1]), data, epochs=60, every=60, folder=tmp_path)
    batch = data.batch("test")
    assert module.choice is not None
    assert module.choice.layers == [2]
    with torch.no_grad():
        assert float(capability_auroc(module.predict(batch.features), batch.right, batch.known)) > 0.7
        head = module.head()
        assert isinstance(head, CountsHead)
        assert head.n_classes == 7
        scores = module.candidate_scores(module.standardised(batch.features))
        chosen = scores[module.choice.candidate, :, module.choice.features[0]]
        torch.testing.assert_close(head(batch.features[:, module.choice.features[0]]), chosen, atol=1e-5, rtol=0)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    loaded = Counts.load_from_checkpoint(checkpoint)
    torch.testing.assert_close(loaded.weight, module.weight)


def test_a_head_with_one_class_is_refused() -> None:
    assert CountsHead(3, 1).problem() == "`n_classes` is 1"
    assert CountsHead(3, 2).problem() is None
