"""Tests of the training targets (accuracy, agreement of answers, single answers) and of their baselines."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import train
from datamodules import FeatureDataModule
from datamodules.semantic import discrete_entropy, entropy_threshold
from extract.errors import InputError
from extract.store.shards import Block
from extract.store.store import Store
from probes.baselines.registry import BASELINES, Baseline, available, baselines_of, confidence
from probes.comparison.out_of_fold import BEST, Comparison
from probes.comparison.record import comparison_record
from probes.fitting import calibration
from probes.metrics.functional import capability_auroc
from probes.report.report import Report
from tests.helpers.experiments import few_baselines
from tests.helpers.fitting import fit
from tests.helpers.planted import planted
from tests.helpers.synthetic import add_answer_signals, make_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with every signal and every asked baseline."""
    folder = tmp_path_factory.mktemp("stores") / "full"
    add_answer_signals(make_store(folder, *planted(), k=6))
    return folder


def data_of(store: Path, target: str, **options: object) -> FeatureDataModule:
    data = FeatureDataModule(str(store), target=target, **options)  # type: ignore[arg-type]
    data.setup()
    return data


def test_response_rows_are_graded_answers_and_no_question_is_in_two_splits(full_store: Path) -> None:
    data = data_of(full_store, "response")
    assert sum(len(rows) for rows in data.split_rows.values()) == 720
    questions = [set(data.batch(split).question.tolist()) for split in ("train", "val", "test")]
    assert not questions[0] & questions[1] | questions[0] & questions[2] | questions[1] & questions[2]
    batch = data.batch("val")
    answers = data.table.answers
    assert batch.target.tolist() == answers.right[batch.row.numpy()].tolist()
    assert set(batch.known.tolist()) == {1.0}
    states = data.store.signals.read("hidden", "1/last_answer", "sample")
    place = data.feature_names.index("1/last_answer")
    assert torch.equal(batch.features[:, place], states[batch.row])


def test_an_answer_without_a_state_is_in_no_split(full_store: Path, tmp_path: Path) -> None:
    store = Store.open(shutil.copytree(full_store, tmp_path / "store"))
    part = store.samples.ranges()[0]
    held = load_file(store.signals.file("hidden", part))
    for tensor in held.values():
        tensor[5] = torch.nan
    for suffix in (".safetensors", ".json"):
        store.signals.file("hidden", part).with_suffix(suffix).unlink()
    store.signals.write("hidden", part, held)
    data = data_of(tmp_path / "store", "response")
    assert data.n_unusable == 1
    assert 5 not in torch.cat(list(data.split_rows.values()))


def test_low_semantic_entropy_is_the_positive_label_and_the_threshold_comes_from_the_training_split(
    full_store: Path,
) -> None:
    data = data_of(full_store, "semantic_entropy")
    said: dict[int, list[str]] = {}
    for question, answer in zip(data.table.answers.question.tolist(), data.table.answers.answer, strict=True):
        said.setdefault(question, []).append(answer)
    entropy = np.array([discrete_entropy(said[row]) for row in range(120)])
    for rows in (data.question_rows["train"], torch.arange(40)):
        rest = [row for row in range(120) if row not in set(rows.tolist())]
        data.use_split({"train": rows.tolist(), "val": rest[:30], "test": rest[30:]})
        threshold = entropy_threshold(entropy[rows.numpy()])
        assert data.entropy_threshold == threshold
        for split in ("train", "val", "test"):
            batch = data.batch(split)
            assert batch.target.tolist() == (entropy[batch.row.numpy()] < threshold).tolist()


def test_seu_is_the_mean_cosine_of_two_answers(full_store: Path) -> None:
    data = data_of(full_store, "seu")
    batch, embeddings = data.batch("train"), data.answer_embeddings()
    assert embeddings.shape == (120, 6, 8)
    for row, target in zip(batch.row.tolist()[:10], batch.target.tolist(), strict=False):
        cosines = [float(embeddings[row, i] @ embeddings[row, j]) for i in range(6) for j in range(i)]
        assert target == pytest.approx(float(np.clip(np.mean(cosines), 0, 1)), abs=1e-6)


def test_every_baseline_is_a_confidence_that_is_informative_about_synthetic_answers(full_store: Path) -> None:
    data = data_of(full_store, "capability")
    missing = [name for name in baselines_of("question") if not available(name, data)]
    assert missing == ["likelihood", "likelihood_isotonic", "semantic_entropy_nli"]
    right, known = torch.from_numpy(data.table.held_right), torch.from_numpy(data.table.held_known)
    rows = data.question_rows
    for name in baselines_of("question"):
        if name in missing or name.endswith("_isotonic"):
            continue  # 24 validation questions are too few for isotonic regression
        given = confidence(name, data)(rows)
        kept = given.isfinite()
        assert kept.sum() >= (90 if "verbalized" in name or "p_true" in name else 120), name
        assert ((given[kept] >= 0) & (given[kept] <= 1)).all()
        if name not in ("constant", "base_rate", "length", "eigenscore"):  # states of wrong answers do not vary more
            least = 0.55 if name.startswith("first_token") else 0.6
            assert float(capability_auroc(given[kept], right[kept], known[kept])) > least, name


def test_methods_with_too_few_questions_for_isotonic_are_left_out_with_the_reason(
    full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LEAST_ISOTONIC_ROWS", 100)
    data = data_of(full_store, "capability")
    with pytest.raises(InputError, match="at least 100 rows"):
        confidence("verbalized_isotonic", data)(data.question_rows)
    with few_baselines("verbalized", "verbalized_isotonic"):
        report = Report(fit(data), data, seed=0, n_resamples=10)
    assert "at least 100 rows" in report.record["masked"]["verbalized_isotonic"]
    assert "verbalized_isotonic" not in report.methods
    assert report.methods["verbalized"].confidence.isnan().any()  # unparsed replies are NaN


def test_baselines_that_cannot_be_computed_are_left_out_of_a_comparison_with_the_reason(
    full_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LEAST_ISOTONIC_ROWS", 100)
    store = Store.open(shutil.copytree(full_store, tmp_path / "store"))
    for suffix in (".parquet", ".json"):
        store.asked.file("verbalized", Block(1)).with_suffix(suffix).unlink()
    assert set(data_of(store.path, "capability").table.asked) == {"p_true"}
    masked = Comparison(str(store.path), probes=["logistic"], n_folds=2).run().masked
    assert "--baselines '[verbalized]'" in masked["verbalized"]
    assert "at least 100 rows" in masked["p_true_isotonic"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_baseline_is_calibrated_on_all_questions_outside_the_test_split(full_store: Path, split: str) -> None:
    data, other = data_of(full_store, "capability"), data_of(full_store, "capability")
    rows = other.question_rows[split].numpy()
    other.table.held_right[rows] = 0
    a, b = (confidence("consistency", one)(data.question_rows) for one in (data, other))
    assert (b < a).all()


def test_baselines_do_not_use_grades_of_the_test_split(full_store: Path) -> None:
    data, other = data_of(full_store, "capability"), data_of(full_store, "capability")
    test = other.question_rows["test"].numpy()
    of_test = np.isin(other.table.answers.question, test)
    for counts in (other.table.right, other.table.held_right):
        counts[test] = 0
    other.table.answers.right[of_test] = 0
    for name in baselines_of("question"):
        if available(name, data) and not name.endswith("_isotonic"):
            a, b = (confidence(name, one)(data.question_rows) for one in (data, other))
            assert torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)), name
    question = torch.from_numpy(data.table.answers.question)
    rows = {split: torch.isin(question, chosen).nonzero()[:, 0] for split, chosen in data.question_rows.items()}
    for name in baselines_of("sample"):
        if available(name, data):
            a, b = (confidence(name, one, "sample")(rows) for one in (data, other))
            assert torch.equal(a, b), name


def test_baselines_in_the_tables_of_the_documentation_are_in_the_registry() -> None:
    page = (Path(train.__file__).parent / "docs/methods.md").read_text(encoding="utf-8")
    tables = page.split("\n## Baselines that need no answer")[1].split("\n## Calibrators")[0]
    names = {name for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert len(names) > 10
    assert names - {"text_embedding"} <= set(BASELINES)
    assert set(BASELINES) <= {*names, "answer_length", "p_true_answer"}


def test_a_comparison_with_all_data_contains_every_method_and_a_new_baseline_needs_one_registry_entry(
    full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def words(data: FeatureDataModule, rows: object) -> torch.Tensor:
        calls.append(rows)
        return torch.tensor([float(len(text.split())) for text in data.table.texts])

    monkeypatch.setitem(BASELINES, "words", Baseline({"question": words}))
    out = Comparison(str(full_store), probes=["logistic", "sep", "seu_ridge"], n_folds=2).run()
    methods = {"sep", "seu_ridge", "text_embedding", "verbalized", "p_true", "seu", "mean_entropy", "words"}
    assert methods < set(out.confidence)
    assert len(out.confidence) > 25
    recorded = {"constant", "base_rate", BEST, *methods}  # the metrics of all would take most of the time
    out.confidence = {name: values for name, values in out.confidence.items() if name in recorded}
    record = comparison_record(out, n_folds=2, n_resamples=10, seed=0)
    assert set(record["methods"]) == recorded
    assert record["methods"]["words"]["tokens_read"] == 0
    assert "words" in {row["b"] for row in record["tests"]}
    assert len(calls) == 1  # not once per fold
    data = data_of(full_store, "capability")
    with few_baselines("words"):
        report = Report(fit(data), data, seed=0, n_resamples=10)
    assert report.figures_of["words"]["brier"]["value"] > 0
    assert {"response", "mean_nll", "max_entropy", "best_probe"} < set(record["answers"])
    assert record["answers"]["response"]["auroc"]["value"] > record["answers"]["best_probe"]["auroc"]["value"] - 0.2
    assert record["methods"]["verbalized"]["n_masked"] > 0


def test_a_question_without_embeddings_has_no_agreement_and_is_in_no_split(full_store: Path, tmp_path: Path) -> None:
    store = Store.open(shutil.copytree(full_store, tmp_path / "store"))
    part = store.samples.ranges()[0]
    vectors = load_file(store.signals.file("text_embedding", part))["0/answer"]
    vectors[6 * 7 : 6 * 8 - 1] = torch.nan  # five of the six answers to the eighth question
    for suffix in (".safetensors", ".json"):
        store.signals.file("text_embedding", part).with_suffix(suffix).unlink()
    store.signals.write("text_embedding", part, {"0/answer": vectors}, settings={"model": "made", "weights": "a" * 64})
    data = data_of(tmp_path / "store", "seu")
    assert data.n_unusable == 1
    assert 7 not in torch.cat(list(data.split_rows.values()))
    assert all(data.batch(split).target.isfinite().all() for split in ("train", "val", "test"))


def test_a_probe_that_cannot_be_fitted_is_left_out(tmp_path: Path) -> None:
    features, accuracy = planted()
    make_store(tmp_path / "constant", np.ones_like(features), accuracy)
    with pytest.raises(InputError, match="to fit at least one probe.*features to vary within"):
        Comparison(str(tmp_path / "constant"), probes=["logistic"], n_folds=2).run()
    with pytest.raises(InputError, match="to fit at least one probe.*text_embedding"):
        Comparison(str(tmp_path / "constant"), probes=["seu_ridge"], n_folds=2).run()


@pytest.mark.parametrize("target", ["semantic_entropy", "seu", "response"])
def test_a_run_with_another_target_is_complete_and_its_probe_states_the_target(
    full_store: Path, tmp_path: Path, target: str
) -> None:
    options = [
        "--model=Ridge" if target == "seu" else "--model=Logistic",
        f"--data.target={target}",
        f"--data.store={full_store}",
        "--data.recipe=null",
        "--data.grader=made",
        "--n_resamples=10",
        f"--runs={tmp_path}",
        "--trainer.logger=false",
    ]
    # the other two runs contain the baselines of questions and of answers
    with few_baselines() if target == "seu" else nullcontext():
        folder = train.run(options)
    record = json.loads((folder / "report.json").read_text())
    assert record["target"] == target
    assert json.loads((folder / "probe/config.json").read_text())["target"] == target
    scored = "response" if target == "response" else "capability"
    assert list(record["splits"]["test"]) == [scored]
    assert "probe was trained without grades" in (folder / "report.md").read_text() or target == "response"
    own = {"mean_nll", "max_nll", "mean_entropy", "max_entropy"}
    assert target != "response" or own < set(record["splits"]["test"]["response"])


def test_targets_that_cannot_be_predicted_are_refused(full_store: Path, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", *planted()).path
    with pytest.raises(InputError, match="Did you mean .response"):
        FeatureDataModule(target="responses")
    with pytest.raises(InputError, match="--scope sample"):
        data_of(store, "response")
    with pytest.raises(InputError, match="text_embedding"):
        data_of(store, "seu")
    assert Store.open(full_store).asked.names("question") == ["p_true", "verbalized"]


def test_fewer_than_twenty_questions_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "store", *planted(n=18))
    with pytest.raises(InputError, match="at least 10 questions in the validation split"):
        data_of(tmp_path / "store", "capability")


def test_features_that_never_vary_are_refused(tmp_path: Path) -> None:
    features, accuracy = planted()
    make_store(tmp_path / "store", np.ones_like(features), accuracy)
    with pytest.raises(InputError, match="features to vary within"):
        fit(data_of(tmp_path / "store", "capability"))
