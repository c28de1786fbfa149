"""Tests of nearest neighbours: comparison with scikit-learn, ties, selection on validation data, and saving."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from datamodules import FeatureDataModule
from extract.errors import InputError
from extract.hashing import sha256_file
from probes import load_probe
from probes.knn import KNN
from probes.report.report import Report
from probes.saved.head import KNNHead, neighbour_means
from tests.helpers.fitting import descend


def problem(d: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, points and soft labels.

    Some queries are points, and some points occur twice with different labels.
    """
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(80, d, generator=generator) * 3 + 1
    points[70:] = points[:10]
    labels = torch.randint(11, (80,), generator=generator) / 10
    return torch.cat([torch.randn(40, d, generator=generator) * 3 + 1, points[5:20]]), points, labels


def by_hand(query: np.ndarray, points: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Compute the score of a query in a loop. Points at the same distance share the remaining places."""
    distances = [math.dist(query, point) for point in points]
    edge = sorted(distances)[k - 1]
    n_nearer, n_tied = sum(one < edge for one in distances), sum(one == edge for one in distances)
    share = [1.0 if one < edge else (k - n_nearer) / n_tied if one == edge else 0.0 for one in distances]
    here = [s if one == 0 else 0.0 for one, s in zip(distances, share, strict=True)]
    weight = here if any(here) else [s / one if s else 0.0 for one, s in zip(distances, share, strict=True)]
    return float(np.dot(weight, labels) / sum(weight))


@pytest.mark.parametrize("d", [1, 6, 200])
def test_soft_labels_give_the_values_of_scikit_learns_regressor(d: int) -> None:
    queries, points, labels = problem(d)
    distances = (
        torch.cdist(queries.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist").sort(1).values
    )
    for k in (1, 2, 25, 80):
        model = KNeighborsRegressor(k, weights="distance").fit(points.double().numpy(), labels.double().numpy())
        # for duplicate points, the choice of the last neighbour is arbitrary there
        sure = distances[:, k - 1] < distances[:, k] - 1e-9 if k < 80 else torch.ones(55, dtype=torch.bool)
        assert sure.sum() > 30
        [ours] = neighbour_means(queries, points, labels, [k])
        expected = model.predict(queries.double().numpy())
        np.testing.assert_allclose(ours[sure], expected[sure.numpy()], atol=1e-6)


def test_labels_of_0_and_1_give_the_values_of_scikit_learns_classifier() -> None:
    queries, points, labels = problem()
    points, hard = points[:70], (labels[:70] > 0.5).long()
    head = KNNHead(6, 70, 25).filled(points=points, labels=hard)
    model = KNeighborsClassifier(25, weights="distance").fit(points.double().numpy(), hard.numpy())
    expected = model.predict_proba(queries.double().numpy())[:, 1]
    np.testing.assert_allclose(head(queries), expected, atol=1e-6)


def test_a_training_row_gets_its_label_and_duplicates_get_their_mean() -> None:
    _, points, labels = problem(200)
    at_points = neighbour_means(points, points, labels, [2, 25])
    twice = (labels[:10] + labels[70:]) / 2
    expected = torch.cat([twice, labels[10:70], twice]).double()
    torch.testing.assert_close(at_points, expected.expand(2, 80), atol=1e-7, rtol=0)


def test_points_at_the_same_distance_share_the_remaining_places_in_any_order() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randint(-2, 3, (60, 2), generator=generator).float()  # on a grid: nearly all are tied
    labels = torch.rand(60, generator=generator)
    queries = torch.randint(-4, 5, (40, 2), generator=generator).float() / 2
    for k in (1, 4, 20, 59, 60):
        [ours] = neighbour_means(queries, points, labels, [k])
        expected = [by_hand(one, points.numpy(), labels.numpy(), k) for one in queries.numpy()]
        np.testing.assert_allclose(ours, expected, atol=1e-9)
        order = torch.randperm(60, generator=generator)
        torch.testing.assert_close(neighbour_means(queries, points[order], labels[order], [k])[0], ours)


def test_chunks_and_several_numbers_of_neighbours_do_not_change_values(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, points, labels = problem()
    whole = neighbour_means(queries, points, labels, [1, 3, 25])
    alone = torch.cat([neighbour_means(queries, points, labels, [k]) for k in [1, 3, 25]])
    torch.testing.assert_close(alone, whole)
    monkeypatch.setattr("probes.saved.head.CHUNK", 100)
    torch.testing.assert_close(neighbour_means(queries, points, labels, [1, 3, 25]), whole)


def test_a_head_accepts_any_leading_axes_and_dtypes_and_keeps_missing_rows_missing() -> None:
    queries, points, labels = problem()
    head = KNNHead(6, 80, 3).filled(points=points, labels=labels, mean=torch.ones(6), scale=torch.full((6,), 2.0))
    head.scale[2] = torch.inf
    flat = head(queries)
    assert flat.dtype == torch.float32
    assert torch.equal(head(queries.reshape(5, 11, 6)), flat.reshape(5, 11))
    assert head(queries[0]).shape == ()
    assert head(queries.bfloat16()).isfinite().all()
    queries[3] = torch.nan
    assert head(queries).isnan().nonzero().flatten().tolist() == [3]


# The probe


def fitted(data: FeatureDataModule, **options: Any) -> KNN:
    module = KNN(**options)
    descend(module, data, epochs=1, every=1)
    return module


@pytest.mark.slow
def test_every_candidate_equals_scikit_learn_on_the_standardised_training_split(data: FeatureDataModule) -> None:
    module = fitted(data, n_neighbors=[5, 25])
    train, val = data.batch("train"), data.batch("val")
    scores = module.candidate_scores(module.standardised(val.features))
    assert scores.shape == (2, len(val.row), 3)
    for feature in range(3):
        x, new = train.features[:, feature].double().numpy(), val.features[:, feature].double().numpy()
        mean, deviation = x.mean(0), x.std(0, ddof=1)
        for place, k in enumerate([5, 25]):
            model = KNeighborsRegressor(k, weights="distance")
            model.fit((x - mean) / deviation, (train.right / train.known).numpy())
            expected = model.predict((new - mean) / deviation)
            np.testing.assert_allclose(scores[place, :, feature], expected, atol=1e-6)
            np.testing.assert_allclose(
                module.candidate_head(place, feature)(val.features[:, feature]), expected, atol=1e-6
            )


@pytest.mark.slow
def test_validation_chooses_layer_and_number_of_neighbours(data: FeatureDataModule) -> None:
    module = fitted(data, n_neighbors=[1, 5, 25])
    assert module.choice is not None
    assert module.val_loss is not None
    assert module.choice.names == ("2/last_prompt",)  # where the direction is planted
    assert float(module.val_loss.min()) == pytest.approx(float(module.val_loss[module.choice.candidate, 2]))
    assert module.choice.value > 1
    assert fitted(data).choice.value == 25


@pytest.mark.slow
def test_entropy_profiles_predict_correctness_and_the_saved_probe_agrees(store: Path, tmp_path: Path) -> None:
    data = FeatureDataModule(str(store), target="response", signal="entropy_profile", pooling=["mean"])
    data.setup()
    report = Report(fitted(data, n_neighbors=[5, 25, 75]), data, seed=0, n_resamples=20)
    assert report.figures_of["knn"]["auroc"]["value"] > 0.6
    report.write(tmp_path)
    config = json.loads((tmp_path / "probe/config.json").read_text())
    train = data.batch("train")
    assert config["head"] == "knn"
    assert config["sizes"] == {"n_rows": len(train.row), "n_neighbors": report.choice.value}
    probe = load_probe(tmp_path / "probe")
    batch = data.batch("test")
    assert torch.equal(probe.confidences(batch.features[:, 0]).confidence, report.module.predict(batch.features))
    torch.testing.assert_close(probe.head(train.features[:, 0]), train.target)


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", ["platt", "isotonic"])
def test_the_probe_is_calibrated_like_every_other_probe(store: Path, calibrator: str) -> None:
    data = FeatureDataModule(str(store), target="response", signal="entropy_profile")
    data.setup()
    module = fitted(data, calibrator=calibrator)
    batch = data.batch("test")
    confidence = module.predict(batch.features)
    assert ((confidence > 0) & (confidence < 1)).all()
    assert float(confidence.mean()) == pytest.approx(float(batch.target.mean()), abs=0.1)


@pytest.mark.slow
def test_a_checkpoint_restores_the_training_rows(data: FeatureDataModule, tmp_path: Path) -> None:
    module = KNN(n_neighbors=[5, 25])
    descend(module, data, epochs=1, every=1)
    module.trainer.save_checkpoint(tmp_path / "one.ckpt")
    again = KNN.load_from_checkpoint(tmp_path / "one.ckpt", weights_only=True)
    features = module.standardised(data.batch("test").features)
    assert torch.equal(again.candidate_scores(features), module.candidate_scores(features))
    assert not again.candidate_scores(features).eq(0).all()


@pytest.mark.parametrize("n_neighbors", [0, [], [5, 0], -3])
def test_invalid_numbers_of_neighbours_are_refused(n_neighbors: Any) -> None:
    with pytest.raises(InputError, match="`n_neighbors` to be one or more positive integers"):
        KNN(n_neighbors=n_neighbors)


def test_impossible_fits_are_refused(data: FeatureDataModule) -> None:
    with pytest.raises(InputError, match="`n_neighbors` to be at most 72, but got 75. There are only 72 training rows"):
        fitted(data, n_neighbors=[5, 75])
    with pytest.raises(InputError, match="`calibrator` of KNN to be one of platt, isotonic, but got 'temperature'"):
        KNN(calibrator="temperature")


# Saved heads that training cannot produce


@pytest.fixture(scope="module")
def probe_folder(data: FeatureDataModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    probe = Report(fitted(data, n_neighbors=5), data, seed=0, n_resamples=5).probe()
    return probe.save(tmp_path_factory.mktemp("saved") / "probe", "card")


@pytest.fixture
def saved(probe_folder: Path, tmp_path: Path) -> Path:
    """Return a saved probe that a test can alter."""
    return Path(shutil.copytree(probe_folder, tmp_path / "probe"))


def _restate(probe: Path, tensors: dict[str, torch.Tensor] | None = None, **sizes: int) -> None:
    """Write different tensors or sizes, with a matching checksum."""
    if tensors:
        save_file({**load_file(probe / "model.safetensors"), **tensors}, probe / "model.safetensors")
    config = json.loads((probe / "config.json").read_text())
    config["sizes"] |= sizes
    config["weights"] = sha256_file(probe / "model.safetensors")
    (probe / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensors", "sizes", "message"),
    [
        ({}, {"n_neighbors": 73}, "`n_neighbors` is 73, more than the 72 rows"),
        ({}, {"n_neighbors": 0}, "`sizes.n_neighbors` .* from 1 to"),
        ({}, {"n_rows": 71}, "`points` is torch.float32 of shape .72, 8., not"),
        ({}, {"n_rows": 2**24}, "`points` is torch.float32 of shape .72, 8., not"),  # takes no memory
        ({}, {"n_rows": 2**40}, "`sizes.n_rows`"),
        ({"labels": torch.full((72,), 1.5)}, {}, "`labels` contains 1.5"),
        ({"labels": torch.full((72,), -0.5)}, {}, "`labels` contains -0.5"),
        ({"labels": torch.full((72,), torch.nan)}, {}, "`labels` contains nan"),
        ({"points": torch.full((72, 8), torch.inf)}, {}, "`points` contains inf"),
        ({"points": torch.zeros(8, 72)}, {}, "`points` is torch.float32 of shape"),
    ],
)
def test_an_altered_saved_head_is_refused(
    saved: Path, tensors: dict[str, torch.Tensor], sizes: dict[str, int], message: str
) -> None:
    assert load_probe(saved).head.kind == "knn"
    _restate(saved, tensors, **sizes)
    with pytest.raises(InputError, match=message) as refused:
        load_probe(saved)
    assert str(refused.value).isprintable()


def test_a_trainer_fits_and_tests_the_probe_without_a_warning(data: FeatureDataModule) -> None:
    trainer = L.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    module = KNN()
    trainer.fit(module, data)
    [result] = trainer.test(module, data, verbose=False)
    assert 0.5 < result["test/auroc"] <= 1
