"""Tests of the novelty of questions and of the back-off of confidences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from extract import InputError
from extract.hashing import sha256_file
from extract.models.loading import model_identity
from extract.store.ragged import Ragged
from probes import load_probe
from probes.fitting.backoff import fit_backoff
from probes.fitting.distance import principal
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.head import LinearHead
from probes.saved.novelty import Novelty, flat
from tests.helpers.altered_probes import _CONFIG


def made(n: int = 200, width: int = 6, seed: int = 0) -> Novelty:
    """Fit the novelty of random rows, whose right answers do not depend on the features."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 1, width, generator=generator)
    right, known = torch.randint(0, 5, (n,), generator=generator).float(), torch.full((n,), 4.0)
    return fit_backoff(features, width, right, known, torch.arange(n) % 5, torch.arange(n) % 3)


@pytest.fixture(scope="module")
def novelty() -> Novelty:
    return made()


@pytest.fixture
def saved(novelty: Novelty, tmp_path: Path) -> Path:
    config = {**_CONFIG, "d_model": 6, "sizes": {}, "calibrator": "platt", "novelty": novelty.sizes}
    return ConfidenceProbe(LinearHead(6), Platt(1.0, 0.0), config, None, novelty).save(tmp_path / "probe", "card")


def test_the_distance_is_a_mahalanobis_distance_if_all_directions_are_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 5, generator=generator) @ (torch.eye(5) + torch.randn(5, 5, generator=generator) / 4)
    fitted, x = principal(rows, 64), rows.double().numpy()
    standardised = (x - x.mean(0)) / x.std(0, ddof=1)
    values, vectors = np.linalg.eigh(standardised.T @ standardised / len(x))
    values[0] = values[:1].mean()  # `rest` is the variance of the one direction that is not kept
    expected = np.sqrt(((standardised @ vectors) ** 2 / values).sum(1) / 5)
    np.testing.assert_allclose(fitted.distance(rows).numpy(), expected, rtol=1e-4)


def test_novelty_is_the_fraction_of_less_novel_training_rows(novelty: Novelty) -> None:
    new = torch.randn(4000, 6, generator=torch.Generator().manual_seed(1))
    found = novelty(new, torch.full((4000,), 0.5))
    assert abs(float((found.novelty < 0.5).double().mean()) - 0.5) < 0.08
    assert 0 < float(found.is_novel.double().mean()) < 0.05
    assert bool(novelty(10 * new[:1], torch.tensor([0.5])).novelty == 1)


def test_novelty_increases_with_the_distance(novelty: Novelty) -> None:
    away = torch.linspace(0, 8, 50)[:, None] * torch.ones(6)
    values = novelty(away, torch.full((50,), 0.9)).novelty
    assert (values.diff() >= 0).all()


def test_the_back_off_moves_only_novel_confidences_towards_the_base_rate(novelty: Novelty) -> None:
    rows = torch.cat([torch.zeros(1, 6), 1e3 * torch.ones(1, 6)])
    confidence = torch.tensor([0.9, 0.9])
    found = novelty(rows, confidence)
    weight, base_rate = float(novelty.weight), float(novelty.base_rate)
    assert 0 < weight < 1
    assert found.is_novel.tolist() == [False, True]
    assert found.confidence[0] == confidence[0]
    assert float(found.confidence[1]) == pytest.approx((1 - weight) * 0.9 + weight * base_rate)
    raw = novelty(rows, confidence, backoff=False)
    assert torch.equal(raw.confidence, confidence)
    assert torch.equal(raw.novelty, found.novelty)


def test_the_back_off_is_partial_between_its_two_distances() -> None:
    novelty = made()
    novelty.full.copy_(2 * novelty.quantiles[99])
    steps = torch.linspace(0, 6, 400)[:, None] * torch.ones(6)
    confidence = novelty(steps, torch.full((400,), 0.99)).confidence
    assert (confidence.diff() <= 1e-6).all()
    assert len(confidence.unique()) > 50


def test_rows_without_features_have_no_novelty(novelty: Novelty) -> None:
    found = novelty(torch.full((1, 6), torch.nan), torch.tensor([torch.nan]))
    assert found.novelty.isnan().all()
    assert found.confidence.isnan().all()
    assert not found.is_novel.any()


def test_the_states_of_an_answer_are_averaged_over_its_tokens() -> None:
    rows = Ragged.of([torch.ones(2, 3), torch.zeros(0, 3), torch.tensor([[1.0, 2.0, 3.0]])])
    averaged = flat(rows)
    assert averaged[[0, 2]].tolist() == [[1, 1, 1], [1, 2, 3]]
    assert averaged[1].isnan().all()


def test_a_saved_novelty_is_the_same_after_loading(saved: Path, novelty: Novelty) -> None:
    rows, confidence = 2 * torch.randn(20, 6), torch.full((20,), 0.5)
    loaded = load_probe(saved)
    assert loaded.novelty is not None
    for ours, theirs in zip(loaded.novelty(rows, confidence), novelty(rows, confidence), strict=True):
        assert torch.equal(ours, theirs)
    found = loaded.confidences(1e3 * torch.ones(1, 6))
    assert found.is_novel.all()
    assert float(found.confidence) != float(loaded.confidences(1e3 * torch.ones(1, 6), backoff=False).confidence)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight", 1.5, r"`novelty.weight` is 1.5, outside \[0, 1\]"),
        ("base_rate", -0.1, r"`novelty.base_rate` is -0.1\d*, outside"),
        ("variances", 0.0, "`novelty.variances` contains 0.0"),
        ("variances", torch.inf, "`novelty.variances` contains inf"),
        ("full", 0.0, "`novelty.full` is 0.0, below the 99th percentile"),
        ("full", torch.nan, "`novelty.full` contains nan"),
        ("mean", torch.inf, "`novelty.mean` contains inf"),
    ],
)
def test_an_invalid_tensor_is_refused(saved: Path, name: str, value: float, message: str) -> None:
    tensors = load_file(saved / "model.safetensors")
    tensors[f"novelty.{name}"].fill_(value)
    _write(saved, tensors)
    with pytest.raises(InputError, match=message):
        load_probe(saved)


def test_decreasing_quantiles_are_refused(saved: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    tensors["novelty.quantiles"] = tensors["novelty.quantiles"].flip(0)
    _write(saved, tensors)
    with pytest.raises(InputError, match=r"`novelty.quantiles` is decreasing"):
        load_probe(saved)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_hidden": 7, "rank": 5}, "Expected `novelty.n_hidden` in .* to be at most 6"),
        ({"n_hidden": 6, "rank": 1000}, "novelty.rank"),
        ({"n_hidden": 6}, "novelty.rank"),
        ({"n_hidden": 6, "rank": 2}, "novelty.directions"),
        ({"n_hidden": 6, "rank": 5, "broader": {"n_features": 4, "rank": 2}}, "n_features` in .* `d_model`, but got 4"),
        ({"n_hidden": 6, "rank": 5, "broader": {"n_features": 6, "rank": 65}}, "novelty.broader.rank"),
        ({"n_hidden": 6, "rank": 5, "broader": {"n_features": 6, "rank": 2}}, "novelty.broader.bias"),
    ],
)
def test_impossible_sizes_are_refused(saved: Path, sizes: dict[str, Any], message: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "novelty": sizes}))
    with pytest.raises(InputError, match=message):
        load_probe(saved)


def _write(probe: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the tensors of a saved probe and their checksum."""
    save_file(tensors, probe / "model.safetensors")
    config = json.loads((probe / "config.json").read_text())
    config["weights"] = sha256_file(probe / "model.safetensors")
    (probe / "config.json").write_text(json.dumps(config))


def test_a_probe_of_an_earlier_version_has_no_novelty_and_says_so_once(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    identity = model_identity(model, tokenizer).__dict__
    config = {**_CONFIG, "d_model": 32, "sizes": {}, "calibrator": "platt", "model": identity}
    probe = ConfidenceProbe(LinearHead(32), Platt(1.0, 0.0), config).save(tmp_path / "probe", "card")
    saved = json.loads((probe / "config.json").read_text())
    (probe / "config.json").write_text(json.dumps({**saved, "format_version": 4}))
    with pytest.warns(UserWarning, match="saved by an earlier version of confidence-probes and cannot detect"):
        attached = load_probe(probe).attach(model, tokenizer)
    found = attached.score(["Why?", "Who?"])
    assert found.confidence.tolist() == [0.5, 0.5]
    assert found.novelty.isnan().all()
    assert not found.is_novel.any()
