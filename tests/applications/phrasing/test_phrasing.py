"""Tests of `python -m applications phrasing`: cells of facts and forms, likelihoods, the command and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from applications.__main__ import COMMANDS
from applications.phrasing.command import phrasing
from applications.phrasing.pairs import read_cells, target_likelihoods
from applications.phrasing.record import phrasing_page, phrasing_record
from datamodules.table import load_table
from extract import Question, Store
from extract.errors import InputError
from extract.running.cli import run
from tests.helpers.synthetic import make_store

N = 30
FORMS = ("exact", "paraphrased")
Make = Callable[..., Store]


def ask(forms: Sequence[str] = FORMS, n: int = N) -> list[Question]:
    return [
        Question(f"{form}{i}", "made", f"{form} {i}?", references=("right",), meta={"pair": f"fact {i}", "form": form})
        for i in range(n)
        for form in forms
    ]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a store whose accuracy depends on the form of the question."""

    def make_one(questions: Sequence[Question], accuracy_of: dict[str, float], k: int = 4) -> Store:
        accuracy = np.array([accuracy_of.get(question.meta.get("form", ""), 0.5) for question in questions])
        return make_store(
            tmp_path / "s", np.zeros((len(questions), 1, 2), np.float32), accuracy, k, questions=questions
        )

    return make_one


def likelihoods(store: Store, of_form: dict[str, float]) -> pa.Table:
    """Return a table of likelihoods with two continuations, of which the second one is right."""
    rng = np.random.default_rng(0)
    totals = [3 * (of_form[q.meta["form"]] + 0.1 * rng.normal()) for q in store.questions]
    columns = {"logprobs": [[-9.0, total] for total in totals], "n_tokens": [[1, 3]] * len(totals)}
    return pa.table({**columns, "target": pa.array([1] * len(totals), pa.int32())})


def test_questions_of_the_same_fact_and_form_are_averaged(make: Make) -> None:
    questions = [*ask(n=3), replace(ask(n=1)[0], id="again", text="Again?")]
    table = load_table(make(questions, {}))
    cells = read_cells(table, questions)
    assert cells.forms == ["exact", "paraphrased"]
    assert cells.n_questions.tolist() == [[2, 1, 1], [1, 1, 1]]
    assert cells.n_answers[0].tolist() == [8, 4, 4]
    assert cells.accuracy[0, 0] == pytest.approx((table.accuracy[0] + table.accuracy[6]) / 2)
    assert cells.accuracy[1].tolist() == table.accuracy[[1, 3, 5]].tolist()


def test_questions_without_a_fact_a_form_or_a_grade_are_left_out(make: Make) -> None:
    questions = [*ask(n=4), Question("x", "made", "x?", references=("x",), meta={"pair": "fact 1"})]
    table = load_table(make(questions, {}))
    kept = table.with_grades(table.answers.question != 2)
    cells = read_cells(kept, questions)
    assert cells.n_left_out == 2
    assert np.isnan(cells.accuracy[0, 1])


@pytest.mark.parametrize(("key", "value"), [("pair", None), ("form", None), ("pair", ["fact 0"])])
def test_facts_and_forms_that_are_neither_strings_nor_numbers_are_left_out(make: Make, key: str, value: Any) -> None:
    questions = ask(n=5)
    questions[:3] = [replace(question, meta=question.meta | {key: value}) for question in questions[:3]]
    cells = read_cells(load_table(make(questions, {})), questions)
    assert (cells.n_left_out, cells.forms) == (3, ["exact", "paraphrased"])
    assert cells.n_questions.sum() == 7


def test_likelihoods_are_those_of_the_right_continuation_per_token() -> None:
    table = pa.table(
        {
            "logprobs": [[-1.0, -6.0], [-2.0, -8.0], [-3.0]],
            "n_tokens": [[1, 2], [4, 2], [1]],
            "target": pa.array([1, 0, None], pa.int32()),
        }
    )
    np.testing.assert_array_equal(target_likelihoods(table), [-3.0, -0.5, np.nan])


@pytest.mark.slow
def test_the_command_writes_a_page_a_record_a_table_and_a_picture(make: Make, tmp_path: Path) -> None:
    store = make(ask(), {"exact": 0.9, "paraphrased": 0.3})
    options = ["--store", str(store.path), "--n_resamples", "200", "--out", str(tmp_path / "out")]
    assert run(COMMANDS, "x", ["phrasing", *options]) == 0
    record = json.loads((tmp_path / "out/phrasing.json").read_text())
    test = record["tests"][0]
    table = pq.read_table(tmp_path / "out/phrasing.parquet").to_pydict()
    by_form = [
        np.array([a for a, f in zip(table["accuracy"], table["form"], strict=True) if f == form]) for form in FORMS
    ]
    expected = stats.ttest_rel(*by_form).confidence_interval()
    assert (test["low"], test["high"]) == pytest.approx(tuple(expected))
    assert (test["n"], test["p"] < 0.01) == (N, True)
    shares = [record["joint"][0][name]["value"] for name in ("both", "only_a", "only_b", "neither")]
    assert sum(shares) == pytest.approx(1)
    assert shares[0] == pytest.approx(np.mean(by_form[0] * by_form[1]))
    page = (tmp_path / "out/phrasing.md").read_text()
    assert "`exact` questions have a significantly higher accuracy than `paraphrased` questions" in page
    assert (tmp_path / "out/plots/phrasing.png").is_file()


def test_one_answer_per_form_is_tested_with_mcnemar(make: Make) -> None:
    store = make(ask(), {"exact": 0.9, "paraphrased": 0.3}, k=1)
    table = load_table(store)
    test = phrasing_record(store, table, read_cells(table, list(store.questions)), 100, 0)["tests"][0]
    assert test["test"] == "McNemar's test"
    assert test["p"] == pytest.approx(stats.binomtest(test["n_above"], test["n_above"] + test["n_below"]).pvalue)


def test_likelihoods_are_compared_and_corrected_with_the_accuracies(make: Make) -> None:
    store = make(ask(), {"exact": 0.5, "paraphrased": 0.5})
    asked = {"likelihood": likelihoods(store, {"exact": -1.0, "paraphrased": -1.5})}
    table = replace(load_table(store), asked=asked)
    record = phrasing_record(store, table, read_cells(table, list(store.questions)), 200, 0)
    accuracy, likelihood = record["tests"]
    assert likelihood["value"] == pytest.approx(0.5, abs=0.1)
    assert likelihood["p_holm"] == pytest.approx(2 * likelihood["p"])
    assert accuracy["p_holm"] >= accuracy["p"]
    page = phrasing_page(record, [])
    assert "significantly higher likelihood than `paraphrased` questions about the same facts: +" in page
    assert "nats per token" in page


def test_names_are_escaped_and_a_form_with_one_fact_is_not_in_the_summary(make: Make) -> None:
    questions = [*ask(("a|b", "c")), *ask(("once",), n=1)]
    table = load_table(store := make(questions, {}))
    page = phrasing_page(phrasing_record(store, table, read_cells(table, questions), 100, 0), [])
    assert "| `a\\|b` | 30 |" in page
    assert "`once`" not in page.split("\n\n")[1]
    assert "| `once` | 1 | 1 | 4 | – |" in page


def test_three_forms_give_three_tests_on_the_facts_that_both_forms_have(make: Make) -> None:
    questions = [*ask(), *ask(("rare",), n=10)]
    table = load_table(store := make(questions, {}))
    tests = phrasing_record(store, table, read_cells(table, questions), 100, 0)["tests"]
    assert [(test["a"], test["b"], test["n"]) for test in tests] == [
        ("exact", "paraphrased", N),
        ("exact", "rare", 10),
        ("paraphrased", "rare", 10),
    ]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([Question(str(i), "made", f"{i}?", references=("x",)) for i in range(4)], "but the forms are: none"),
        (ask(("exact",)), "in at least two forms, but the forms are: exact"),
        (
            [replace(q, meta=q.meta | {"pair": q.id}) for q in ask()],
            r"\(from exact, paraphrased\) to have two or more facts in common, but no pair does",
        ),
    ],
)
def test_questions_without_pairs_give_a_one_line_error(
    make: Make, tmp_path: Path, questions: list[Question], message: str
) -> None:
    store: Any = make(questions, {})
    with pytest.raises(InputError, match=message) as raised:
        phrasing(str(store.path), out=str(tmp_path / "out"))
    assert "\n" not in str(raised.value)
