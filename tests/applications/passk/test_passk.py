"""Tests of the command: what is measured, masked and refused, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.integrate import quad
from scipy.special import beta

from applications.__main__ import COMMANDS
from applications.intervals import mean_over_groups
from applications.passk.command import passk
from applications.passk.estimators import pass_at_k, predict_from_prior
from applications.passk.instances import error_records
from applications.passk.record import load_graded, passk_record
from applications.stores import open_stores
from datamodules.table import load_table
from extract import InputError, Store
from extract.running.cli import run
from extract.store.verify import write_manifest
from tests.helpers.synthetic import make_store

#: Grades of the answers to one question: right, wrong or unknown.
Row = Sequence[bool | None]
Make = Callable[[Sequence[Row]], Path]
R, W = True, False


def store_of(folder: Path, grades: Sequence[Row], temperature: float = 0.7) -> Path:
    """Make a store whose answers have these grades by the grader `given`."""
    n, k = len(grades), len(grades[0])
    store = make_store(folder, np.zeros((n, 1, 2), np.float32), np.zeros(n), k=k, temperature=temperature)
    for part in store.samples.ranges():
        rows = [
            {
                "question_id": row["question_id"],
                "sample": row["sample"],
                "right": grades[int(row["question_id"][1:])][row["sample"]],
                "answer": "x",
            }
            for row in store.samples.read(part).to_pylist()
        ]
        store.grades.write("given", part, rows, "as given")
    write_manifest(store)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda grades: store_of(tmp_path / "store", grades)


def drawn(p: np.ndarray, k: int, seed: int = 0) -> list[list[bool | None]]:
    return [[bool(right) for right in row] for row in np.random.default_rng(seed).random((len(p), k)) < p[:, None]]


def record_of(store: Path, sources: Sequence[str] = (), k: Sequence[int] | None = None) -> dict[str, Any]:
    return passk_record(load_graded(open_stores(str(store)), "given"), sources, k, 100, 0)[0]


def column_file(path: Path, values: Sequence[float | None], name: str = "mine") -> str:
    rows = [f"q{i},{'' if value is None else value}" for i, value in enumerate(values)]
    path.write_text("\n".join([f"question_id,{name}", *rows]))
    return f"{path}:{name}"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Run the command on a store of 60 questions with two confidences."""
    folder = tmp_path_factory.mktemp("passk")
    p = np.random.default_rng(0).beta(0.4, 0.8, 60).round(3)
    store = store_of(folder / "store", drawn(p, 8))
    sources = [
        column_file(folder / "true.csv", p.tolist(), "true"),
        column_file(folder / "half.csv", [0.5] * 60, "half"),
    ]
    return passk(str(store), sources, grader="given", out=str(folder / "out"), n_resamples=100), p


# Results


@pytest.mark.slow
def test_the_results_are_a_page_a_record_a_table_and_pictures(written: tuple[Path, np.ndarray]) -> None:
    folder, p = written
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    plots = {f"plots/{name}.{suffix}" for name in ("curve", "zero_share") for suffix in ("png", "pdf")}
    assert names == {"passk.md", "passk.json", "passk.parquet", *plots}
    page = (folder / "passk.md").read_text()
    record = json.loads((folder / "passk.json").read_text())
    assert record["k"] == [1, 4]
    store = record["stores"][0]
    assert f"{store['pass_at_k'][1]['value']:.3f}" in page
    assert "None" not in page
    assert "not measured" in page
    table = pq.read_table(folder / "passk.parquet").to_pydict()
    assert np.mean(table["pass_at_4"]) == pytest.approx(store["pass_at_k"][1]["value"])
    np.testing.assert_allclose(table["true_at_4"], 1 - (1 - p) ** 4)
    assert store["beyond"] == [16, 64, 256]
    assert table["posterior_at_16"][0] >= table["pass_at_1"][0] * 0.5


def test_a_prior_corrects_the_predictions_of_an_uninformative_confidence() -> None:
    rng = np.random.default_rng(0)
    p, n = rng.beta(0.4, 0.6, 4000), np.full(4000, 32)
    right = rng.binomial(32, p)
    counts = {False: (right, n)}
    found = error_records({"constant": np.full(4000, 0.4)}, counts, [1, 4, 16], 100, 0)
    plug_in, bayesian, constant = (
        next(one for one in found if (one["name"], one["prediction"]) == key)["squared_error"]
        for key in (("constant", "plug-in"), ("constant", "Bayesian"), ("mean_pass_at_k", ""))
    )
    for i in (1, 2):
        assert plug_in[i]["value"] > constant[i]["value"] + 0.05
        assert bayesian[i]["value"] == pytest.approx(constant[i]["value"], abs=0.003)


@pytest.mark.slow
def test_predictions_from_a_prior_are_expectations() -> None:
    a, b, k = np.array([0.4, 2.0, 0.0, 1.0]), np.array([0.7, 1.0, 1.0, 0.0]), [1, 3, 20]
    densities = [{"weight": "alg", "wvar": (a[i] - 1, b[i] - 1)} for i in (0, 1)]  # pᵃ⁻¹(1 − p)ᵇ⁻¹
    expected = [
        [quad(lambda p, n=n: 1 - (1 - p) ** n, 0, 1, **densities[i])[0] / beta(a[i], b[i]) for i in (0, 1)] for n in k
    ]
    found = predict_from_prior(a, b, k)
    np.testing.assert_allclose(found[:, :2], expected, rtol=1e-6)
    assert found[:, 2:].tolist() == [[0, 1]] * 3


@pytest.mark.slow
def test_the_true_accuracies_predict_better_than_the_baselines(written: tuple[Path, np.ndarray]) -> None:
    folder, _ = written
    store = json.loads((folder / "passk.json").read_text())["stores"][0]
    errors = {method["name"]: method for method in store["errors"] if method["prediction"] != "Bayesian"}
    assert list(errors) == ["base_rate", "mean_pass_at_k", "oracle", "true", "half"]
    for i in range(2):
        assert abs(errors["true"]["squared_error"][i]["value"]) < 0.01
        assert errors["true"]["minus_mean_pass_at_k"][i]["high"] < 0
        assert errors["oracle"]["squared_error"][i]["value"] < errors["half"]["squared_error"][i]["value"]
    place = store["curve"]["k"].index(4)
    band = store["curve"]["predicted"]["true"][place]
    assert band["low"] < store["pass_at_k"][1]["value"] < band["high"]
    assert len(store["curve"]["measured"]) == store["curve"]["k"].index(8) + 1
    extrapolation = store["extrapolation"]
    assert [found["value"] for found in extrapolation["beta_binomial"]["pass_at_k"]] == sorted(
        found["value"] for found in extrapolation["beta_binomial"]["pass_at_k"]
    )
    for model in ("beta_binomial", "zero_inflated"):
        assert all(found["low"] <= found["value"] + 0.02 for found in extrapolation[model]["pass_at_k"])


@pytest.mark.slow
def test_the_command_prints_a_summary_and_a_table(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make([[R, W], [W, W], [R, R]])
    arguments = ["passk", "--store", str(store), "--k", "[1,2]", "--grader", "given", "--out", str(tmp_path / "out")]
    assert run(COMMANDS, "applications", [*arguments, "--n_resamples", "100"]) == 0
    out = capsys.readouterr().out
    assert "at least one of 2 answers with a probability of 0.667" in out
    assert "| 3 | 6 | 0 | 0.500" in out


def test_confidences_from_half_of_the_answers_are_scored_on_the_other_half(tmp_path: Path) -> None:
    p = np.random.default_rng(0).random(19)
    store = store_of(tmp_path / "store", drawn(p, 8))
    table = load_table(Store.open(store), "given")
    source = column_file(tmp_path / "a.csv", p.tolist(), "consistency")
    found = {(method["name"], method["half"]): method for method in record_of(store, [source])["stores"][0]["errors"]}
    assert ("consistency", False) not in found
    assert ("base_rate", True) in found
    value = found["consistency", True]["squared_error"][0]["value"]
    c, n = table.held_right, table.held_known
    assert value == pytest.approx(np.mean(p**2 - 2 * p * c / n + c * (c - 1) / (n * (n - 1))))
    assert found["consistency", True]["squared_error"][1] is None  # half of 4 answers are fewer than 4


def test_groups_have_equal_weights_whatever_their_sizes() -> None:
    metric = mean_over_groups(np.array([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 1, 1, 1]))
    weights = torch.tensor([[1.0, 1, 1, 1], [2.0, 0, 0, 0], [0.0, 4, 0, 0]]).double()
    assert metric(weights).tolist() == [0.5, 1.0, 0.0]


def test_differences_from_the_base_rate_are_paired() -> None:
    counts = {False: (np.array([0, 4, 1, 3]), np.full(4, 4))}
    found = error_records({"mine": np.array([0.1, 0.9, 0.2, 0.8])}, counts, [1], 100, 0)
    own, base = found[-1], found[0]
    assert base["name"] == "base_rate"
    assert base["minus_mean_pass_at_k"][0]["value"] == 0
    difference = own["squared_error"][0]["value"] - base["squared_error"][0]["value"]
    assert own["minus_mean_pass_at_k"][0]["value"] == pytest.approx(difference)


# Unequal counts, unknown grades and degenerate stores


def test_unknown_grades_are_masked_and_counted(make: Make) -> None:
    store = make([[R, None, W], [W, W, W], [None, None, None], [None, R, R]])
    record = record_of(store, k=[2])
    figures = record["stores"][0]
    expected = pass_at_k(np.array([1, 0, 2]), np.array([2, 3, 2]), [2]).mean()
    assert figures["pass_at_k"][0]["value"] == pytest.approx(expected)
    assert (record["n_questions"], record["n_questions_left_out"]) == (3, 1)
    assert (figures["n_answers"], figures["n_unknown"], figures["fewest"]) == (7, 2, 2)


def test_more_answers_than_known_grades_are_refused(make: Make) -> None:
    store = make([[R, None, W], [W, W, W]])
    with pytest.raises(InputError, match=r"`k` to be between 1 and 2, the smallest number of graded .* got 3"):
        record_of(store, k=[1, 3])
    assert record_of(store)["k"] == [1]
    with pytest.raises(InputError, match="`k` to contain at least one value, but it is empty"):
        record_of(store, k=[])


def test_a_store_without_known_grades_gives_a_one_line_error(make: Make) -> None:
    with pytest.raises(InputError, match="one question with a known grade, but none of the 2 questions has one"):
        record_of(make([[None, None], [None, None]]))


@pytest.mark.slow
@pytest.mark.parametrize(("right", "reason"), [(W, "no answer is right"), (R, "all answers are right")])
def test_without_right_or_wrong_answers_nothing_is_extrapolated(
    make: Make, tmp_path: Path, right: bool, reason: str
) -> None:
    folder = passk(str(make([[right] * 4] * 30)), grader="given", out=str(tmp_path / "out"), n_resamples=100)
    figures = json.loads((folder / "passk.json").read_text())["stores"][0]
    assert figures["pass_at_k"] == [{"value": float(right), "low": None, "high": None}] * 2
    assert (figures["extrapolation"], figures["not_extrapolated"]) == (None, reason)
    page = (folder / "passk.md").read_text()
    assert f"not available: {reason}" in page
    assert ("None of the 120 answers is right" in page) == (not right)


@pytest.mark.slow
def test_a_single_question_has_no_intervals_and_no_baselines(make: Make, tmp_path: Path) -> None:
    folder = passk(str(make([[R, W, W, W]])), grader="given", out=str(tmp_path / "out"), n_resamples=100)
    figures = json.loads((folder / "passk.json").read_text())["stores"][0]
    assert figures["pass_at_k"][0] == {"value": 0.25, "low": None, "high": None}
    assert figures["errors"] == []
    assert "at least 20 questions are required, but there are 1" in figures["not_extrapolated"]
    assert "there is only one question" in (folder / "passk.md").read_text()


def test_confidences_with_gaps_or_the_same_name_are_refused(make: Make, tmp_path: Path) -> None:
    store = make([[R, W], [W, W], [None, None]])
    gaps = column_file(tmp_path / "gaps.csv", [0.5, None, 0.5])
    with pytest.raises(InputError, match="every graded question .* 1 of 2 questions have none, for example 'q1'"):
        record_of(store, [gaps])
    whole = column_file(tmp_path / "whole.csv", [0.5, 0.5, None])
    assert record_of(store, [whole])["confidences"] == ["mine"]
    with pytest.raises(InputError, match="distinct names other than .*, but got mine, mine"):
        record_of(store, [whole, whole])


# Temperature grids


@pytest.mark.slow
def test_a_grid_has_results_for_each_temperature_and_for_the_split(tmp_path: Path) -> None:
    p = np.random.default_rng(0).beta(0.5, 0.5, 24)
    greedy = drawn((p > 0.5).astype(float), 1)
    grades = {0.0: greedy, 0.5: drawn(p, 8, 1), 1.0: drawn(p[::-1], 8, 2)}
    grades[1.0][3] = [None] * 8
    for temperature, rows in grades.items():
        store_of(tmp_path / "grid" / f"t{temperature}", rows, temperature)
    folder = passk(str(tmp_path / "grid"), grader="given", out=str(tmp_path / "out"), n_resamples=100)
    record = json.loads((folder / "passk.json").read_text())
    assert (record["n_questions"], record["n_questions_left_out"]) == (23, 1)
    assert record["k"] == [1, 4]
    assert [store["temperature"] for store in record["stores"]] == [0, 0.5, 1]
    kept = [i for i in range(24) if i != 3]
    assert record["stores"][0]["pass_at_k"][1]["value"] == pytest.approx(np.mean([greedy[i][0] for i in kept]))
    assert record["stores"][0]["n_answers"] == 23
    assert record["stores"][0]["not_extrapolated"] == "there is only one graded answer to each question"
    right = np.array([[sum(map(bool, rows[i])) for i in kept] for rows in grades.values()])
    assert record["temperatures"]["union"]["value"] == pytest.approx((right > 0).any(0).mean())
    assert [budget["k"] for budget in record["temperatures"]["budgets"]] == [3, 5]
    page = (folder / "passk.md").read_text()
    assert "temperature 0, 0.5, 1," in page
    assert "split evenly over the temperatures has a pass rate of" in page
    table = pq.read_table(folder / "passk.parquet").to_pydict()
    assert len(table["right"]) == 3 * 23
    assert (folder / "plots" / "temperatures.png").is_file()
