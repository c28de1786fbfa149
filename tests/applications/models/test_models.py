"""Tests of `python -m applications models`: aligned questions, the page and the record, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from applications.__main__ import COMMANDS
from applications.models.command import models
from applications.models.panel import clusters_of, read_confidences, read_panel, shared_rows
from extract import Question, Store
from extract.errors import InputError
from extract.running.cli import run
from tests.helpers.synthetic import make_grid, make_store

N = 40
ACCURACY = np.linspace(0.05, 0.95, N)
QUESTIONS = [
    Question(f"q{i}", "made", f"Say {i}.", references=("right",), group=f"g{i % 5}", meta={"book": i // 4})
    for i in range(N)
]
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a store with the name and the temperature, by default of all questions."""

    def make_one(
        name: str,
        temperature: float,
        accuracy: np.ndarray = ACCURACY,
        questions: list[Question] = QUESTIONS,
        k: int = 4,
    ) -> Path:
        states, seed = np.zeros((len(questions), 1, 2), np.float32), round(10 * temperature)
        made = make_store(
            tmp_path / name,
            states,
            accuracy[: len(questions)],
            k,
            seed=seed,
            questions=questions,
            temperature=temperature,
        )
        return made.path

    return make_one


def result(out: Path) -> tuple[dict[str, Any], str]:
    return json.loads((out / "models.json").read_text()), (out / "models.md").read_text()


# Questions


def test_questions_are_aligned_by_content(make: Make) -> None:
    reordered = [QUESTIONS[i] for i in np.random.default_rng(0).permutation(N)][:30]
    first, second = (
        Store.open(make(name, t, questions=qs)) for name, t, qs in (("a", 0.5, QUESTIONS), ("b", 1.0, reordered))
    )
    rows = shared_rows([first, second])
    assert rows.shape == (2, 30)
    for a, b in rows.T:
        assert first.questions[int(a)] == second.questions[int(b)]


@pytest.mark.parametrize("change", [{"text": "Say it."}, {"references": ("wrong",)}, {"meta": {"rivals": ["no"]}}])
def test_the_same_id_is_not_the_same_question(make: Make, change: dict[str, Any]) -> None:
    other = [replace(QUESTIONS[0], **change), *QUESTIONS[1:]]
    panel = read_panel([str(make("a", 0.5)), str(make("b", 1.0, questions=other))], shared=True, grader=None)
    assert panel.n_shared == N - 1
    assert 0 not in panel.rows


def test_different_questions_are_refused_with_their_number_and_the_option_shared(make: Make) -> None:
    stores = [str(make("a", 0.5)), str(make("b", 1.0, questions=QUESTIONS[:25]))]
    with pytest.raises(InputError, match=r"25 questions are shared \(.* has 40 and .* has 25\)\. Pass --shared true"):
        read_panel(stores, shared=False, grader=None)
    assert len(read_panel(stores, shared=True, grader=None).questions) == 25


def test_stores_without_shared_questions_are_refused(make: Make) -> None:
    stores = [str(make("a", 0.5, questions=QUESTIONS[:20])), str(make("b", 1.0, questions=QUESTIONS[20:]))]
    for shared in (False, True):
        with pytest.raises(InputError, match=r"but only 0 questions are shared \(.* Pass other stores"):
            read_panel(stores, shared, None)


def test_questions_from_two_files_are_the_same(make: Make) -> None:
    other = [replace(question, dataset="second") for question in QUESTIONS]
    panel = read_panel([str(make("a", 0.5)), str(make("b", 1.0, questions=other))], shared=False, grader=None)
    assert panel.rows.tolist() == [[*range(N)]] * 2


@pytest.mark.parametrize(
    ("change", "field"), [({"kind": "number"}, "kind"), ({"meta": {"book": -1}, "text": "x"}, r"meta\.book")]
)
def test_without_shared_questions_a_field_that_differs_is_named(make: Make, change: dict[str, Any], field: str) -> None:
    other = [replace(question, **change) for question in QUESTIONS]
    stores = [str(make("a", 0.5)), str(make("b", 1.0, questions=other))]
    with pytest.raises(InputError, match=f"Questions with the id 'q0' differ in `{field}`. Pass other stores"):
        read_panel(stores, shared=True, grader=None)


def test_grades_by_different_rules_are_refused(make: Make) -> None:
    stores = [make("a", 0.5), make("b", 1.0)]
    for path, rule in zip(stores, ("exact match", "contains"), strict=True):
        store = Store.open(path)
        part = store.samples.ranges()[0]
        store.grades.write("other", part, store.grades.read("made", part).to_pylist(), rule)
    with pytest.raises(InputError, match=r"the same rule in every store, .*a': exact match; .*b': contains"):
        read_panel([*map(str, stores)], shared=False, grader="other")


def test_questions_without_a_known_grade_in_a_store_are_left_out_of_both(make: Make) -> None:
    stores = [make("a", 0.5), make("b", 1.0)]
    for path, unknown in zip(stores, (3, 7), strict=True):
        store = Store.open(path)
        part = store.samples.ranges()[0]
        rows = store.grades.read("made", part).to_pylist()
        rows = [row | ({"right": None} if row["question_id"] == f"q{unknown}" else {}) for row in rows]
        store.grades.write("other", part, rows, "as it was drawn, but for one question")
    panel = read_panel([*map(str, stores)], shared=False, grader="other")
    assert panel.rows.shape == (2, N - 2)
    assert not {3, 7} & set(panel.rows[0].tolist())
    np.testing.assert_array_equal(panel.known, 4)


@pytest.mark.parametrize(("column", "n"), [("group", 5), ("meta.book", 10)])
def test_clusters_are_the_values_of_a_field(column: str, n: int) -> None:
    found = clusters_of(QUESTIONS, column)
    assert len(set(found.tolist())) == found.max() + 1 == n
    assert found[0] == found[5 if column == "group" else 3] != found[4]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("meta.bok", "40 of 40 questions lack .meta.bok.. Did you mean `meta.book`"),
        ("dataset", "'dataset' is 'made' for all"),
    ],
)
def test_clusters_that_do_not_exist_are_refused(column: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        clusters_of(QUESTIONS, column)


def test_missing_values_do_not_form_a_cluster() -> None:
    questions = [replace(QUESTIONS[0], meta={"book": None}), *QUESTIONS[1:]]
    with pytest.raises(InputError, match=r"1 of 40 questions lack 'meta.book'"):
        clusters_of(questions, "meta.book")


# The command


@pytest.mark.slow
def test_the_command_writes_a_page_a_record_a_table_and_a_picture(make: Make, tmp_path: Path) -> None:
    a, b = make("a", 0.5), make("b", 1.0, ACCURACY / 3)
    options = ["--stores", f"[{a},{b}]", "--n_resamples", "200", "--out", str(tmp_path / "out")]
    assert run(COMMANDS, "x", ["models", *options]) == 0
    record, page = result(tmp_path / "out")
    table = pq.read_table(tmp_path / "out/models.parquet")
    accuracy = {name: np.array(table[f"{name}_right"]) / np.array(table[f"{name}_known"]) for name in "ab"}
    difference = accuracy["a"] - accuracy["b"]
    pair = record["pairs"][0]
    expected = stats.ttest_1samp(difference, 0).confidence_interval()
    assert (pair["value"], pair["low"], pair["high"]) == pytest.approx((difference.mean(), *expected))
    assert pair["test"] == "sign-flip test"
    assert pair["p"] == pair["p_holm"] < 0.01
    for store in record["stores"]:
        assert store["accuracy"]["t"]["value"] == pytest.approx(accuracy[store["name"]].mean())
    assert record["policy_differences"] == [{"field": "decoding.temperature", "values": [0.5, 1.0]}]
    assert "| decoding.temperature | `0.5` | `1.0` |" in page
    assert "`a` is significantly more accurate than `b`" in page.split("\n\n")[1]
    assert (tmp_path / "out/plots/models.png").is_file()


@pytest.mark.slow
def test_one_answer_per_question_is_tested_with_mcnemar(make: Make, tmp_path: Path) -> None:
    stores = [str(make(name, t, k=1)) for name, t in (("a", 0.5), ("b", 1.0))]
    record, page = result(models(stores, n_resamples=100, out=str(tmp_path / "out")))
    pair = record["pairs"][0]
    n_different = pair["n_above"] + pair["n_below"]
    assert pair["p"] == pytest.approx(stats.binomtest(pair["n_above"], n_different).pvalue)
    assert pair["p_mid"] < pair["p"]
    assert "McNemar's test" in page
    assert "mid-p" in page


@pytest.mark.slow
def test_the_stores_of_a_grid_are_compared_with_corrected_p_values(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "grid", ACCURACY, (0.0, 0.5, 1.0))
    record, page = result(models([str(grid)], n_resamples=100, out=str(tmp_path / "out")))
    assert [(pair["a"], pair["b"]) for pair in record["pairs"]] == [
        ("t0.0", "t0.5"),
        ("t0.0", "t1.0"),
        ("t0.5", "t1.0"),
    ]
    assert all(pair["p_holm"] >= pair["p"] for pair in record["pairs"])
    assert "the accuracies of 3 stores lie between" in page


@pytest.mark.slow
def test_clusters_widen_the_intervals_of_correlated_questions(make: Make, tmp_path: Path) -> None:
    easy = np.where(np.arange(N) // 4 % 2, 0.95, 0.05)
    stores = [str(make("a", 0.5, easy)), str(make("b", 1.0, np.full(N, 0.5)))]
    record, page = result(models(stores, clusters="meta.book", n_resamples=100, out=str(tmp_path / "out")))
    pair = record["pairs"][0]
    assert pair["clustered"]["high"] - pair["clustered"]["low"] > 1.5 * (pair["t"]["high"] - pair["t"]["low"])
    assert (pair["low"], pair["test"]) == (pair["clustered"]["low"], "sign-flip test of clusters")
    assert record["n_clusters"] == 10
    assert "With only 10 clusters" in page


@pytest.mark.slow
def test_clusters_of_very_different_sizes_are_warned_about(make: Make, tmp_path: Path) -> None:
    books = [*range(20), *[20] * 20]
    questions = [replace(question, meta={"book": book}) for question, book in zip(QUESTIONS, books, strict=True)]
    stores = [str(make(name, t, questions=questions)) for name, t in (("a", 0.5), ("b", 1.0))]
    record, page = result(models(stores, clusters="meta.book", n_resamples=100, out=str(tmp_path / "out")))
    assert record["n_clusters"] == 21
    assert record["n_effective_clusters"] == pytest.approx(40**2 / (20 + 20**2))
    assert "With only 21 clusters of very different sizes, which count as 3.8 of equal size, these results are" in page


@pytest.mark.slow
def test_names_are_escaped_in_tables(make: Make, tmp_path: Path) -> None:
    stores = [str(make("a|`", 0.5)), str(make("b", 1.0))]
    page = result(models(stores, n_resamples=100, out=str(tmp_path / "out")))[1]
    assert "| `a\\|'` − `b` | 40 |" in page
    assert "| field | `a\\|'` | `b` |" in page


@pytest.mark.slow
def test_aurocs_of_confidences_are_compared(make: Make, tmp_path: Path) -> None:
    stores = [str(make(name, t)) for name, t in (("a", 0.5), ("b", 1.0))]
    noise = np.random.default_rng(0).random(N)
    table = {"question_id": [question.id for question in QUESTIONS], "good": ACCURACY, "poor": noise}
    pq.write_table(pa.table(table), tmp_path / "f.parquet")
    sources = [f"{tmp_path / 'f.parquet'}:{name}" for name in ("good", "poor")]
    record, page = result(models(stores, sources, n_resamples=100, out=str(tmp_path / "out")))
    good, poor = (store["auroc"]["value"] for store in record["auroc"]["stores"])
    assert good > 0.7 > poor
    assert record["auroc"]["pairs"][0]["value"] == pytest.approx(good - poor)
    assert record["auroc"]["pairs"][0]["p_holm"] < 0.05
    assert "Obuchowski's clustered version" in page
    one = result(models(stores, sources[:1], n_resamples=100, out=str(tmp_path / "one")))[0]
    assert [store["auroc"] is not None for store in one["auroc"]["stores"]] == [True, True]


def test_a_single_table_may_have_other_questions_of_any_store(make: Make, tmp_path: Path) -> None:
    stores = [str(make(n, t, questions=qs)) for n, t, qs in (("a", 0.5, QUESTIONS[9:]), ("b", 1.0, QUESTIONS[:30]))]
    panel = read_panel(stores, shared=True, grader=None)
    table = pa.table({"question_id": [question.id for question in QUESTIONS], "mine": np.arange(N) / N})
    pq.write_table(table, tmp_path / "f.parquet")
    found = read_confidences([f"{tmp_path / 'f.parquet'}:mine"], panel)
    np.testing.assert_array_equal(found, [np.arange(9, 30) / N] * 2)
    pq.write_table(table.take([0, 9, 35]), tmp_path / "f.parquet")
    with pytest.raises(
        InputError, match="at least two of the 21 compared questions to have a confidence in every store, but found 1"
    ):
        read_confidences([f"{tmp_path / 'f.parquet'}:mine"], panel)


@pytest.mark.slow
def test_choice_questions_have_class_figures(make: Make, tmp_path: Path) -> None:
    questions = [
        Question(f"q{i}", "made", f"{i}?", references=("AB"[i % 2], "x"), kind="choice", choices=("x", "y", "z"))
        for i in range(N)
    ]
    stores = [str(make(name, t, questions=questions)) for name, t in (("a", 0.5), ("b", 1.0))]
    record, page = result(models(stores, n_resamples=100, out=str(tmp_path / "out")))
    classes = record["classes"]["a"]["classes"]
    assert [(found["name"], found["n_questions"]) for found in classes] == [("A", 20), ("B", 20), ("C", 0)]
    assert classes[2]["recall"] is None
    assert "| C | 0 | – | – | – |" in page
    assert page.count("(2) |") > 2
    mean = (classes[0]["recall"]["value"] + classes[1]["recall"]["value"]) / 2
    assert mean == pytest.approx(record["stores"][0]["accuracy"]["t"]["value"])  # all classes have the same size


@pytest.mark.slow
def test_the_number_of_questions_is_computed_for_the_given_difference(make: Make, tmp_path: Path) -> None:
    stores = [str(make(name, t)) for name, t in (("a", 0.5), ("b", 1.0))]
    needed = [
        result(models(stores, difference=d, n_resamples=100, out=str(tmp_path / str(d))))[0]["pairs"][0]["needed"]
        for d in (0.01, 0.1)
    ]
    assert needed[0] == pytest.approx(100 * needed[1], rel=0.01)


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"difference": 0.0}, "`difference` to be above 0"),
        ({"clusters": "meta.page"}, "40 of 40 questions lack"),
        ({"confidences": ["x:y"] * 3}, "one source, or 2 sources in the order of the stores, but got 3"),
    ],
)
def test_bad_options_give_a_one_line_error(make: Make, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    stores = [str(make(name, t)) for name, t in (("a", 0.5), ("b", 1.0))]
    with pytest.raises(InputError, match=message) as raised:
        models(stores, **options, out=str(tmp_path / "out"))
    assert "\n" not in str(raised.value)


def test_one_store_or_the_same_store_twice_is_refused(make: Make) -> None:
    path = str(make("a", 0.5))
    for paths in ([path], [path, path]):
        with pytest.raises(InputError, match="at least two different stores"):
            read_panel(paths, shared=False, grader=None)


@pytest.mark.parametrize("stores", [[], "stores/a"])
def test_stores_that_are_not_a_list_are_refused(stores: Any) -> None:
    with pytest.raises(InputError, match="at least two different stores, but got"):
        models(stores)


def test_a_single_graded_question_is_refused(make: Make) -> None:
    stores = [str(make(name, t, questions=QUESTIONS[:1])) for name, t in (("a", 0.5), ("b", 1.0))]
    with pytest.raises(InputError, match="at least two questions to have known grades from 'made' in every store"):
        read_panel(stores, shared=False, grader=None)
