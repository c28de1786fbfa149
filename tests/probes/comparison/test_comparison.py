"""Tests of the comparison of methods, and of transfer between sets, on synthetic stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from extract.errors import InputError
from probes.baselines.registry import BASELINES
from probes.commands import compare, transfer
from probes.comparison.out_of_fold import BEST, Comparison, Fit, OutOfFold
from probes.comparison.pictures import comparison_pictures
from probes.comparison.record import (
    cheap_baselines,
    comparison_page,
    comparison_record,
    comparison_verdict,
    paired_tests,
    scored,
)
from probes.comparison.transfer import transfer_page, transfer_record
from probes.logistic import Logistic
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store

pytestmark = pytest.mark.slow

PROBES = ["logistic", "difference_of_means"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "planted"
    make_store(folder, *planted())
    return folder


@pytest.fixture(scope="module")
def out(store: Path) -> OutOfFold:
    return Comparison(str(store), probes=PROBES, n_folds=3).run()


@pytest.fixture(scope="module")
def record(out: OutOfFold) -> dict[str, Any]:
    return comparison_record(out, 3, 200, 0)


@pytest.fixture
def four_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare probes with four baselines only, because the metrics of all of them would take most of the time."""
    few = {"question": ["constant", "base_rate", "consistency"], "sample": ["mean_nll"]}
    monkeypatch.setattr("probes.comparison.out_of_fold.baselines_of", few.__getitem__)


def compared(store: Path, probe: str, grader: str | None = None) -> tuple[OutOfFold, dict[str, Any]]:
    """Compare a probe with the baselines in two folds, with few resamples."""
    out = Comparison(str(store), grader, [probe], n_folds=2).run()
    return out, json.loads(json.dumps(comparison_record(out, 2, 10, 0), allow_nan=False))


def test_every_question_is_tested_once_by_a_probe_that_was_not_trained_on_it(store: Path) -> None:
    comparison = Comparison(str(store), probes=PROBES, n_folds=3)
    tested = torch.cat([fold["test"] for fold in comparison.folds])
    assert tested.sort().values.tolist() == list(range(120))
    for fold in comparison.folds:
        rows = torch.cat(list(fold.values()))
        assert rows.sort().values.tolist() == list(range(120))


def test_the_confidence_of_a_question_does_not_depend_on_its_own_answers(store: Path, out: OutOfFold) -> None:
    comparison = Comparison(str(store), probes=PROBES, n_folds=3)
    test = comparison.folds[0]["test"].numpy()
    table = comparison.data.table
    table.right[test] = 10 - table.right[test]
    comparison.use_table(table)
    same = comparison.run()
    for name in (*PROBES, BEST, "constant", "base_rate"):
        assert torch.equal(same.confidence[name][test], out.confidence[name][test]), name
    assert not torch.equal(same.confidence["logistic"], out.confidence["logistic"])


@pytest.mark.parametrize(
    ("mean", "chosen"), [(0.0, "logistic"), (0.9, "logistic"), (1.1, "difference_of_means"), (-1.1, "logistic")]
)
def test_the_best_probe_is_the_first_within_one_standard_error_of_the_lowest_loss(
    store: Path, mean: float, chosen: str
) -> None:
    """`mean` is the mean difference between the losses of the first and the second probe in standard errors."""
    comparison, rng = Comparison(str(store), probes=PROBES, n_folds=3), np.random.default_rng(0)
    rows, losses = comparison.folds[0], torch.full((2, 120), torch.nan, dtype=torch.float64)
    difference = rng.normal(size=len(rows["val"]))
    difference -= difference.mean()
    standard_error = difference.std(ddof=1) / len(difference) ** 0.5
    losses[1, rows["val"]] = torch.from_numpy(rng.exponential(size=len(difference)))
    losses[0, rows["val"]] = losses[1, rows["val"]] + torch.from_numpy(difference + mean * standard_error)
    for place, name in enumerate(PROBES):
        comparison.out.add("question", name, rows["test"], torch.full((len(rows["test"]),), float(place)))
    fits = {name: Fit({"probe": name, "warning": None}, loss) for name, loss in zip(PROBES, losses, strict=True)}
    comparison._choose(fits, 0, rows)
    assert comparison.out.chosen == [{"fold": 0, "probe": chosen, "warning": None}]
    assert comparison.out.confidence[BEST][rows["test"]].unique().tolist() == [PROBES.index(chosen)]


@pytest.mark.usefixtures("four_baselines")
def test_a_probe_that_returns_the_base_rate_can_be_the_best(tmp_path: Path) -> None:
    """The features are noise, so a probe with a slightly lower loss than the base rate is not significantly better."""
    rng = np.random.default_rng(5)
    make_store(tmp_path / "noise", rng.normal(size=(120, 3, 8)).astype(np.float32), rng.beta(1, 2, size=120))
    out = Comparison(str(tmp_path / "noise"), probes=["layer_average", "knn"], n_folds=3).run()
    assert all(one["probe"] == "layer_average" and one["warning"] for one in out.chosen)
    for number in range(3):
        assert out.confidence[BEST][out.fold == number].unique().numel() == 1


@pytest.mark.usefixtures("four_baselines")
def test_a_probe_that_fails_in_a_later_fold_is_never_the_best(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Comparison(str(store), n_folds=3).folds[2]["train"].tolist()
    learn = Logistic.learn

    def fail_in_the_last_fold(self: Logistic, features: torch.Tensor, target: torch.Tensor) -> None:
        if self.data.question_rows["train"].tolist() == rows:
            raise InputError("Expected another fold, but got the last one.")
        learn(self, features, target)

    monkeypatch.setattr(Logistic, "learn", fail_in_the_last_fold)
    out = Comparison(str(store), probes=["logistic", "difference_of_means"], n_folds=3).run()
    assert "logistic" in out.masked
    assert "logistic" not in out.confidence
    assert {one["probe"] for one in out.chosen} == {"difference_of_means"}


def test_validation_losses_are_compared_on_the_validation_questions_of_the_fold(store: Path) -> None:
    """The logistic probe is cross-fitted and also scores the training questions; the linear probe is not."""
    comparison = Comparison(str(store), probes=["logistic", "linear"], n_folds=3)
    rows = comparison.folds[0]
    for name, method in comparison._methods.items():
        chosen, losses = comparison._fit(name, method, 0, rows)
        assert torch.equal(losses.isfinite().nonzero()[:, 0], rows["val"].sort().values)
        assert chosen["val_loss"] == pytest.approx(float(losses[rows["val"]].mean()))


def test_the_planted_direction_is_found_and_a_constant_has_no_ranking(record: dict[str, Any]) -> None:
    best = record["methods"][BEST]
    assert best["auroc"]["value"] > 0.9 * best["auroc_ceiling"]["value"]
    assert record["methods"]["constant"]["auroc"]["value"] == 0.5  # though it differs from fold to fold
    assert [one["layers"] for one in record["chosen"]] == [[2]] * 3


def test_the_two_brier_scores_differ_by_the_irreducible_part(out: OutOfFold, record: dict[str, Any]) -> None:
    one = scored(out, BEST, half=False)
    right, known = one.right.double(), one.known.double()
    irreducible = float((right * (known - right) / (known * (known - 1))).mean())
    for name, figures in record["methods"].items():
        if not figures["half"]:
            assert figures["gap"] == pytest.approx(irreducible, abs=1e-12), name


def test_methods_that_use_answers_and_their_rival_are_scored_on_the_other_answers(record: dict[str, Any]) -> None:
    assert record["methods"]["consistency"]["n_samples"] == 600
    assert record["on_half"][BEST]["n_samples"] == 600
    assert record["methods"][BEST]["n_samples"] == 1200
    for row in record["tests"]:
        assert row["half"] == (row["b"] in BASELINES and BASELINES[row["b"]].half)


def test_the_forest_plot_shows_display_names_and_marks_methods_that_use_half_of_the_answers(
    out: OutOfFold, record: dict[str, Any]
) -> None:
    axes = comparison_pictures(out, record)["methods"].axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    points = [line for line in axes.lines if line.get_marker() == "o"]
    is_white = {names[int(line.get_ydata()[0])]: line.get_markerfacecolor() == "white" for line in points}
    assert is_white["consistency"]
    assert not is_white["difference-of-means probe"]
    assert len(is_white) == sum(figures["auroc"] is not None for figures in record["methods"].values())


def test_p_values_are_corrected_for_all_pairs_of_a_metric(out: OutOfFold, record: dict[str, Any]) -> None:
    assert all(row["p_holm"] >= row["p"] for row in record["tests"])
    alone = paired_tests(out, [(BEST, "constant")], 200)
    assert all(row["p_holm"] == pytest.approx(row["p"]) for row in alone)
    surely = {
        row["b"] for row in record["tests"] if row["a"] == BEST and row["p_holm"] < 0.05 and row["metric"] == "auroc"
    }
    assert "constant" in surely


def test_intervals_of_differences_use_the_number_of_resamples(out: OutOfFold) -> None:
    few, many = (paired_tests(out, [(BEST, "constant")], n_resamples=n)[0] for n in (50, 100))
    assert few["value"] == many["value"]
    assert few["low"] != many["low"]


def test_the_record_contains_costs_and_missing_methods(out: OutOfFold, record: dict[str, Any]) -> None:
    assert record["methods"][BEST]["tokens_read"] == 9
    assert record["methods"][BEST]["tokens_written"] == 0
    assert record["methods"]["consistency"]["tokens_written"] == 10  # five answers of two tokens
    assert set(cheap_baselines(record)) == {"constant", "base_rate", "length"}
    assert "extract ask" in record["masked"]["verbalized"]
    assert "verbalized" not in record["methods"]


def test_the_page_names_every_method_and_every_reason(record: dict[str, Any]) -> None:
    text = comparison_page(json.loads(json.dumps(record, allow_nan=False)), ["methods"])
    for name in (*record["methods"], *record["masked"], *record["answers"]):
        assert f"`{name.removesuffix(' (of an answer)')}`" in text
    assert "nan" not in text.lower().replace("nann", "")


def test_the_page_groups_missing_methods_by_reason(record: dict[str, Any]) -> None:
    reasons = {"attention": "Run A.", "rolling": "Run B.", "multimax": "Run A.", "p_true (of an answer)": "Run A."}
    text = comparison_page(record | {"masked": reasons}, [])
    assert "- `attention`, `multimax`, `p_true` (individual answers): Run A.\n- `rolling`: Run B.\n\n## " in text


def test_the_verdict_begins_with_the_chosen_probe_and_has_a_line_for_each_cheap_baseline(
    record: dict[str, Any],
) -> None:
    first, *lines = comparison_verdict(record).splitlines()
    assert first.startswith(f"The best probe (`{BEST}`) has an out-of-fold AUROC of 0.")
    bullets = [line for line in lines if line.startswith("- ")]
    assert [line.split("`")[1] for line in bullets] == cheap_baselines(record)
    better = [["significantly better" in part for part in line.split(" Brier score ")] for line in bullets]
    n_auroc, n_brier = (sum(column) for column in zip(*better, strict=True))
    count = "all" if n_auroc == 3 else f"{n_auroc} of the"
    same, different = f"than {count} 3 baselines", f"than {n_auroc} in AUROC and {n_brier} in Brier score"
    assert (same if n_auroc == n_brier else different) in "\n".join(lines)


def test_the_verdict_about_a_single_cheap_baseline_is_in_the_singular(record: dict[str, Any]) -> None:
    methods = {n: one for n, one in record["methods"].items() if n == "constant" or one["kind"] != "baseline"}
    verdict = comparison_verdict(record | {"methods": methods})
    assert "The best probe is significantly better than the only baseline of equal or lower token cost" in verdict
    same = [test | {"p_holm": 1.0} for test in record["tests"]]
    verdict = comparison_verdict(record | {"methods": methods, "tests": same})
    assert (
        "is not significantly better than the only baseline of equal or lower token cost, in terms of AUROC or"
        in verdict
    )


@pytest.mark.usefixtures("four_baselines")
def test_compare_writes_its_page_record_pictures_and_predictions(store: Path, tmp_path: Path) -> None:
    folder = compare(str(store), str(tmp_path / "out"), probes=["difference_of_means"], folds=2, n_resamples=100)
    assert {path.name for path in folder.iterdir()} == {
        "comparison.json",
        "comparison.md",
        "plots",
        "predictions.parquet",
    }
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    assert len(rows) == 120
    assert {"question_id", "fold", "right", "known", BEST, "constant"} < set(rows[0])
    text = (folder / "comparison.md").read_text()
    for picture in (folder / "plots").glob("*.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.with_suffix(".pdf").read_bytes()[:4] == b"%PDF"
        assert f"plots/{picture.name}" in text
    with pytest.raises(InputError, match="`out` to be a new folder"):
        compare(str(store), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probes": ["logistics"]}, "Did you mean .logistic"),
        ({"folds": 1}, "`folds` to be at least 2"),
        ({"folds": 40}, "at least 160 questions"),
        ({"probes": []}, "at least one probe"),
    ],
)
def test_impossible_comparisons_are_refused_and_leave_no_folder(
    store: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compare(str(store), str(tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("four_baselines")
@pytest.mark.parametrize(
    ("k", "said"),
    [(2, "left out, because no question has"), (3, "methods are left out"), (4, "(2 answers per question)")],
)
def test_few_answers_leave_no_half_to_be_scored_on(tmp_path: Path, k: int, said: str) -> None:
    make_store(tmp_path / "store", *planted(), k=k)
    _, record = compared(tmp_path / "store", "difference_of_means")
    assert said in comparison_page(record, [])


@pytest.mark.usefixtures("four_baselines")
def test_identical_accuracies_have_no_skill_and_no_ceiling(tmp_path: Path) -> None:
    features, _ = planted()
    store = make_store(tmp_path / "store", features, np.full(120, 0.5))
    for part in store.samples.ranges():  # five right and five wrong answers per question
        rows = [{**row, "right": row["sample"] % 2 == 0} for row in store.grades.read("made", part).to_pylist()]
        store.grades.write("alike", part, rows, "every second")
    out, record = compared(tmp_path / "store", "logistic", grader="alike")
    assert record["methods"][BEST]["auroc_ceiling"] is None
    assert record["methods"][BEST]["brier_skill"] is None
    assert comparison_pictures(out, record)
    assert "nan" not in comparison_page(record, []).lower().replace("nann", "")


def test_a_failed_comparison_leaves_no_files(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        compare(str(store), str(tmp_path / "out"), ["difference_of_means"], folds=2, n_resamples=100)
    assert not list(tmp_path.iterdir())


def test_transfer_shows_where_a_direction_holds(tmp_path: Path) -> None:
    features, _ = planted(n=160)
    own = np.array([0, 0, 1, 2])[np.arange(160) % 4]  # two groups share a direction, two have their own
    accuracy = 1 / (1 + np.exp(-3 * features[np.arange(160), 2, own]))
    make_store(tmp_path / "store", features, accuracy)
    folder = transfer([str(tmp_path / "store")], str(tmp_path / "out"), folds=2, n_resamples=100)
    record = json.loads((folder / "transfer.json").read_text())
    auroc = {(one["train"], one["test"]): one["auroc"]["value"] for one in record["cells"]}
    assert auroc["group 0", "group 1"] > 0.8
    assert auroc["group 1", "group 0"] > 0.8
    assert abs(auroc["group 0", "group 2"] - 0.5) < 0.25
    assert len(record["cells"]) == 16 + 4
    assert {one["n_questions"] for one in record["cells"]} == {40}
    assert "| all others |" in (folder / "transfer.md").read_text()
    record["cells"] = [cell for cell in record["cells"] if cell["train"] == "all others"]
    n_above = sum(cell["auroc"]["low"] > 0.5 for cell in record["cells"])
    shown = f"rank answers better than chance on {n_above} of {len(record['cells'])} sets."
    assert shown in transfer_page(record, [])
    left_out = {one["test"]: one for one in record["left_out"]}
    assert list(left_out) == ["group 0", "group 1", "group 2", "group 3", "all sets"]
    assert left_out["all sets"]["n_questions"] == 160
    for cell in record["cells"]:
        assert cell["auroc"] == left_out[cell["test"]]["raw"]["auroc"]
    for one in left_out.values():
        brier = [one[how]["brier"]["value"] for how in ("backed_off", "raw")]
        assert one["difference"]["brier"]["value"] == pytest.approx(brier[0] - brier[1])
        assert 0 <= one["novelty"]["low"] <= one["novelty"]["value"] <= one["novelty"]["high"] <= 1
    assert (folder / "plots/left_out.png").is_file()


def test_transfer_between_stores_requires_one_model(store: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "other", *planted(n=60, seed=1), name="other")
    record = transfer_record([str(store), str(tmp_path / "other")], None, "difference_of_means", 2, 10, 0)
    assert [(one["train"], one["test"]) for one in record["cells"]] == [
        ("planted", "planted"),
        ("planted", "other"),
        ("all others", "planted"),
        ("other", "other"),
        ("other", "planted"),
        ("all others", "other"),
    ]
    assert [one["test"] for one in record["left_out"]] == ["planted", "other", "all sets"]
    assert len(record["stores"]) == 2


def test_a_set_from_which_nothing_can_be_learnt_is_left_out_with_the_reason(tmp_path: Path) -> None:
    features, accuracy = planted(n=160)
    accuracy[3::4] = 0.0  # the fourth group is always wrong
    make_store(tmp_path / "store", features, accuracy)
    record = transfer_record([str(tmp_path / "store")], None, "difference_of_means", 2, 10, 0)
    assert list(record["masked"]) == ["trained on group 3"]
    assert {one["train"] for one in record["cells"]} == {"group 0", "group 1", "group 2", "all others"}
    assert (
        "- `trained on group 3`: Expected right and wrong answers, but all 400 answers are wrong. Use more or "
        "different questions." in transfer_page(record, [])
    )


def test_transfer_between_incompatible_sets_is_refused(store: Path, tmp_path: Path) -> None:
    features, accuracy = planted(n=60, seed=1)
    make_store(tmp_path / "layers", features[:, :2], accuracy, name="other")
    make_store(tmp_path / "same", features, accuracy)
    make_store(tmp_path / "deeper/planted", features, accuracy, name="other")
    for stores, message in (
        ([store, tmp_path / "same"], "share 60"),
        ([store, tmp_path / "layers"], "same layers"),
        ([store, tmp_path / "deeper/planted"], "different folder names"),
        ([], "at least one store"),
        ([store, tmp_path / "nowhere"], "nowhere"),
    ):
        with pytest.raises(InputError, match=message):
            transfer([str(one) for one in stores], str(tmp_path / "out"), "difference_of_means")
    assert not (tmp_path / "out").exists()
