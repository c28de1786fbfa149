"""Tests of budgets: allocations, expected success, priors, and the command."""

from __future__ import annotations

import json
from itertools import permutations, product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.special import beta

from applications.beta_priors import base_rates, beta_priors, concentration
from applications.budget import evaluation
from applications.budget.allocation import allocate, beta_gains, hazards, plug_in_gains, rank, uniform_gains
from applications.budget.command import budget
from applications.budget.evaluation import equal_budget, mean_cost, success
from applications.budget.methods import read_questions
from applications.budget.record import budget_record
from datamodules.table import QuestionTable, load_table
from extract import Store
from extract.errors import InputError
from probes.metrics.intervals import resample_weights
from tests.helpers.synthetic import make_store


def drawn(seed: int, n: int = 40, most: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return confidences, and counts of right and of graded answers, which differ between questions."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.7, 0.9, n)
    known = rng.integers(most - 2, most + 1, n)
    return np.clip(p + rng.normal(0, 0.2, n), 0, 1), rng.binomial(known, p), known


def with_ones(weights: torch.Tensor) -> torch.Tensor:
    """Add the original questions before the resamples."""
    return torch.cat([torch.ones_like(weights[:1]), weights])


# Allocations


@pytest.mark.parametrize("kind", ["plug-in", "Bayesian"])
def test_greedy_allocations_are_as_good_as_the_best_of_all_allocations(kind: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = rng.integers(1, 5)
        caps = rng.integers(1, 5, n)
        total = min(rng.integers(0, 7), caps.sum())
        f = rng.choice([0, 0.1, 0.3, 0.3, 0.5, 0.9, 1], n)
        gains = plug_in_gains(f, 4) if kind == "plug-in" else beta_gains(2 * f, 2 * (1 - f), 4)
        found = allocate(gains, caps, [total])[0]
        value = np.concatenate([np.zeros((n, 1)), gains.cumsum(axis=1)], axis=1)
        everything = [k for k in product(*(range(cap + 1) for cap in caps)) if sum(k) == total]
        best = max(value[range(n), k].sum() for k in everything)
        assert found.sum() == total
        assert (found <= caps).all()
        assert value[range(n), found].sum() == pytest.approx(best, abs=1e-12)


def test_the_sum_of_plug_in_gains_is_the_probability_of_a_right_answer() -> None:
    f = np.array([0, 0.2, 0.7, 1])
    np.testing.assert_allclose(plug_in_gains(f, 5).sum(axis=1), 1 - (1 - f) ** 5, atol=1e-15)


def test_a_question_with_confidence_0_gets_nothing_while_others_have_a_gain() -> None:
    gains = plug_in_gains(np.array([0, 0.9, 1]), 30)
    assert gains[1, 29] < 1e-28
    assert allocate(gains, np.array([30, 30, 30]), [31])[0].tolist() == [0, 30, 1]


def test_bayesian_gains_are_ratios_of_beta_functions() -> None:
    a, b = np.array([0.3, 2, 5]), np.array([0.8, 1, 0.2])
    ratios = [beta(a + 1, b + j) / beta(a, b) for j in range(7)]
    np.testing.assert_allclose(beta_gains(a, b, 7), np.transpose(ratios), rtol=1e-12)


def test_bayesian_gains_are_plug_in_gains_if_the_accuracy_is_certain() -> None:
    certain = np.array([0.0, 1.0])
    np.testing.assert_array_equal(beta_gains(3 * certain, 3 * (1 - certain), 4), plug_in_gains(certain, 4))
    f = np.array([0.1, 0.6])
    np.testing.assert_allclose(beta_gains(1e9 * f, 1e9 * (1 - f), 4), plug_in_gains(f, 4), rtol=1e-7)


def test_hazards_are_bayesian_gains_given_that_no_answer_was_right() -> None:
    a, b = np.array([0.3, 2]), np.array([0.8, 1])
    gains = beta_gains(a, b, 6)
    unsolved = 1 - np.concatenate([np.zeros((2, 1)), gains.cumsum(axis=1)], axis=1)[:, :-1]
    np.testing.assert_allclose(hazards(a, b, 6), gains / unsolved, rtol=1e-12)


def test_uniform_allocations_are_equal_up_to_the_caps() -> None:
    caps = np.array([2, 9, 9, 9])
    assert allocate(uniform_gains(4, 9), caps, [8, 20]).tolist() == [[2, 2, 2, 2], [2, 6, 6, 6]]


def test_ties_are_in_the_order_of_the_answers_and_then_of_the_questions() -> None:
    ranking = rank(np.array([[0.2, 0.0, 0.0], [0.5, 0.2, 0.0], [0.2, 0.0, 0.0]]), np.array([3, 3, 2]))
    assert ranking.question.tolist() == [1, 0, 2, 1, 0, 2, 0, 1]
    assert ranking.answer.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert ranking.last.tolist() == [0, 2, 3, 5, 7]


@pytest.mark.parametrize("total", [-1, 7])
def test_a_total_that_cannot_be_spent_is_refused(total: int) -> None:
    with pytest.raises(InputError, match="between 0 and 6, the number of available answers, but got"):
        allocate(uniform_gains(2, 3), np.array([3, 3]), [2, total])


# Expected success


def expected_success(right: np.ndarray, known: np.ndarray, allocation: np.ndarray) -> float:
    """Return the mean over questions of the fraction of subsets of answers that contain a right answer."""
    shares = [1 - comb(n - c, k) / comb(n, k) for c, n, k in zip(right, known, allocation, strict=True)]
    return float(np.mean(shares))


@pytest.mark.parametrize("online", [False, True])
def test_curves_at_few_points_change_only_the_resamples_and_only_slightly(
    online: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, right, known = drawn(0, n=400)
    options: Any = (right, known, np.array([1, 2]), with_ones(resample_weights(400, 50, 0)), np.zeros(400), online)
    exact = success(beta_gains(f + 0.1, 1.1 - f, 6), *options)
    monkeypatch.setattr(evaluation, "_CELLS", 1)
    coarse = success(beta_gains(f + 0.1, 1.1 - f, 6), *options)
    torch.testing.assert_close(coarse[0], exact[0], rtol=0, atol=1e-12)
    assert 0 < (coarse - exact).abs().max() < 0.2 * exact.std(0).min()


def test_every_fold_of_every_resample_is_allocated_again() -> None:
    _, right, known = drawn(1)
    fold, budgets, weights = np.arange(40) % 3, np.array([1, 2, 4]), with_ones(resample_weights(40, 20, 0))
    gains = plug_in_gains(np.random.default_rng(0).random(40), 6)  # no ties
    found = success(gains, right, known, budgets, weights, fold)

    def allocated(copies: np.ndarray, mean: int) -> float:
        n_right = 0.0
        for number in range(3):
            rows = np.repeat(np.arange(40), copies * (fold == number))
            answers = allocate(gains[rows], known[rows], [mean * len(rows)])[0]
            n_right += len(rows) * expected_success(right[rows], known[rows], answers)
        return n_right / 40

    for column, mean in enumerate(budgets):
        for row, copies in enumerate(weights.long().numpy()):
            assert float(found[row, column]) == pytest.approx(allocated(copies, mean), abs=1e-12)


def test_ties_share_a_budget_as_in_a_random_order_of_the_questions() -> None:
    _, right, known = drawn(2, n=5)
    gains = plug_in_gains(np.array([0.5, 0.5, 0.5, 0.2, 0.2]), 6)
    found = success(gains, right, known, np.array([1, 2]), torch.ones(1, 5).double(), np.zeros(5))
    for column, total in enumerate((5, 10)):
        orders = [list(order) for order in permutations(range(5))]
        shares = [expected_success(right[i], known[i], allocate(gains[i], known[i], [total])[0]) for i in orders]
        assert float(found[0, column]) == pytest.approx(np.mean(shares), abs=1e-12)


def replay(order: np.ndarray, right: np.ndarray, ranking: Any, n_drawn: int) -> tuple[int, int]:
    """Follow a ranking up to an answer, and return the numbers of answers and of solved questions.

    Answers to solved questions are skipped. `order` [question, answer] says which answers are right.
    """
    solved, cost = np.zeros(len(right), bool), 0
    for question, answer in zip(ranking.question[:n_drawn], ranking.answer[:n_drawn], strict=True):
        if not solved[question]:
            cost += 1
            solved[question] = order[question, answer]
    return cost, int(solved.sum())


def test_online_success_and_cost_are_means_over_all_orders_of_the_answers() -> None:
    right, known = np.array([0, 1, 2]), np.array([3, 3, 3])
    gains = hazards(np.array([0.4, 0.5, 1]), np.array([1, 1.2, 1]), 3)
    orders = [
        np.array(order) for order in product(*(sorted(set(permutations([1] * c + [0] * (3 - c)))) for c in right))
    ]
    ranking = rank(gains, known)
    for n_drawn in range(1, 10):
        cost, solved = np.mean([replay(order, right, ranking, n_drawn) for order in orders], axis=0) / 3
        budgets = np.array([cost])
        found = success(gains, right, known, budgets, torch.ones(1, 3).double(), np.zeros(3), online=True)
        assert float(found) == pytest.approx(solved, abs=1e-12)
    assert mean_cost(right, known) == pytest.approx(cost, abs=1e-12)


@pytest.mark.slow
def test_the_mean_cost_is_defined_if_the_numbers_of_graded_answers_differ(store: Store) -> None:
    assert mean_cost(np.array([1, 0, 2]), np.array([2, 5, 2])) == pytest.approx((1.5 + 5 + 1) / 3, abs=1e-12)
    table = load_table(store)
    some_unknown = table.with_grades(np.arange(len(table.answers.question)) % 7 > 0)
    record, _ = budget_record(store, some_unknown, {}, None, n_resamples=100, seed=0)
    assert 1 in record["settings"]["online"]["budgets"]


def test_the_expected_online_budget_is_close_to_a_budget_that_is_fixed_in_advance() -> None:
    f, right, known = drawn(3, n=300)
    gains, rng = hazards(2 * f + 0.01, 2 * (1 - f) + 0.01, 6), np.random.default_rng(0)
    ranking, shares = rank(gains, known), []
    for _ in range(40):
        order = np.zeros((300, 6), bool)
        for row in range(300):
            order[row, rng.permutation(known[row])[: right[row]]] = True
        solved, cost, place = np.zeros(300, bool), 0, 0
        while cost < 450:
            question, answer = ranking.question[place], ranking.answer[place]
            if not solved[question]:
                cost, solved[question] = cost + 1, order[question, answer]
            place += 1
        shares.append(solved.mean())
    expected = success(gains, right, known, np.array([1.5]), torch.ones(1, 300).double(), np.zeros(300), online=True)
    assert np.mean(shares) == pytest.approx(float(expected), abs=3 * np.std(shares) / 40**0.5 + 0.002)


def test_equal_budgets_are_interpolated_and_unknown_beyond_the_curve() -> None:
    curve = torch.tensor([[0.4, 0.6, 0.7, 0.7]], dtype=torch.float64)
    found = equal_budget(torch.tensor([[0.2, 0.6, 0.65, 0.7, 0.71]], dtype=torch.float64), curve)
    np.testing.assert_allclose(found, [[0.5, 2, 2.5, 3, np.nan]])


# Priors


def test_the_concentration_of_a_simulation_is_recovered() -> None:
    rng = np.random.default_rng(0)
    mean, known = rng.uniform(0, 1, 5000), rng.integers(2, 15, 5000)
    right = rng.binomial(known, rng.beta(3 * mean, 3 * (1 - mean)))
    mean[:50], right[:50] = 0, 1  # impossible, whatever the concentration is
    assert concentration(mean, right, known) == pytest.approx(3, rel=0.07)


def test_certain_questions_have_no_concentration() -> None:
    counts = np.array([1, 2]), np.array([2, 2])
    assert concentration(np.array([0.0, 1.0]), *counts) is None
    assert beta_priors(np.array([0.0, 0.5]), *counts, np.array([0, 1])) is None


def test_priors_and_base_rates_do_not_use_the_grades_of_their_own_fold() -> None:
    f, right, known = drawn(4, n=60)
    fold, groups = np.arange(60) % 5, [f"group {i % 3}" for i in range(60)]
    changed = np.where(fold == 2, known - right, right)
    for before, after in (
        (base_rates(right / known, groups, fold), base_rates(changed / known, groups, fold)),
        *zip(beta_priors(f, right, known, fold), beta_priors(f, changed, known, fold), strict=True),
    ):
        np.testing.assert_array_equal(before[fold == 2], after[fold == 2])
        assert (before != after)[fold != 2].any()


def test_the_base_rate_of_a_new_group_is_the_overall_accuracy() -> None:
    found = base_rates(np.array([0.1, 0.2, 0.6, 0.9]), ["a", "a", "b", "c"], np.array([0, 1, 1, 0]))
    np.testing.assert_allclose(found, [0.2, 0.1, 0.5, 0.4])


# The command


def planted_accuracy(n: int) -> np.ndarray:
    return np.random.default_rng(5).beta(0.3, 0.5, n)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    accuracy = planted_accuracy(200)
    return make_store(tmp_path_factory.mktemp("stores") / "made", np.zeros((200, 1, 2), np.float32), accuracy, k=10)


@pytest.fixture(scope="module")
def confidences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the true accuracies, except those of three questions, and the same numbers as if they were baselines."""
    path, values = tmp_path_factory.mktemp("tables") / "a.parquet", planted_accuracy(200)
    columns = {"question_id": [f"q{i}" for i in range(3, 200)], "true": values[3:], "consistency": values[3:]}
    pq.write_table(pa.table({**columns, "uniform": values[3:]}), path)
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, store: Store, confidences: Path) -> Path:
    sources = [f"{confidences}:true", f"{confidences}:consistency"]
    return budget(str(store.path), sources, out=str(tmp_path_factory.mktemp("runs") / "budget"), n_resamples=200)


@pytest.fixture(scope="module")
def methods(results: Path) -> dict[str, dict[tuple[str, str], Any]]:
    settings = json.loads((results / "budget.json").read_text())["settings"]
    return {name: {(one["confidence"], one["gain"]): one for one in of["methods"]} for name, of in settings.items()}


@pytest.mark.slow
def test_true_accuracies_are_better_than_the_uniform_allocation_and_save_answers(methods: dict[str, Any]) -> None:
    for setting, gain in (("all", "plug-in"), ("all", "Bayesian"), ("half", "plug-in"), ("online", "Bayesian")):
        found = methods[setting]["true", gain]
        assert found["difference"]["1"]["low"] > 0.02
        assert found["saved"]["1"]["low"] > 0.1
        uniform = methods[setting]["uniform", ""]["success"]["1"]["value"]
        assert found["success"]["1"]["value"] == pytest.approx(uniform + found["difference"]["1"]["value"])


@pytest.mark.slow
def test_the_oracle_and_baselines_of_half_of_the_answers_are_evaluated_on_the_other_half(
    methods: dict[str, Any],
) -> None:
    names = {setting: {name for name, _ in of} for setting, of in methods.items()}
    assert names["all"] == names["online"] == {"uniform", "base_rate", "true"}
    assert names["half"] == {"uniform", "base_rate", "true", "consistency", "oracle"}
    assert [*methods["half"]["oracle", "plug-in"]["success"]] == ["1", "2", "4"]


def test_the_oracle_does_not_use_the_grades_on_which_it_is_evaluated(store: Store) -> None:
    table = load_table(store)

    def oracle(one: QuestionTable) -> np.ndarray:
        return read_questions(one, {}, 0).settings["half"].gains["oracle", "plug-in"][:, :5]

    answers = table.answers
    held, other = (table.with_grades(~(half & (answers.sample >= 8))) for half in (answers.held_out, ~answers.held_out))
    np.testing.assert_array_equal(oracle(held), oracle(table))
    assert (oracle(other) != oracle(table)).any()


@pytest.mark.slow
def test_every_fold_spends_its_own_budget(store: Store, results: Path, confidences: Path) -> None:
    allocations = pq.read_table(results / "allocations.parquet").to_pandas()
    values = np.append([np.nan] * 3, planted_accuracy(200)[3:])
    questions = read_questions(load_table(store), {"true": values}, 0)
    fold = {f"q{row}": number for row, number in zip(questions.rows, questions.fold, strict=True)}
    allocations["fold"] = allocations["question_id"].map(fold)
    spent = allocations.groupby(["confidence", "gain", "budget", "fold"])["answers"].mean().reset_index()
    assert len(spent) == 5 * 4 * 5  # methods, budgets and folds
    np.testing.assert_array_equal(spent["answers"], spent["budget"])


@pytest.mark.slow
def test_the_page_says_how_many_questions_were_left_out(results: Path) -> None:
    page = (results / "budget.md").read_text()
    assert "answered 197 questions" in page
    assert "**Left out**: 3 questions" in page
    assert "oracle (not attainable) | plug-in |" in page
    assert {path.name for path in (results / "plots").glob("*.png")} == {"all.png", "half.png", "online.png"}


def test_questions_without_grades_in_one_half_are_left_out(store: Store) -> None:
    table = load_table(store)
    kept = ~((table.answers.question == 7) & table.answers.held_out) & (table.answers.question != 9)
    assert sorted({*range(200)} - {*read_questions(table.with_grades(kept), {}, 0).rows.tolist()}) == [7, 9]


@pytest.mark.parametrize(("budgets", "got"), [([0], "0"), ([1, 11], "11"), ([], "no budget")])
def test_budgets_that_cannot_be_spent_are_refused(store: Store, tmp_path: Path, budgets: list[int], got: str) -> None:
    with pytest.raises(InputError, match=f"between 1 and 10, .*, but got {got}"):
        budget(str(store.path), budgets=budgets, out=str(tmp_path / "out"))


def test_two_confidences_with_the_same_name_are_refused(store: Store, confidences: Path, tmp_path: Path) -> None:
    for columns in (["uniform"], ["true", "true"]):
        with pytest.raises(InputError, match="distinct names other than uniform, base_rate, oracle"):
            budget(str(store.path), [f"{confidences}:{name}" for name in columns], out=str(tmp_path / "out"))


def test_too_few_questions_and_stores_without_right_answers_are_refused(tmp_path: Path) -> None:
    for n, accuracy, message in (
        (19, 0.5, "at least 20 questions .* but got 19"),
        (20, 0.0, r"answers with odd indices \(1, 3, 5, …\) to be right, but all of them are wrong"),
    ):
        store = make_store(tmp_path / str(n), np.zeros((n, 1, 2), np.float32), np.full(n, accuracy), k=2)
        with pytest.raises(InputError, match=message):
            budget(str(store.path), out=str(tmp_path / "out"))


@pytest.mark.slow
def test_a_store_in_which_every_answer_is_right_has_no_priors(tmp_path: Path) -> None:
    store = make_store(tmp_path / "made", np.zeros((30, 1, 2), np.float32), np.ones(30), k=4)
    folder = budget(str(store.path), out=str(tmp_path / "out"), n_resamples=100)
    found = json.loads((folder / "budget.json").read_text())["settings"]["all"]["methods"]
    assert [(one["confidence"], one["gain"]) for one in found] == [("uniform", ""), ("base_rate", "plug-in")]
    assert found[1]["success"]["1"]["value"] == 1
