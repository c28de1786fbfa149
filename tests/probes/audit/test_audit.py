"""Tests of the audit: predictions, AUROCs, calibration of tests and intervals, planted leaks, and bad input."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from benchmarks import audit as benchmark
from datamodules.table import load_table
from extract import Question, Store
from extract.errors import InputError
from extract.questions.source import check_questions
from probes.audit import smoothing
from probes.audit.record import audit_page, audit_picture, audit_record, audit_source, audit_verdict, leaks
from probes.audit.smoothing import aurocs, cross_validate, out_of_fold
from probes.audit.sources import SOURCES, cosines, ngrams, question_sources
from probes.commands import audit
from probes.metrics import functional as F
from probes.report.evaluate import Scored, estimate
from tests.helpers.synthetic import add_answer_signals, make_store


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return benchmark.made_questions(200, np.random.default_rng(3))


@pytest.fixture(scope="module")
def features(questions: list[Question]) -> dict[str, np.ndarray]:
    features, masked = question_sources(questions)
    assert masked == {}
    return features


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, questions: list[Question]) -> Store:
    """Make a store in which long questions are answered better."""
    accuracy = 1 / (1 + np.exp(-4 * benchmark.rank([len(question.text) for question in questions])))
    return store_of(tmp_path_factory.mktemp("stores") / "planted", accuracy, questions)


@pytest.fixture(scope="module")
def record(planted: Store) -> dict[str, Any]:
    return audit_record(planted, load_table(planted), n_resamples=300)


def store_of(folder: Path, accuracy: np.ndarray, questions: list[Question] | tuple[()] = (), **options: Any) -> Store:
    return make_store(folder, np.zeros((len(accuracy), 1, 2), np.float32), accuracy, questions=questions, **options)


def drawn(seed: int, n: int = 60, draws: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return accuracies [draw, question] out of 4 answers, and folds [question]."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 5, (draws, n)) / 4), torch.from_numpy(rng.permutation(n) % 3)


# Predictions


@pytest.mark.slow
@pytest.mark.parametrize("n_features", [5, 100])
def test_predictions_equal_scikit_learn_with_the_penalty_of_generalised_cross_validation(
    n_features: int,
) -> None:
    accuracy, fold = drawn(0)
    x = np.random.default_rng(1).normal(size=(60, n_features)) + 3
    found = out_of_fold(torch.from_numpy(x), accuracy, fold).numpy()
    chosen = set()
    for y, row in zip(accuracy.numpy(), found, strict=True):
        for number in range(3):
            train = fold.numpy() != number
            centred = x[train] - x[train].mean(0)
            best = np.inf, None
            for penalty in smoothing._PENALTIES.numpy() * np.square(centred).sum():
                model = Ridge(alpha=penalty).fit(x[train], y[train])
                hat = centred @ np.linalg.solve(centred.T @ centred + penalty * np.eye(n_features), centred.T)
                residual = np.square(y[train] - model.predict(x[train])).sum()
                best = min(best, (residual / (train.sum() - 1 - np.trace(hat)) ** 2, penalty))
            chosen.add(best[1])
            expected = Ridge(alpha=best[1]).fit(x[train], y[train]).predict(x[~train])
            np.testing.assert_allclose(row[~train], expected, rtol=1e-6)
    assert len(chosen) > 3


def test_no_prediction_depends_on_the_accuracies_in_its_own_fold() -> None:
    accuracy, fold = drawn(0, draws=1)
    features = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    changed = torch.where(fold == 1, 1 - accuracy, accuracy)
    before, after = (out_of_fold(features, values, fold)[0] for values in (accuracy, changed))
    torch.testing.assert_close(before[fold == 1], after[fold == 1], rtol=0, atol=0)
    assert (before != after)[fold != 1].all()


def test_constant_features_predict_the_mean_of_the_other_folds() -> None:
    accuracy, fold = drawn(0)
    found = out_of_fold(torch.full((60, 3), 0.1, dtype=torch.float64), accuracy, fold)
    for number in range(3):
        expected = accuracy[:, fold != number].mean(1, keepdim=True).expand(-1, int((fold == number).sum()))
        torch.testing.assert_close(found[:, fold == number], expected)


def test_aurocs_of_many_draws_equal_the_metric_with_ties() -> None:
    accuracy, fold = drawn(2)
    predicted = torch.from_numpy(np.random.default_rng(0).integers(0, 9, accuracy.shape) / 8)
    known = torch.full((60,), 4)
    expected = [F.capability_auroc(f, 4 * y, known, strata=fold) for f, y in zip(predicted, accuracy, strict=True)]
    torch.testing.assert_close(aurocs(predicted, accuracy, fold), torch.stack(expected))


def test_accuracies_that_differ_only_between_folds_have_an_auroc_of_one_half() -> None:
    fold = torch.arange(12) % 2
    assert aurocs(torch.rand(1, 12).double(), fold[None].double(), fold).tolist() == [0.5]


def test_permutations_in_chunks_repeat_the_whole_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy, fold = drawn(2, draws=1)
    features = torch.from_numpy(cosines(np.arange(60.0)[:, None]))
    predicted, values = cross_validate(features, accuracy[0], fold, 50, seed=0)
    torch.testing.assert_close(predicted, out_of_fold(features, accuracy, fold)[0])
    assert values.shape == (50,)
    assert values.unique().numel() > 40
    monkeypatch.setattr(smoothing, "_CHUNK", 60 * 20)
    assert cross_validate(features, accuracy[0], fold, 50, seed=0)[1].shape == (50,)
    orders = torch.rand(20, 60, generator=torch.Generator().manual_seed(0)).argsort(1)
    expected = aurocs(out_of_fold(features, accuracy[0][orders], fold), accuracy[0][orders], fold)
    torch.testing.assert_close(cross_validate(features, accuracy[0], fold, 20, seed=0)[1], expected)


@pytest.mark.slow
def test_intervals_of_uninformative_features_contain_one_half_although_folds_depend_on_each_other() -> None:
    rng, contain, plain = np.random.default_rng(0), 0, 0
    for _ in range(50):
        features = torch.from_numpy(cosines(rng.random((200, 1))))
        right = torch.from_numpy(rng.binomial(10, rng.beta(0.5, 0.8, 200)))
        grades = Scored(
            torch.zeros(200), right, torch.full((200,), 10), fold=torch.from_numpy(rng.permutation(200) % 5)
        )
        found = audit_source(features, grades, 100, 0)["auroc"]
        contain += found["low"] <= 0.5 <= found["high"]
        confidence = out_of_fold(features, grades.accuracy[None], grades.fold)[0]
        bootstrap = estimate(grades._replace(confidence=confidence), "auroc", 100, 0)
        assert bootstrap is not None
        plain += bootstrap["low"] <= 0.5 <= bootstrap["high"]
    assert contain >= 45
    assert plain < 45


# Sources


@pytest.mark.slow
def test_every_source_has_its_features(features: dict[str, np.ndarray]) -> None:
    assert features.keys() == SOURCES.keys() - {"text_embedding"}
    assert {len(values) for values in features.values()} == {200}


CHANGES: dict[str, dict[str, Any]] = {
    "text": {"text": "other words word7"},
    "options": {"choices": ("a", "b", "c", "d"), "references": ("B", "b")},
    "key": {"references": ("A", "?")},
    "group": {"group": "group 1"},
    "position": {"row": 500},
}


@pytest.mark.slow
@pytest.mark.parametrize("source", CHANGES)
def test_a_change_of_one_property_changes_only_the_features_of_its_source(
    questions: list[Question], features: dict[str, np.ndarray], source: str
) -> None:
    place = next(i for i, one in enumerate(questions) if one.references[0] == "C" and one.group == "group 2")
    changed = [replace(one, **CHANGES[source]) if i == place else one for i, one in enumerate(questions)]
    after, _ = question_sources(changed)
    moved = {name for name in features if not np.array_equal(features[name][place], after[name][place])}
    assert moved == {source} | {"text": {"length"}, "options": {"key"}}.get(source, set())


@pytest.mark.slow
def test_questions_without_options_do_not_have_their_features(questions: list[Question]) -> None:
    short = [replace(one, kind="short", choices=(), references=("x",)) for one in questions[:50]]
    features, masked = question_sources([*short, *questions[50:]])
    assert np.isnan(features["options"][:50]).all()
    assert np.isfinite(features["options"][50:]).all()
    alone, masked = question_sources([replace(one, group="", text="Say it.") for one in short])
    assert masked == {
        "options": "no question has options",
        "key": "no question has options",
        **dict.fromkeys(("text", "length", "group"), "all questions have the same features"),
    }
    assert alone.keys() == {"position"}


def test_chats_are_read_as_texts_and_questions_of_earlier_stores_have_their_places_in_the_store() -> None:
    chats = [
        Question(f"q{i}", "made", messages=({"role": "user", "content": f"word{i % 7} " * (1 + i % 3)},), row=9 - i)
        for i in range(10)
    ]
    features, _ = question_sources(chats)
    assert np.ptp(features["text"], axis=0).any()
    assert np.ptp(features["length"], axis=0).any()
    np.testing.assert_allclose(features["position"], cosines(np.arange(9.0, -1, -1)[:, None]))
    earlier, _ = question_sources([replace(one, row=None) for one in chats])
    np.testing.assert_allclose(earlier["position"], cosines(np.arange(10.0)[:, None]))


def test_words_that_two_texts_share_make_them_similar_and_blank_texts_have_no_words() -> None:
    a, b, c = ngrams(["which is odd?", "is odd which?", "13 × 4"])
    assert a @ b > 0.5
    assert abs(a @ c) < 1e-9
    assert not ngrams([" ", "\n", ""]).any()


def test_loaded_questions_know_their_positions() -> None:
    loaded = check_questions([Question(name, "made", "Say it.", references=("x",)) for name in "cab"], "the file")
    assert [(question.id, question.row) for question in loaded] == [("c", 0), ("a", 1), ("b", 2)]
    assert loaded[0] == replace(loaded[0], row=None)


# Results


@pytest.mark.slow
def test_an_audit_finds_the_planted_leak_and_no_other(record: dict[str, Any]) -> None:
    assert record["leaks"] == ["length"]
    length = record["sources"]["length"]
    assert length["auroc"]["low"] > 0.6
    assert length["p"] == pytest.approx(1 / 301)
    assert length["p_holm"] == pytest.approx(4 / 301)
    assert record["n_questions"] == 200
    assert record["position"] == "source"
    assert list(record["sources"]) == ["text", "group", "options", "key", "length", "position"]
    assert "run `python -m extract ask --store" in record["masked"]["text_embedding"]
    assert "**Leak**: the measured accuracy can be predicted from the length (AUROC 0." in audit_verdict(record)
    page = audit_page(record, {})
    assert "| length (`length`) |" in page
    assert page.count("**yes**") == 1
    assert "place of the question in the store" not in page
    assert "place of the question in the store" in audit_page({**record, "position": "store"}, {})
    none = audit_verdict({**record, "leaks": []})
    assert "No leak was found" in none


@pytest.mark.slow
def test_the_text_and_the_group_are_never_leaks(tmp_path: Path) -> None:
    accuracy = np.where(np.arange(120) % 4 == 0, 0.9, 0.1)
    store = store_of(tmp_path / "store", accuracy)
    add_answer_signals(store)
    record = audit_record(store, load_table(store), n_resamples=200)
    group = record["sources"]["group"]
    assert group["auroc"]["low"] > 0.8
    assert group["p_holm"] < 0.05
    assert record["leaks"] == []
    assert record["sources"]["text_embedding"]["n_features"] == 8
    assert record["masked"].keys() == {"options", "key"}
    assert record["position"] == "store"
    assert "The best predictor is the group" in audit_verdict(record)


@pytest.mark.slow
def test_options_of_too_few_questions_are_left_out_with_the_reason(questions: list[Question], tmp_path: Path) -> None:
    short = [replace(one, kind="short", choices=(), references=("x",)) for one in questions[:60]]
    store = store_of(tmp_path / "store", np.linspace(0, 1, 75), [*short, *questions[60:75]])
    record = audit_record(store, load_table(store), n_resamples=100)
    assert record["masked"]["options"] == record["masked"]["key"] == "there are only 15 usable questions"
    assert "not available: there are only 15 usable questions" in audit_page(record, {})


def test_a_single_question_with_right_answers_gives_values_without_intervals(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", np.arange(40) == 3)
    record = audit_record(store, load_table(store), n_resamples=100)
    for found in record["sources"].values():
        assert found["auroc"]["value"] >= 0
        assert found["auroc"]["low"] is found["auroc"]["high"] is None
        assert found["p"] > 0
    assert len(audit_picture(record).axes) == 1
    assert "[" not in audit_verdict(record)


@pytest.fixture(scope="module")
def leaky() -> tuple[list[Question], Any]:
    """Return questions for planted leaks, and their features."""
    questions = benchmark.made_questions(300, np.random.default_rng(0))
    return questions, benchmark.leak_features(questions)


@pytest.mark.slow
@pytest.mark.parametrize("leak", benchmark.LEAKS)
def test_planted_leaks_of_every_kind_are_found(leaky: tuple[list[Question], Any], leak: str) -> None:
    source, property_of = benchmark.LEAKS[leak]
    questions, features = leaky
    value, found = property_of(questions), []
    strength = benchmark.strength_of(value)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        accuracy = benchmark.accuracies(value, strength, rng)
        found.append(leaks(benchmark.audited(features, accuracy, 199, rng)))
    assert all(source in names for names in found)
    assert sum(len(set(names) - {source}) for names in found) <= 1


# The command


@pytest.mark.slow
def test_the_command_writes_a_page_a_record_and_a_picture(
    planted: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = audit(str(planted.path), str(tmp_path / "out"), folds=3, n_resamples=100)
    assert {path.name for path in folder.iterdir()} == {"audit.md", "audit.json", "plots"}
    assert (folder / "plots/audit.png").read_bytes()[:4] == b"\x89PNG"
    assert "plots/audit.png" in (folder / "audit.md").read_text()
    assert json.loads((folder / "audit.json").read_text())["folds"] == 3
    assert f"Audit: {folder / 'audit.md'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "`folds` to be at least 2, but got 1"),
        ({"folds": 201}, "at least 804 questions .* but there are only 200 usable questions. Use fewer folds"),
    ],
)
def test_impossible_audits_are_refused_and_leave_no_folder(
    planted: Store, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        audit(str(planted.path), str(tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("accuracy", "k", "message"),
    [
        (np.zeros(30), 4, "differ in accuracy, but all 30 usable questions have an accuracy of 0.000"),
        (np.ones(30), 4, "all 30 usable questions have an accuracy of 1.000"),
        (np.linspace(0, 1, 19), 4, "at least 20 questions .* but there are only 19"),
        (np.array([0.5]), 4, "at least 20 questions .* but there are only 1"),
        (np.linspace(0, 1, 30), 1, "at least two graded answers .* but there are only 0"),
    ],
)
def test_stores_that_cannot_be_audited_are_refused(tmp_path: Path, accuracy: np.ndarray, k: int, message: str) -> None:
    store = store_of(tmp_path / "store", accuracy, k=k)
    with pytest.raises(InputError, match=message) as refused:
        audit_record(store, load_table(store))
    assert "\n" not in str(refused.value)


def test_a_store_without_grades_is_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", np.linspace(0, 1, 30), k=2)
    shutil.rmtree(store.path / "grades/made")
    with pytest.raises(InputError, match="to contain grades, but it has none"):
        audit(str(store.path), str(tmp_path / "out"))
