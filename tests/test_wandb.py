"""Test the data that W&B receives from a run, as `wandb sync` would upload them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.metrics import log_loss

import train
from datamodules import FeatureDataModule
from extract import Store
from probes import load_probe
from probes.fitting.calibration import fit_platt
from probes.metrics.functional import capability_auroc, debiased_brier
from probes.report.report import Report
from tests.helpers.experiments import ROOT, experiment
from tests.helpers.offline_run import OfflineRun, logging_offline


@pytest.fixture(scope="module")
def folder(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose last validation was logged five epochs before its end."""
    with logging_offline():
        return experiment(small_store, tmp_path_factory.mktemp("wandb"), "--model=Linear", "--trainer.max_epochs=15")


@pytest.fixture(scope="module")
def logged(folder: Path) -> OfflineRun:
    return OfflineRun(folder)


def test_the_probe_is_an_artifact_of_type_model(folder: Path, logged: OfflineRun, small_store: Path) -> None:
    artifact, config = logged.artifacts["model"], json.loads((folder / "probe/config.json").read_text())
    files = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert artifact.name == "linear-tiny"
    assert files.keys() == {"README.md", "config.json", "model.safetensors"}
    assert all(path.samefile(folder / "probe" / name) for name, path in files.items())
    metadata = json.loads(artifact.metadata)
    assert metadata["base_model"] == "tiny"
    assert metadata["store_identity"] == Store.open(small_store).sha256
    assert {key: metadata[key] for key in ("layers", "position", "target")} == {
        key: config[key] for key in ("layers", "position", "target")
    }
    for name in ("val_loss", "val_auroc", "val_brier"):
        assert metadata[name] == logged.summary[f"best/{name}"]


def test_the_summary_contains_the_validation_figures_of_the_saved_probe(
    folder: Path, logged: OfflineRun, small_store: Path
) -> None:
    """Compare with figures recomputed from the saved tensors and the store."""
    data = FeatureDataModule(store=str(small_store), grader="planted", test_fraction=0.3)
    data.setup()
    probe, batch = load_probe(folder / "probe"), data.batch("val")
    hidden = batch.features[:, data.feature_names.index(f"{probe.layers[0]}/{probe.position}")]
    confidence = probe.confidences(hidden).confidence
    assert logged.summary["best/val_auroc"] == pytest.approx(
        float(capability_auroc(confidence, batch.right, batch.known))
    )
    assert logged.summary["best/val_brier"] == pytest.approx(
        float(debiased_brier(confidence, batch.right, batch.known)), abs=1e-6
    )


def test_the_validation_loss_uses_cross_fitted_calibrators(folder: Path, logged: OfflineRun, small_store: Path) -> None:
    """Compare with scikit-learn's log-loss, where each fifth of the questions is calibrated on the others."""
    data = FeatureDataModule(store=str(small_store), grader="planted", test_fraction=0.3)
    data.setup()
    probe, batch = load_probe(folder / "probe"), data.batch("val")
    score = probe.head(batch.features[:, data.feature_names.index(f"{probe.layers[0]}/{probe.position}")]).double()
    fold = torch.arange(len(score)) % 5
    confidence = torch.zeros_like(score)
    for number in range(5):
        others = fold != number
        confidence[~others] = fit_platt(score[others], batch.right[others], batch.known[others])(score[~others])
    labels = torch.cat([torch.ones_like(batch.right), torch.zeros_like(batch.right)])
    weights = torch.cat([batch.right / batch.known, 1 - batch.right / batch.known])
    loss = log_loss(labels, confidence.repeat(2), sample_weight=weights)
    assert logged.summary["best/val_loss"] == pytest.approx(loss, rel=1e-4)
    assert logged.summary["best/val_loss"] != logged.summary["val/loss"]


def test_predictions_are_a_table_with_one_row_per_question(folder: Path, logged: OfflineRun) -> None:
    table = json.loads(logged.media("predictions").read_text())
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == rows
    assert {"question_id", "split", "group", "question", "accuracy", "linear", "base_rate"} < set(table["columns"])
    assert len(rows) == 120


def test_the_reliability_diagram_and_the_layers_are_pictures(folder: Path, logged: OfflineRun) -> None:
    for name in ("reliability", "layers", "roc", "accuracy"):
        assert logged.media(f"plots/{name}").read_bytes() == (folder / "plots" / f"{name}.png").read_bytes()
        with Image.open(logged.media(f"plots/{name}")) as picture:
            assert len(picture.convert("L").getcolors(256) or ()) > 10


def test_the_test_figures_of_every_method_are_in_the_summary(folder: Path, logged: OfflineRun) -> None:
    report = json.loads((folder / "report.json").read_text())
    for method, figures in report["splits"]["test"]["capability"].items():
        assert logged.summary[f"test/{method}/auroc"] == figures["auroc"]["value"]


def test_the_config_describes_the_run_and_its_data(logged: OfflineRun, small_store: Path) -> None:
    store = Store.open(small_store)
    assert logged.config["store_identity"] == store.sha256
    assert logged.config["policy"] == store.identity["policy"]
    assert logged.config["trainer"]["max_epochs"] == 15
    assert logged.config["model"]["init_args"]["lr"] is None
    assert logged.config["data"]["split_seed"] == 0


@pytest.mark.slow
def test_the_config_names_the_commit_of_a_clone_and_none_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "HERE", tmp_path)
    assert train.git_commit() is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=first"]):
        subprocess.run([*git, *command], check=True)
    log = subprocess.run([*git, "log", "--format=%H"], capture_output=True, text=True, check=True)
    assert train.git_commit() == log.stdout.strip()
    monkeypatch.setenv("PATH", "")
    assert train.git_commit() is None


def test_the_config_contains_no_paths_of_this_machine(logged: OfflineRun, small_store: Path) -> None:
    sent = json.dumps(logged.config)
    for place in (small_store.parent, ROOT):
        assert str(place) not in sent
    assert logged.config["data"]["store"] == small_store.name


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("/usr/share/questions.jsonl", "questions.jsonl"),
        (["/usr/lib", {"store": "/usr/share/mine"}], ["lib", {"store": "mine"}]),
        ("stores/facts", "stores/facts"),
        ("/no_think {question}", "/no_think {question}"),
        ("/" + "long " * 1000, "/" + "long " * 1000),
        ("/", "/"),
        (0.5, 0.5),
        (None, None),
    ],
)
def test_only_paths_of_this_machine_are_shortened(value: Any, sent: Any) -> None:
    assert train.without_paths(value) == sent


def test_a_run_that_raises_an_error_is_marked_as_failed(
    small_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: OfflineRun,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no space left")

    assert logged.exit_code == 0
    monkeypatch.setattr(Report, "write", broken)
    with logging_offline(), pytest.raises(RuntimeError, match="no space left"):
        experiment(small_store, tmp_path, "--name=broken")
    assert OfflineRun(tmp_path / "runs/broken").exit_code == 1
    assert "anonymous" not in capfd.readouterr().err  # Lightning passes a setting that causes a warning in W&B
