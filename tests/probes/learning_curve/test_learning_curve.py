"""Tests of learning curves: nested subsets, separation of training and test grades, a planted truth, and budgets."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import t
from torch import Tensor

from extract.errors import InputError
from extract.registry import import_object
from probes.commands import curve
from probes.comparison.out_of_fold import Comparison
from probes.difference_of_means import DifferenceOfMeans
from probes.fitting.training import ClosedForm
from probes.learning_curve.curve import CLOSED_FORM, LearningCurve, halvings, random_ranks, round_numbers
from probes.learning_curve.record import curve_page, curve_record, curve_verdict, over_subsets, splits_of_budgets
from probes.metrics.functional import capability_auroc
from probes.metrics.functional.inputs import mean
from probes.metrics.intervals import bootstrap
from probes.registry import PROBES
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "planted"
    make_store(folder, *planted(), k=6)
    return folder


@pytest.fixture(scope="module")
def fitted(store: Path) -> LearningCurve:
    return LearningCurve(str(store), n=[12, 60], k=[1, 6], n_folds=2, n_subsets=2).run()


@pytest.fixture(scope="module")
def record(fitted: LearningCurve) -> dict[str, Any]:
    return json.loads(json.dumps(curve_record(fitted, 200, 0), allow_nan=False))


def fits_of(
    store: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[tuple[Tensor, Tensor, NDArray[np.bool_]]]:
    """Return the training questions, test questions and kept answers of each fit, without fitting."""
    fits: list[tuple[Tensor, Tensor, NDArray[np.bool_]]] = []

    def note(_: LearningCurve, *rows: Any) -> tuple[Tensor, bool]:
        fits.append(rows)
        return torch.zeros(len(rows[1]), dtype=torch.float64), False

    monkeypatch.setattr(LearningCurve, "_fit", note)
    LearningCurve(str(store), n_folds=2, **options).run()
    return fits


def test_subsets_are_nested_and_depend_on_the_seed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"n": [20, 40], "k": [1, 3], "n_subsets": 3}
    fits = fits_of(store, monkeypatch, **options)
    again, other = (fits_of(store, monkeypatch, **options, seed=seed) for seed in (0, 1))
    question = LearningCurve(str(store)).table.answers.question
    assert len(fits) == 2 * 2 * 2 * 3
    by_cell = [fits[start : start + 6] for start in range(0, 24, 6)]  # (20, 1), (20, 3), (40, 1), (40, 3)
    for (n, k), cell in zip(((20, 1), (20, 3), (40, 1), (40, 3)), by_cell, strict=True):
        for train, test, kept in cell:
            assert len(set(train.tolist())) == n
            assert not set(train.tolist()) & set(test.tolist())
            assert set(np.bincount(question[kept])[train]) == {k}
            assert set(np.bincount(question[kept])[test]) == {6}
    for smaller, larger in ((0, 1), (0, 2), (1, 3), (2, 3)):
        for (train, _, kept), (more, _, kept_more) in zip(by_cell[smaller], by_cell[larger], strict=True):
            inside = np.isin(question, train)
            assert set(train.tolist()) <= set(more.tolist())
            assert not (kept & ~kept_more)[inside].any()
    same = [torch.equal(one[0], two[0]) and (one[2] == two[2]).all() for one, two in zip(fits, again, strict=True)]
    assert all(same)
    assert not any(torch.equal(one[0], two[0]) for one, two in zip(fits, other, strict=True))
    assert not torch.equal(fits[0][0].sort().values, fits[2][0].sort().values)  # two subsets of the same fold


def test_answers_with_unknown_grades_are_ranked_last(fitted: LearningCurve) -> None:
    answers = fitted.table.answers
    known = np.where(answers.sample < 4, 1, 0)
    ranks = random_ranks(replace(answers, known=known), np.random.default_rng(0))
    for question in range(120):
        mine = answers.question == question
        assert sorted(ranks[mine]) == list(range(6))
        assert sorted(ranks[mine & (known == 1)]) == list(range(4))


def test_the_largest_cell_equals_a_direct_fit(store: Path, fitted: LearningCurve) -> None:
    direct = Comparison(str(store), probes=["layer_average"], n_folds=2).run()
    cell = fitted.cells[60, 6]
    assert cell.confidence.shape == (1, 120)  # all subsets would be the same
    assert torch.equal(fitted.fold, direct.fold)
    torch.testing.assert_close(cell.confidence[0], direct.confidence["layer_average"], rtol=0, atol=1e-5)


def test_training_and_calibration_use_one_grade_and_tests_use_all(store: Path) -> None:
    one = LearningCurve(str(store), n=[30], k=[1], n_folds=2, n_subsets=1).run()
    train, test = (one.data.batch(split) for split in ("train", "test"))
    assert set(train.known.tolist()) == {1}
    assert set(train.target.tolist()) == {0, 1}
    assert torch.equal(train.right, train.target)
    assert set(test.known.tolist()) == {6}
    measured = curve_record(one, 100, 0)
    assert measured["n_answers"] == 720
    assert measured["accuracy"] == pytest.approx(one.table.accuracy.mean())


def test_grades_outside_the_subset_do_not_matter(store: Path) -> None:
    options: dict[str, Any] = {"n": [30], "k": [2], "n_folds": 2, "n_subsets": 1}
    original = LearningCurve(str(store), **options)
    expected = original.run().cells[30, 2].confidence
    ((_, ranks),) = original.subsets(30, 2)
    for used in (False, True):
        changed = LearningCurve(str(store), **options)
        answers = changed.table.answers
        right = np.where((ranks < 2) == used, 1 - answers.right, answers.right)
        changed.table = replace(changed.table, answers=replace(answers, right=right))
        same = torch.equal(changed.run().cells[30, 2].confidence, expected)
        assert same == (not used)


def test_grades_of_the_test_questions_do_not_matter(store: Path) -> None:
    options: dict[str, Any] = {"n": [30], "k": [2], "n_folds": 2, "n_subsets": 1}
    first, second = LearningCurve(str(store), **options), LearningCurve(str(store), **options)
    test, other = second.folds
    answers = second.table.answers
    right = np.where(np.isin(answers.question, test), 1 - answers.right, answers.right)
    second.table = replace(second.table, answers=replace(answers, right=right))
    same = first.run().cells[30, 2].confidence[0] == second.run().cells[30, 2].confidence[0]
    assert same[test].all()
    assert not same[other].any()


def test_the_curve_rises_to_the_limit_of_the_planted_truth(tmp_path: Path) -> None:
    features, accuracy = planted(n=800, layers=2, width=24, seed=1)
    make_store(tmp_path / "store", features, accuracy)
    found = LearningCurve(str(tmp_path / "store"), n=[25, 100, 400], k=[1, 10], n_folds=2, n_subsets=2).run()
    cells = {(cell["n"], cell["k"]): cell["auroc"] for cell in curve_record(found, 20, 0)["cells"]}
    auroc = {split: cell["value"] for split, cell in cells.items()}
    for k in (1, 10):
        assert auroc[25, k] < auroc[100, k] < auroc[400, k]
    for n in (25, 100, 400):
        assert auroc[n, 1] < auroc[n, 10]
    counts = torch.from_numpy(found.table.right), torch.from_numpy(found.table.known)
    limit = float(capability_auroc(torch.from_numpy(accuracy), *counts, strata=found.fold))
    assert auroc[25, 1] < limit - 0.1
    assert limit - 0.01 < auroc[400, 10] < limit
    assert cells[25, 1]["spread"] > 3 * cells[400, 1]["spread"]


def test_an_interval_over_subsets_adds_their_variation_to_that_of_the_test_questions() -> None:
    values, shifts = torch.linspace(0, 1, 50, dtype=torch.float64), (0.0, 0.3, 0.6)
    metrics = [lambda weights, shift=shift: mean(values + shift, weights) for shift in shifts]
    alone, found = bootstrap(metrics[1], 50, 500, 0), over_subsets(metrics, 50, 500, 0)
    assert alone is not None
    assert found is not None
    assert found["value"] == pytest.approx(0.8)
    assert found["spread"] == pytest.approx(0.3)
    margin = t.ppf(0.975, 2) * 0.3 / math.sqrt(3)
    assert 0.8 - found["low"] == pytest.approx(math.hypot(0.8 - alone["low"], margin), rel=1e-3)
    assert found["high"] - 0.8 == pytest.approx(math.hypot(alone["high"] - 0.8, margin), rel=1e-3)
    assert over_subsets(metrics[1:2], 50, 500, 0) == {**alone, "spread": None}
    assert over_subsets([lambda weights: weights.sum(-1) * torch.nan], 50, 500, 0) is None


def test_intervals_over_subsets_contain_the_mean_over_all_subsets_and_questions() -> None:
    rng, n_inside = np.random.default_rng(0), 0
    for seed in range(200):
        of_questions, of_subsets = rng.normal(0, 1, 60), rng.normal(0, 0.13, 5)
        rows = torch.from_numpy(of_questions + of_subsets[:, None])
        found = over_subsets([lambda weights, row=row: mean(row, weights) for row in rows], 60, 200, seed)
        assert found is not None
        n_inside += found["low"] < 0 < found["high"]
    assert 184 <= n_inside <= 200  # at least 92 %; the intervals are slightly too wide


@pytest.mark.parametrize(
    ("splits", "budgets"),
    [
        ([(48, 1), (96, 1), (48, 2), (96, 2)], {96: [(96, 1), (48, 2)]}),
        ([(192, 2), (385, 1)], {385: [(385, 1), (192, 2)]}),  # 384 and 385 are the same budget
        ([(100, 1), (40, 10)], {}),  # 100 answers are less than half of 400
        ([(60, 1), (100, 1), (25, 4)], {100: [(100, 1), (25, 4)]}),  # only the largest n of each k
        ([], {}),
    ],
)
def test_splits_of_a_budget_use_more_than_half_of_it(splits: list[Any], budgets: dict[int, Any]) -> None:
    assert splits_of_budgets(splits) == budgets


def test_default_grids_reach_from_few_to_all() -> None:
    assert halvings(384) == [48, 96, 192, 384]
    assert halvings(79) == [79]
    assert round_numbers(1) == [1]
    assert round_numbers(10) == [1, 2, 5, 10]
    assert round_numbers(25) == [1, 2, 5, 10, 20, 25]


def test_every_closed_form_probe_of_hidden_states_can_be_used() -> None:
    methods = {name: method for name, method in PROBES.items() if method.target == "capability" and not method.join}
    assert set(CLOSED_FORM) == {
        name for name, one in methods.items() if issubclass(import_object(one.path), ClosedForm)
    }


def test_the_record_compares_cells_on_the_same_questions(fitted: LearningCurve, record: dict[str, Any]) -> None:
    cells = {(cell["n"], cell["k"]): cell for cell in record["cells"]}
    assert set(cells) == {(12, 1), (12, 6), (60, 1), (60, 6)}
    counts = torch.from_numpy(fitted.table.right), torch.from_numpy(fitted.table.known)
    for split, cell in fitted.cells.items():
        values = [float(capability_auroc(row, *counts, strata=fitted.fold)) for row in cell.confidence]
        assert cells[split]["auroc"]["value"] == pytest.approx(np.mean(values))
        assert cells[split]["budget"] == split[0] * split[1]
    questions, answers = record["contrasts"]
    assert (questions["from"], questions["to"], answers["to"]) == ([60, 6], [12, 6], [60, 1])
    for contrast in record["contrasts"]:
        for metric in ("auroc", "brier_skill"):
            values = [cells[tuple(contrast[end])][metric]["value"] for end in ("to", "from")]
            assert contrast[metric]["value"] == pytest.approx(values[0] - values[1])
    skill = cells[60, 6]["brier_skill"]["value"]
    comparison = Comparison(fitted.store, probes=["layer_average"], n_folds=2)
    rest = [comparison.data.table.accuracy[(fitted.fold != fold).numpy()].mean() for fold in range(2)]
    reference = torch.tensor(rest, dtype=torch.float64)[fitted.fold]
    accuracy = torch.from_numpy(fitted.table.accuracy)
    noise = (accuracy * (1 - accuracy) / 5).mean()
    scores = [
        float(((values - accuracy) ** 2).mean() - noise) for values in (fitted.cells[60, 6].confidence[0], reference)
    ]
    assert skill == pytest.approx(1 - scores[0] / scores[1])


def test_budgets_name_the_best_split_and_their_sign_is_stated(record: dict[str, Any]) -> None:
    cells = {(cell["n"], cell["k"]): cell["auroc"]["value"] for cell in record["cells"]}
    (budget,) = record["budgets"]
    assert (budget["budget"], budget["splits"]) == (72, [[60, 1], [12, 6]])
    best, second = sorted([(60, 1), (12, 6)], key=cells.__getitem__, reverse=True)
    assert (budget["best"], budget["runner_up"]) == ([*best], [*second])
    assert budget["difference"]["value"] == pytest.approx(cells[best] - cells[second])
    assert budget["many_minus_few"]["value"] == pytest.approx(cells[60, 1] - cells[12, 6])
    for bounds, said in (
        ((0.1, 0.2), "Ask many questions, with few"),
        ((-0.2, -0.1), "Ask fewer questions"),
        ((-0.1, 0.1), "No split of a labelling budget is clearly better"),
    ):
        changed = {**budget, "many_minus_few": dict(zip(("low", "high"), bounds, strict=True))}
        assert said in curve_verdict({**record, "budgets": [changed]})


def test_cells_without_right_answers_return_the_base_rate(tmp_path: Path) -> None:
    make_store(tmp_path / "store", planted()[0], np.where(np.arange(120) % 10 == 0, 0.5, 0.0))
    options: dict[str, Any] = {"folds": 2, "subsets": 2, "n_resamples": 100}
    folder = curve(str(tmp_path / "store"), str(tmp_path / "out"), "difference_of_means", [10, 60], [1], **options)
    record = json.loads((folder / "curve.json").read_text())
    assert record["masked"] == {}
    assert all(cell["n_base_rate"] == cell["n_fits"] for cell in record["cells"] if cell["n"] == 10)


def test_cells_in_which_a_fit_fails_are_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "store", *planted())
    solve = DifferenceOfMeans.solve

    def solve_large(self: DifferenceOfMeans, features: torch.Tensor, target: torch.Tensor) -> Any:
        if len(target) < 11:
            raise InputError("Expected more questions.")
        return solve(self, features, target)

    monkeypatch.setattr(DifferenceOfMeans, "solve", solve_large)
    options: list[Any] = ["difference_of_means", [10, 60], [1, 10]]
    folder = curve(str(tmp_path / "store"), str(tmp_path / "out"), *options, folds=2, subsets=2, n_resamples=100)
    record = json.loads((folder / "curve.json").read_text())
    assert "10 questions, k = 1" in record["masked"]
    assert (60, 10) in {(cell["n"], cell["k"]) for cell in record["cells"]}
    page = (folder / "curve.md").read_text()
    assert "- `10 questions, k = 1`" in page
    assert "fits failed. The first error: Expected" in page
    with pytest.raises(
        InputError, match="every pair has at least one failed fit. . of 4 fits failed. The first error: Expected"
    ):
        curve(str(tmp_path / "store"), str(tmp_path / "no"), options[0], [10], [1], folds=2, subsets=2)
    assert not (tmp_path / "no").exists()


def test_curve_writes_its_page_record_and_pictures(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"folds": 2, "subsets": 1, "n_resamples": 100}
    folder = curve(str(store), str(tmp_path / "out"), "ridge", [30, 60], [1, 2], **options)
    assert {path.name for path in folder.iterdir()} == {"curve.json", "curve.md", "plots"}
    page = (folder / "curve.md").read_text()
    record = json.loads((folder / "curve.json").read_text())
    assert curve_page(record, ["questions", "budgets"]) == page
    for picture in (folder / "plots").glob("*.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert f"plots/{picture.name}" in page
    assert "nan" not in page.lower()
    printed = capsys.readouterr().out
    assert printed.startswith(
        "The ridge probe (`ridge`) was trained on 60 questions with 2 answers each. It has an out-of-fold"
    )
    with pytest.raises(InputError, match="`out` to be a new folder"):
        curve(str(store), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": "mlp"}, "`probe` to be one of layer_average, logistic, ridge, difference_of_means, but got 'mlp'"),
        (
            {"k": [1, 7]},
            "`k` to contain numbers from 1 to 6 .the number of graded answers per question., but got .1, 7.. To use",
        ),
        ({"k": [0]}, "`k` to contain numbers from 1 to 6 .* but got .0."),
        ({"k": []}, "`k` to contain numbers from 1 to 6 .* but got .."),
        ({"n": [97]}, "`n` to contain numbers from 10 to 96 .the number of questions outside a test fold"),
        ({"n": [9]}, "`n` to contain numbers from 10 to 96"),
        ({"folds": 1}, "`folds` to be at least 2"),
        ({"folds": 40}, "at least 160 questions"),
        ({"subsets": 0}, "`subsets` to be at least 1"),
    ],
)
def test_impossible_options_are_refused_and_leave_no_folder(
    store: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        curve(str(store), str(tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())


def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "store", *planted(n=40))
    with pytest.raises(InputError, match="at least 50 questions with at least two graded answers each, but got 40"):
        curve(str(tmp_path / "store"), str(tmp_path / "out"))
