"""Tests of the command `decide`: its files, thresholds stored in a probe, routing, and bad input."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from applications.__main__ import COMMANDS
from applications.decisions.command import decide
from applications.decisions.splits import split_record
from extract.errors import InputError
from extract.running.cli import run
from extract.store.store import Store
from probes import load_probe
from tests.helpers.altered_probes import make_probe
from tests.helpers.synthetic import make_store

N = 120
RNG = np.random.default_rng(0)
CONFIDENCE = RNG.beta(0.8, 0.8, N)
ACCURACY = RNG.beta(8 * CONFIDENCE + 0.01, 8 * (1 - CONFIDENCE) + 0.01)
QUICK = {"n_resamples": 100}


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("applications.decisions.splits.N_SPLITS", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a cheap store, a strong store of the same questions, and one of other questions."""
    folder, none = tmp_path_factory.mktemp("stores"), np.zeros((N, 1, 2), np.float32)
    make_store(folder / "cheap", none, ACCURACY, k=6)
    make_store(folder / "strong", none, 0.9 + 0 * ACCURACY, k=6, seed=1, temperature=0.2)
    make_store(folder / "others", none, ACCURACY, k=2, name="other", temperature=0.2)
    return folder


def table(path: Path, values: np.ndarray = CONFIDENCE, name: str = "mine") -> str:
    pq.write_table(pa.table({"question_id": [f"q{i}" for i in range(N)], name: values}), path / "f.parquet")
    return f"{path / 'f.parquet'}:{name}"


def write_probe(folder: Path, store: Store, **changes: Any) -> Path:
    """Save a probe of the store's model and prompt."""
    probe = make_probe(folder / "probe", random.Random(0))
    config = json.loads((probe / "config.json").read_text())
    prompt = store.identity["policy"]["decoding"]["prompt"]
    (probe / "config.json").write_text(json.dumps(config | {"model": store.model, "prompt": prompt} | changes))
    return probe


# Results


@pytest.mark.slow
def test_the_command_writes_a_page_a_record_a_table_and_pictures(folder: Path, tmp_path: Path) -> None:
    options = ["--store", str(folder / "cheap"), "--confidences", f"[{table(tmp_path)}]", "--risk", "[0.3,0.01]"]
    options += ["--strong", str(folder / "strong"), "--strong_price", "3", "--n_resamples", "100"]
    assert run(COMMANDS, "x", ["decide", *options, "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out/decide.json").read_text())
    found, unattained = record["confidences"]["mine"]["thresholds"]
    kept = np.array(pq.read_table(tmp_path / "out/decide.parquet")["mine_kept_0.3"])
    assert kept.sum() == found["n_kept"] == (found["threshold"] <= CONFIDENCE).sum()
    assert found["coverage"]["value"] == pytest.approx(kept.mean())
    assert found["measured_risk"]["value"] < 0.3
    assert unattained["threshold"] is None
    assert record["requests"][0]["necessary_abstention"] == pytest.approx((record["base_risk"]["value"] - 0.3) / 0.7)
    page = (tmp_path / "out/decide.md").read_text()
    assert "Risk 0.01 with mine: no threshold." in page
    assert {path.name for path in (tmp_path / "out/plots").glob("*.png")} == {"risk_coverage.png", "routing.png"}


@pytest.mark.slow
def test_an_unattained_risk_is_compared_with_the_lowest_measured_risk(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"risk": [0.2], "out": str(tmp_path / "out"), **QUICK}
    out = decide(str(folder / "cheap"), [table(tmp_path, 1 - CONFIDENCE)], **options)
    (found,) = json.loads((out / "decide.json").read_text())["confidences"]["mine"]["thresholds"]
    assert found["n_least"] == (found["first"] <= 1 - CONFIDENCE).sum()
    expected = f"at least {found['n_least']} questions are answered. The lowest measured risk is {found['lowest']:.3f}."
    assert expected in capsys.readouterr().out


@pytest.mark.slow
def test_routing_by_the_confidence_is_better_than_routing_at_random(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"strong": str(folder / "strong"), "strong_price": 3, "risk": [0.3, 0.02], **QUICK}
    out = decide(str(folder / "cheap"), [table(tmp_path)], out=str(tmp_path / "out"), **options)
    routing = json.loads((out / "decide.json").read_text())["routing"]
    cheap, strong = routing["alone"]
    curve, gains = (routing["confidences"]["mine"][name] for name in ("curve", "gains"))
    assert (cheap["cost"], strong["cost"]) == (11, 33)  # nine tokens of the prompt and two of the answer
    assert curve[0]["accuracy"]["value"] == pytest.approx(cheap["accuracy"]["value"])
    assert curve[-1]["accuracy"]["value"] == pytest.approx(strong["accuracy"]["value"])
    assert curve[-1]["cost"] == 42  # the probe reads the prompt
    assert all(one["gain"]["low"] > 0 for one in gains)
    certified, unattained = routing["confidences"]["mine"]["thresholds"]
    assert 0 < certified["certified"]["routed"] < 1
    assert certified["certified"]["accuracy"]["value"] > 0.7
    assert unattained["certified"] is None


@pytest.mark.slow
def test_questions_without_a_confidence_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    values = np.where(np.arange(N) < 7, np.nan, CONFIDENCE)
    out = decide(str(folder / "cheap"), [table(tmp_path, values)], out=str(tmp_path / "out"), **QUICK)
    record = json.loads((out / "decide.json").read_text())
    assert (record["n_questions"], record["n_without_confidence"]) == (N - 7, 7)


def test_thresholds_are_certified_on_one_half_and_measured_on_the_other() -> None:
    losses = np.where(CONFIDENCE > 0.5, 0.0, 1.0)
    found = split_record(CONFIDENCE, losses, 0.2, 0.9, 0)
    assert found["certified"] == 1
    assert found["risk"] < 0.25
    assert 0.3 < found["coverage"] < 0.7


# Thresholds in a probe


@pytest.mark.slow
def test_thresholds_are_stored_in_a_probe_whose_other_fields_stay_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = write_probe(tmp_path, Store.open(folder / "cheap"))
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in probe.iterdir()}
    config, source = load_probe(probe).config, table(tmp_path, name="linear")
    for number, risks in enumerate(([0.3, 0.01], [0.4], [0.3])):
        decide(str(folder / "cheap"), [source], risk=risks, probe=str(probe), out=str(tmp_path / f"{number}"), **QUICK)
    assert f"Thresholds stored in {probe / 'config.json'}: 1" in capsys.readouterr().out
    changed = load_probe(probe).config
    stored = changed.pop("decisions")
    assert [one["risk"] for one in stored] == [0.3, 0.4]
    assert changed == config
    after = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in probe.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"config.json"}
    (found,) = json.loads((tmp_path / "2/decide.json").read_text())["confidences"]["linear"]["thresholds"]
    assert (stored[0]["threshold"], stored[0]["level"], stored[0]["n_questions"]) == (found["threshold"], 0.9, N)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        [{}],
        [{"risk": 0.2, "level": 0.9, "threshold": 1.5, "coverage": 0.5, "n_questions": 10}],
        [{"risk": 0.2, "level": 0.9, "threshold": 0.5, "coverage": 0.5, "n_questions": 10}] * 2,
        [{"risk": 0.2, "level": 0.9, "threshold": 0.5, "coverage": 0.5, "n_questions": 10, "code": "x"}],
    ],
    ids=["object", "empty record", "threshold above 1", "the same risk twice", "unknown key"],
)
def test_invalid_stored_thresholds_are_refused(stored: Any, tmp_path: Path) -> None:
    probe = make_probe(tmp_path / "probe", random.Random(0))
    config = json.loads((probe / "config.json").read_text())
    (probe / "config.json").write_text(json.dumps(config | {"decisions": stored}))
    with pytest.raises(InputError, match="Expected `decisions` in .* to be a list of records with risk, level"):
        load_probe(probe)


@pytest.mark.parametrize(
    ("changes", "column", "message"),
    [
        ({}, "ridge", "exactly one source, named 'linear' \\(the method of .*\\), but got ridge"),
        ({}, None, "exactly one source, named 'linear' \\(the method of .*\\), but got none"),
        ({"prompt": {"template": "Other {question}", "system": None, "chat": True}}, "linear", "differs in template"),
        ({"model": None}, "linear", "Expected a probe for the model of .* differs in"),
        ({"target": "response", "position": "last_answer"}, "linear", "Expected `probe` to read questions"),
    ],
    ids=["another method", "no confidences", "another prompt", "another model", "a probe that reads answers"],
)
def test_a_probe_that_does_not_belong_to_the_confidences_is_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any], column: str | None, message: str
) -> None:
    store = Store.open(folder / "cheap")
    if "model" in changes:
        changes = {"model": store.model | {"fingerprint": "f" * 64}}
    probe = write_probe(tmp_path, store, **changes)
    sources = [table(tmp_path, name=column)] if column else []
    with pytest.raises(InputError, match=message):
        decide(str(store.path), sources, probe=str(probe), out=str(tmp_path / "out"))


def test_a_probe_that_was_trained_on_the_questions_is_refused(folder: Path, tmp_path: Path) -> None:
    store = Store.open(folder / "cheap")
    probe = write_probe(tmp_path, store, training={"store": store.sha256})
    with pytest.raises(InputError, match="not trained on the questions of"):
        decide(str(store.path), [str(probe)], probe=str(probe), out=str(tmp_path / "out"))


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"risk": [0.2, 1.0]}, "`risk` to contain distinct numbers between 0 and 1, but got"),
        ({"risk": []}, "`risk` to contain distinct numbers"),
        ({"risk": [0.2, 0.2]}, "`risk` to contain distinct numbers"),
        ({"level": 0}, "`level` to be between 0 and 1, but got 0"),
        ({"confidences": []}, "`confidences` to contain at least one source"),
        ({"strong_price": 0}, "`strong_price` to be above 0"),
        ({"strong": "others"}, "to have the same questions, but only 0 questions are shared"),
        ({"probe": "nowhere"}, "`probe` to be the folder of a saved probe, but there is no folder 'nowhere'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_options_give_a_one_line_error(folder: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    if "strong" in options:
        options = {"strong": str(folder / options["strong"])}
    with pytest.raises(InputError, match=message) as raised:
        decide(
            **{"store": str(folder / "cheap"), "confidences": [table(tmp_path)], "out": str(tmp_path / "o")} | options
        )
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "o").exists()


def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "few", np.zeros((19, 1, 2), np.float32), np.full(19, 0.5), k=2)
    pq.write_table(
        pa.table({"question_id": [f"q{i}" for i in range(19)], "f": np.full(19, 0.5)}), tmp_path / "f.parquet"
    )
    with pytest.raises(InputError, match="at least 20 questions with a known grade and a confidence, but got 19"):
        decide(str(store.path), [f"{tmp_path}/f.parquet:f"], out=str(tmp_path / "out"))
    shutil.rmtree(store.path)
