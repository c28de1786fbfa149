"""Tests of calibrators for prefixes: interpolation, expected fractions, saving, and damaged files."""

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
from probes import load_probe
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Calibrator, Isotonic, Platt, Temperature
from probes.saved.head import LinearHead
from probes.saved.prefixes import PrefixCalibrator
from tests.helpers.altered_probes import _CONFIG

WHOLE: dict[str, Calibrator] = {
    "platt": Platt(0.7, -0.2),
    "temperature": Temperature(1.5),
    "isotonic": Isotonic([-1.0, 0.0, 1.0], [0.1, 0.1, 0.8]),
}
PARTS: dict[str, list[Calibrator]] = {
    "platt": [Platt(0.0, 0.1), Platt(0.2, 0.3), Platt(0.5, -1.0)],
    "temperature": [Temperature(9.0), Temperature(4.0), Temperature(2.0)],
    "isotonic": [Isotonic([0.0], [0.4]), Isotonic([0.0, 1.0], [0.3, 0.5]), Isotonic([-2.0, 0.5, 3.0], [0.2, 0.4, 0.6])],
}
SCORES = torch.linspace(-4, 4, 81)


def make_probe(kind: str) -> ConfidenceProbe:
    head = LinearHead(8)
    head.weight.copy_(torch.arange(8.0))
    own = {
        "target": "response",
        "position": "mean_answer",
        "calibrator": kind,
        "sizes": {},
        "prefixes": {"lengths": [1, 2, 2, 9]},
    }
    return ConfidenceProbe(head, WHOLE[kind], _CONFIG | own, PrefixCalibrator(PARTS[kind], [1, 2, 2, 9]))


@pytest.mark.parametrize("kind", PARTS)
def test_confidences_are_interpolated_between_the_calibrators_and_monotone(kind: str) -> None:
    calibrator, knots = PrefixCalibrator(PARTS[kind], [5]), [0.25, 0.5, 0.75, 1.0]
    known = np.stack([one(SCORES).numpy() for one in (*PARTS[kind], WHOLE[kind])])
    for fraction in (0.0, 0.1, 0.25, 0.3, 0.5, 0.62, 0.75, 0.9, 1.0):
        found = calibrator(SCORES, fraction, WHOLE[kind])
        expected = [np.interp(fraction, knots, column) for column in known.T]
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
        assert (found.diff() >= 0).all()
        assert ((found >= 0) & (found <= 1)).all()


def test_the_expected_fraction_is_a_mean_over_answers_that_are_at_least_as_long() -> None:
    lengths = [1, 3, 3, 4, 8, 20]
    calibrator = PrefixCalibrator(PARTS["platt"], lengths)
    for t in range(1, 22):
        longer = [t / n for n in lengths if n >= t]
        assert calibrator.expected_fraction(t) == pytest.approx(np.mean(longer) if longer else 1.0)
    assert calibrator.expected_fraction(20) == 1


@pytest.mark.parametrize("kind", PARTS)
def test_a_saved_probe_keeps_its_prefix_calibrators(kind: str, tmp_path: Path) -> None:
    probe = make_probe(kind)
    loaded = load_probe(probe.save(tmp_path / "probe", "card"))
    assert loaded.prefixes is not None
    assert loaded.prefixes.lengths == [1, 2, 2, 9]
    for fraction in (0.2, 0.4, 0.8, 1.0):
        expected = probe.calibrated(SCORES, fraction)
        assert torch.equal(loaded.calibrated(SCORES, fraction), expected)
    assert torch.equal(loaded.calibrated(SCORES), WHOLE[kind](SCORES))
    assert json.loads((tmp_path / "probe" / "config.json").read_text())["format_version"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefixes": {"lengths": []}}, "`prefixes.lengths`"),
        ({"prefixes": {"lengths": [3, 2]}}, "`prefixes.lengths`"),
        ({"prefixes": {"lengths": [0, 2]}}, "`prefixes.lengths`"),
        ({"prefixes": {"lengths": [1.5]}}, "`prefixes.lengths`"),
        ({"prefixes": {"lengths": [1] * 102}}, "`prefixes.lengths`"),
        ({"prefixes": {"lengths": "12"}}, "`prefixes.lengths`"),
        ({"prefixes": {"lengths": [2], "more": 1}}, "more"),
        ({"prefixes": None}, "`prefixes`"),
        ({"prefixes": {}}, "lacks .*lengths"),
        ({"target": "capability", "position": "last_prompt"}, "prefixes"),
    ],
)
def test_invalid_lengths_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = make_probe("platt").save(tmp_path / "probe", "card")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(InputError, match=message) as caught:
        load_probe(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        ("platt", "prefixes.prefix_50.slope", None, "'prefixes.prefix_50.slope' is missing"),
        ("platt", "prefixes.prefix_90.slope", torch.zeros(()), "'prefixes.prefix_90.slope' is unexpected"),
        ("platt", "prefixes.prefix_50.slope", torch.tensor(-1.0).double(), "in prefix_50, `slope` is -1.0, below 0"),
        ("platt", "prefixes.prefix_75.intercept", torch.tensor(torch.nan).double(), "`intercept` contains nan"),
        ("platt", "prefixes.prefix_75.intercept", torch.tensor(0.0), "torch.float32"),
        ("isotonic", "prefixes.prefix_25.y", torch.tensor([1.5]).double(), "in prefix_25, `y` contains 1.5"),
        ("isotonic", "prefixes.prefix_25.x", torch.zeros(2, 1).double(), "prefix_25.x"),
    ],
)
def test_damaged_tensors_are_refused(
    kind: str, name: str, value: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    folder = make_probe(kind).save(tmp_path / "probe", "card")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if value is None else tensors | {name: value}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["weights"] = sha256_file(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message) as caught:
        load_probe(folder)
    assert "\n" not in str(caught.value)


def test_a_probe_without_prefixes_ignores_the_fraction() -> None:
    probe = ConfidenceProbe(LinearHead(8), WHOLE["platt"], _CONFIG)
    assert torch.equal(probe.calibrated(SCORES, 0.3), WHOLE["platt"](SCORES))
