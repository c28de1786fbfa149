"""Test that stores, saved probes and reports of commit 5763a08 can still be read (see data/legacy/LEGACY.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

DATA = Path(__file__).parent / "data" / "legacy"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
FEATURES = load_file(DATA / "features.safetensors")
STORES, PROBES = sorted(EXPECTED["stores"]), sorted(EXPECTED["probes"])


# The only functions of the package that these tests use


def open_store(path: Path) -> Any:
    from extract import Store

    return Store.open(path)


def verify(path: Path) -> None:
    from extract.store.verify import verify

    verify(str(path))


def described(store: Any) -> str:
    from extract.viewing.inspection import describe

    return describe(store)


def open_probe(path: Path) -> Any:
    from probes import load_probe

    return load_probe(path)


def identity(store: Any) -> str:
    return str(store.sha256)


def problems(store: Any) -> list[str]:
    from extract.store.verify import find_problems

    return list(find_problems(store))


def ranges(store: Any) -> list[str]:
    return [samples.stem for samples in store.samples.ranges()]


def samples(store: Any) -> dict[str, list[Any]]:
    return dict(store.samples.read().to_pydict())


def grades(store: Any) -> dict[str, dict[str, list[Any]]]:
    return {grader: store.grades.read(grader).to_pydict() for grader in store.grades.names()}


def asked(store: Any) -> dict[str, dict[str, list[Any]]]:
    return {
        f"{scope}/{name}": store.asked.read(name, scope).to_pydict()
        for scope in ("question", "sample")
        for name in store.asked.names(scope)
    }


def signal(store: Any, scope: str, name: str, key: str) -> Any:
    """Return a tensor, or a ragged tensor for the tokens of answers."""
    ragged = scope == "sample" and name in ("tokens", "entropy_profile")
    return (store.signals.read_ragged if ragged else store.signals.read)(name, key, scope)


def signal_keys(store: Any, scope: str, name: str) -> list[str]:
    return list(store.signals.keys(name, scope))


def probe_features(probe: Any, store: Any, scope: str) -> torch.Tensor:
    read = {
        name: {key: signal(store, scope, name, key) for key in signal_keys(store, scope, name)}
        for name in probe.signals
    }
    return probe.features(read)


def scores(probe: Any, features: torch.Tensor) -> list[float]:
    return [float(score) for score in probe.head(features)]


def confidences(probe: Any, features: torch.Tensor) -> list[float]:
    return [float(confidence) for confidence in probe.confidences(features).confidence]


# Stores


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_store_is_complete_and_has_the_same_identity(name: str, tmp_path: Path) -> None:
    store, expected = open_store(DATA / name), EXPECTED["stores"][name]
    assert identity(store) == expected["identity"]
    assert problems(store) == []
    copy = Path(shutil.copytree(DATA / name, tmp_path / name))  # because verify writes the manifest
    verify(copy)
    before, after = (json.loads((folder / "manifest.json").read_text()) for folder in (DATA / name, copy))
    assert before == after


def test_the_answers_are_read(name: str) -> None:
    store, expected = open_store(DATA / name), EXPECTED["stores"][name]
    rows = samples(store)
    assert len(store.questions) == expected["n_questions"]
    assert len(rows["text"]) == expected["n_rows"]
    assert rows["text"][0] == expected["first_text"]
    assert sum(n or 0 for n in rows["n_tokens"]) == expected["n_tokens"]
    reasons = rows["finish_reason"]
    assert {reason: reasons.count(reason) for reason in set(reasons)} == expected["finish_reasons"]
    assert ranges(store) == expected["parts"]
    assert (store.reader["fingerprint"] if store.reader else None) == expected["reader"]


def test_the_grades_are_read(name: str) -> None:
    found = grades(open_store(DATA / name))
    expected = EXPECTED["stores"][name]["accuracy"]
    assert found.keys() == expected.keys()
    for grader, table in found.items():
        known = [right for right in table["right"] if right is not None]
        assert len(known) == expected[grader]["n_known"]
        assert sum(known) / len(known) == pytest.approx(expected[grader]["mean"])


def test_model_based_baselines_are_read(name: str) -> None:
    found = asked(open_store(DATA / name))
    expected = EXPECTED["stores"][name]["asked"]
    assert found.keys() == expected.keys()
    for baseline, table in found.items():
        values = [value for value in table["value"] if value is not None]
        assert (len(table["value"]), len(values)) == (expected[baseline]["n_rows"], expected[baseline]["n"])
        assert sum(values) == pytest.approx(expected[baseline]["sum"], rel=1e-9)


def test_the_signals_are_read(name: str) -> None:
    store = open_store(DATA / name)
    for path, expected in EXPECTED["stores"][name]["signals"].items():
        scope, what, key = path.split("/", 2)
        found = signal(store, scope, what, key)
        values = found.values if expected["ragged"] else found
        assert list(values.shape) == expected["shape"]
        finite = values[values.isfinite()].double()
        assert values.numel() - len(finite) == expected["n_missing"]
        assert float(finite.sum()) == pytest.approx(expected["sum"], rel=1e-9, abs=1e-9)
        assert float(finite.abs().sum()) == pytest.approx(expected["sum_abs"], rel=1e-9)


def test_the_log_of_an_unfinished_shard_is_found(name: str) -> None:
    store, expected = open_store(DATA / name), EXPECTED["stores"][name]["log_lines"]
    assert {log.name for log in (DATA / name).glob("samples/*.jsonl")} == set(expected)
    lines = [line for line in described(store).splitlines() if line.startswith("unfinished")]
    numbers = [[int(word) for word in line.split(":")[0].split() if word.isdecimal()] for line in lines]
    assert numbers == ([[len(expected), sum(expected.values())]] if expected else [])


# Probes and reports


@pytest.mark.parametrize("run", PROBES)
def test_a_probe_gives_the_same_confidences(run: str) -> None:
    probe, expected = open_probe(DATA / "runs" / run / "probe"), EXPECTED["probes"][run]
    assert probe.layers == [layer for layer in [expected["layer"]] if layer is not None]
    assert probe.position == expected["position"]
    for key in ("signal", "head", "calibrator", "target"):
        assert probe.config[key] == expected[key]
    assert probe.config.get("pooled") == expected["pooled"]
    assert scores(probe, FEATURES[run]) == pytest.approx(expected["scores"], rel=1e-5, abs=1e-5)
    assert confidences(probe, FEATURES[run]) == pytest.approx(expected["confidences"], rel=0, abs=1e-6)


@pytest.mark.parametrize("run", PROBES)
def test_a_probe_finds_its_features_in_the_store(run: str) -> None:
    probe, expected = open_probe(DATA / "runs" / run / "probe"), EXPECTED["probes"][run]
    features = probe_features(probe, open_store(DATA / expected["store"]), expected["scope"])
    torch.testing.assert_close(features[expected["rows"]], FEATURES[run], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", PROBES)
def test_a_report_is_read(run: str) -> None:
    folder = DATA / "runs" / run
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert sorted(report) == EXPECTED["report_keys"]
    assert report["identity"] == EXPECTED["stores"]["local_store"]["identity"]
    predicted, (of_target,) = pq.read_table(folder / "predictions.parquet"), report["splits"]["test"].values()
    method = open_probe(folder / "probe").config["name"]
    assert set(of_target) <= set(predicted.column_names)
    assert method in of_target
    given = [value for value in predicted[method].to_pylist() if value is not None]
    for confidence in EXPECTED["probes"][run]["confidences"]:
        assert min(abs(confidence - value) for value in given) < 1e-6
