"""Tests of the grid of signals as scores: AUROCs, significance tests, and choices on synthetic stores."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from datamodules import FeatureDataModule
from datamodules.table import QuestionTable, load_table
from extract.errors import InputError
from extract.signals.pooling import pool
from extract.store.ragged import Ragged
from extract.store.store import Store
from extract.store.verify import write_manifest
from probes.commands import signals
from probes.metrics import functional as F
from probes.metrics.intervals import bootstrap, by_question, resampled
from probes.training_free.clustered_auroc import clustered_auroc, max_t
from probes.training_free.grid import Grid, make_grid
from probes.training_free.record import (
    LENGTH,
    TRUNCATED,
    grid_record,
    length_stratum,
    signals_page,
    signals_verdict,
)
from probes.training_free.scores import Score
from tests.helpers.synthetic import make_store

#: Functions that draw token values by signal and key, given the correctness and length of each answer.
Made = dict[tuple[str, str], Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]]


def noise(right: np.ndarray, n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return noise that is constant within an answer, so that no pooling depends on its length or correctness."""
    return np.repeat(rng.gamma(2, 1, len(n)), n)


def planted(right: np.ndarray, n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return tokens with larger values in wrong answers."""
    return np.repeat(np.where(right, 0.5, 1.0), n) * rng.gamma(2, 1, n.sum())


def as_long(right: np.ndarray, n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return values that depend only on the length of the answer."""
    return np.repeat(n, n) + 0.1 * rng.random(n.sum())


TOKENS: Made = {
    ("tokens", "3/entropy"): planted,
    ("tokens", "3/nll"): planted,
    ("tokens", "3/margin"): lambda right, n, rng: np.exp(-planted(right, n, rng)),
}
ALL: Made = {
    **TOKENS,
    ("entropy_profile", "1/entropy"): noise,
    ("attention_entropy", "2/normalised"): as_long,
    ("rollout", "3/norm_none_mean_emit"): noise,
}


def fill(folder: Path, made: Made = ALL, n: int = 100, k: int = 4, seed: int = 0) -> Store:
    """Make a store with these signals. Wrong answers are longer, the longest are truncated, and some are empty."""
    rng = np.random.default_rng(seed)
    store = make_store(folder, np.zeros((n, 1, 2), np.float32), rng.beta(1, 1.2, n), k=k, seed=seed, longest=12)
    for part in store.samples.ranges():
        samples, grades = store.samples.read(part).to_pylist(), store.grades.read("made", part).to_pylist()
        lengths = np.array([len(row["token_ids"]) - (row["finish_reason"] == "stop") for row in samples])
        offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        tensors: dict[str, dict[str, Tensor | Ragged]] = {}
        for (signal, key), values in made.items():
            one = values(np.array([row["right"] for row in grades]), lengths, rng)
            tensors.setdefault(signal, {})[key] = Ragged(torch.from_numpy(one).float(), offsets)
        for signal, held in tensors.items():
            store.signals.write(signal, part, held)
    write_manifest(store)
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fill(tmp_path_factory.mktemp("stores") / "planted")


@pytest.fixture(scope="module")
def table(store: Store) -> QuestionTable:
    return load_table(store)


@pytest.fixture(scope="module")
def grid(store: Store, table: QuestionTable) -> Grid:
    return make_grid(store, table, 0.4, n_draws=999)


@pytest.fixture(scope="module")
def record(grid: Grid) -> dict[str, Any]:
    return grid_record(grid, 200, 0)


def rows_of(n_questions: int, k: int) -> tuple[Tensor, Tensor]:
    question = torch.arange(n_questions).repeat_interleave(k)
    return question, torch.arange(n_questions * k) % k


def drawn(
    rng: np.random.Generator, n_scores: int, n_questions: int, k: int, accuracy: float, shared: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return scores independent of the grades, though both are correlated within a question."""
    p = rng.beta(1.5 * accuracy, 1.5 * (1 - accuracy), n_questions)
    right = rng.random((n_questions, k)) < p[:, None]
    scores = shared * rng.normal(size=(n_scores, n_questions, 1)) + rng.normal(size=(n_scores, n_questions, k))
    return torch.from_numpy(scores).flatten(1).float(), torch.from_numpy(right).flatten()


# AUROCs


def test_aurocs_and_their_derivatives_are_those_of_the_plain_metric_with_ties_and_missing_answers() -> None:
    rng, (question, _) = np.random.default_rng(0), rows_of(30, 4)
    scores = torch.from_numpy(rng.integers(0, 9, (6, 120))).float()
    scores[torch.from_numpy(rng.random((6, 120)) < 0.1)] = torch.nan
    right = torch.from_numpy(rng.random(120) < 0.4)
    found = clustered_auroc(scores, right, question, 30)
    for row, score in enumerate(scores):
        there = score.isfinite()
        weights = torch.ones(1, 30, dtype=torch.float64, requires_grad=True)
        of_answers = weights[:, question[there]]
        value = F.capability_auroc(score[there], right[there], torch.ones(int(there.sum())), of_answers).sum()
        (influence,) = torch.autograd.grad(value, weights)
        assert float(found.auroc[row]) == pytest.approx(float(value.detach()), abs=1e-12)
        assert torch.allclose(found.influence[row], influence[0], atol=1e-12)
        assert int(found.n_answers[row]) == int(there.sum())


@pytest.mark.slow
def test_the_standard_error_and_the_interval_are_close_to_those_of_the_bootstrap() -> None:
    rng, (question, _) = np.random.default_rng(1), rows_of(80, 4)
    scores, right = drawn(rng, 4, 80, 4, 0.4)
    scores += torch.tensor([0.0, 0.5, 1.0, 2.0])[:, None] * right
    found = clustered_auroc(scores, right, question, 80)
    low, high = found.interval()
    for row, score in enumerate(scores):

        def auroc(weights: Tensor, score: Tensor = score) -> Tensor:
            return F.capability_auroc(score, right, torch.ones(320), weights)

        metric = by_question(auroc, question)
        values, interval = resampled(metric, 80, 2000, 0), bootstrap(metric, 80)
        assert values is not None
        assert interval is not None
        assert float(found.standard_error[row]) == pytest.approx(float(values.std()), rel=0.08)
        width = interval["high"] - interval["low"]
        assert float(low[row]) == pytest.approx(interval["low"], abs=0.12 * width)
        assert float(high[row]) == pytest.approx(interval["high"], abs=0.12 * width)


def test_intervals_of_noise_contain_one_half() -> None:
    rng, (question, _), held = np.random.default_rng(2), rows_of(60, 4), []
    for _ in range(40):
        low, high = clustered_auroc(*drawn(rng, 50, 60, 4, 0.4), question, 60).interval()
        held.append(((low <= 0.5) & (high >= 0.5)).double().mean())
    assert 0.93 < float(torch.stack(held).mean()) < 0.97


def test_undefined_values_are_nan() -> None:
    question, sample = rows_of(20, 2)
    right = torch.arange(40) % 3 == 0
    scores = torch.stack([torch.full((40,), 2.0), torch.full((40,), torch.nan), torch.rand(40), right.float()])
    scores[2, right] = torch.nan
    found = clustered_auroc(scores, right, question, 20)
    assert float(found.auroc[0]) == 0.5  # all are ties
    assert found.auroc[1:3].isnan().all()
    assert float(found.auroc[3]) == 1
    assert found.standard_error.isnan().all()  # nothing varies, so the standard error cannot be estimated
    assert torch.stack(found.interval()).isnan().all()
    p_values = max_t(scores, right, question, sample, 99)
    assert p_values[:3].isnan().all()
    assert float(p_values[3]) == 0.01


def test_few_questions_of_a_class_give_no_standard_error() -> None:
    question, _ = rows_of(20, 2)
    scores = torch.rand(1, 40, generator=torch.Generator().manual_seed(0))
    for n_right, said in ((4, False), (5, True)):
        found = clustered_auroc(scores, (question < n_right) & (torch.arange(40) % 2 == 0), question, 20)
        assert bool(found.standard_error.isfinite()) is said
        assert bool(found.auroc.isfinite())


# Correction


@pytest.mark.slow
def test_corrected_p_values_equal_those_of_permuted_grades() -> None:
    rng, (question, sample) = np.random.default_rng(3), rows_of(12, 3)
    scores, right = drawn(rng, 5, 12, 3, 0.5)
    scores[0] += 1.5 * right
    n_draws = 200
    orders = torch.rand(500 + n_draws, 12, generator=torch.Generator().manual_seed(4)).argsort(1)

    above, below = scores[:, :, None], scores[:, None]
    won = (above > below).double() + (above == below).double() / 2

    def distances(order: Tensor) -> Tensor:
        """Return the distances [order, score] of the AUROCs from ½."""
        grades = right.view(12, 3)[order].flatten(1).double()
        aurocs = torch.einsum("oi,sij,oj->os", grades, won, 1 - grades) / (grades.sum(1) * (1 - grades).sum(1))[:, None]
        return (aurocs - 0.5).abs()

    spread = distances(orders[:500]).square().mean(0).sqrt()
    largest = (distances(orders[500:]) / spread).amax(1)
    observed = distances(torch.arange(12)[None])[0] / spread
    wanted = [(1 + int((largest >= one - 1e-6).sum())) / (1 + n_draws) for one in observed]
    assert max_t(scores, right, question, sample, n_draws, seed=4).tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "shared"), [(0.4, 1.0), (0.1, 3.0)])
def test_noise_is_significant_in_one_of_twenty_families(accuracy: float, shared: float) -> None:
    rng, (question, sample) = np.random.default_rng(5), rows_of(40, 4)
    found = 0
    for seed in range(100):
        scores, right = drawn(rng, 60, 40, 4, accuracy, shared)
        found += bool((max_t(scores, right, question, sample, 199, seed) <= 0.05).any())
    assert 0 < found / 100 < 0.115  # three standard errors about 0.05


def test_equivalent_scores_are_counted_once() -> None:
    rng, (question, sample) = np.random.default_rng(6), rows_of(40, 4)
    scores, right = drawn(rng, 3, 40, 4, 0.5)
    scores[0] += 0.8 * right
    alone = max_t(scores, right, question, sample, 499)
    copied = max_t(torch.cat([scores, 2 * scores.repeat(50, 1) - 1]), right, question, sample, 499)
    assert copied[:3].tolist() == alone.tolist()
    many = max_t(torch.cat([scores, drawn(rng, 150, 40, 4, 0.5)[0]]), right, question, sample, 499)
    assert float(many[0]) > float(alone[0])


def test_missing_answers_are_left_out_of_permutations() -> None:
    rng, (question, sample) = np.random.default_rng(7), rows_of(40, 4)
    scores, right = drawn(rng, 20, 40, 4, 0.5)
    scores[:10, torch.from_numpy(rng.random(160) < 0.2)] = torch.nan
    scores[0] += 3 * right
    graded = torch.from_numpy(rng.random(160) < 0.9)
    p_values = max_t(scores[:, graded], right[graded], question[graded], sample[graded], 999)
    assert float(p_values[0]) == 0.001
    assert (p_values[1:] > 0.05).all()


# Scores


@pytest.mark.slow
def test_scores_are_the_pooled_signals_turned_so_that_higher_is_right(store: Store, grid: Grid) -> None:
    entropy, margin = store.signals.read_ragged("tokens", "3/entropy"), store.signals.read_ragged("tokens", "3/margin")
    weights = store.signals.read_ragged("rollout", "3/norm_none_mean_emit")
    nll, rows = store.signals.read_ragged("tokens", "3/nll"), grid.parts["test"].row
    wanted = {
        Score("tokens", "3/entropy", "max"): -pool(entropy, "max"),
        Score("tokens", "3/margin", "q25"): pool(margin, "q25"),
        Score("tokens", "3/margin", "std"): -pool(margin, "std"),  # as for 1 − margin, higher for wrong answers
        Score("tokens", "3/nll", "mean", "entropy"): -pool(nll, "mean", entropy),
        Score("tokens", "3/margin", "top_20", "rollout/norm_none_mean_emit"): pool(margin, "top_20", weights),
        Score("tokens", "3/nll", "sum"): -pool(nll, "mean") * nll.lengths,
    }
    for name, values in wanted.items():
        assert torch.allclose(grid.scores[grid.row_of[name]], values[rows], equal_nan=True), name


@pytest.mark.slow
def test_the_grid_has_every_signal_pooling_and_weighting_once(grid: Grid) -> None:
    assert len(set(grid.names)) == len(grid.names) == grid.scores.shape[0]
    # 5 keys in 12 ways; 3 of them with 2 weightings (1 − p_max was not read); a sum and two predictive entropies
    assert len(grid.names) == 5 * 12 + 3 * 2 * 12 + 3
    assert {name.weighting for name in grid.names} == {"none", "entropy", "rollout/norm_none_mean_emit"}
    assert "rollout" not in {name.signal for name in grid.names}


def test_predictive_entropy_uses_other_answers_than_those_on_which_it_is_scored(
    store: Store, table: QuestionTable
) -> None:
    grid = make_grid(store, table, 0.4, n_draws=99)
    row = grid.row_of[Score("mc_predictive_entropy", "3/nll", "mean")]
    part, answers = grid.parts["test"], table.answers
    mean = pool(store.signals.read_ragged("tokens", "3/nll"), "mean").numpy()
    for value, answer in zip(grid.scores[row].tolist(), part.row.tolist(), strict=True):
        spent = (answers.question == answers.question[answer]) & (answers.sample % 2 == 0)
        if answers.sample[answer] % 2:
            assert value == pytest.approx(-mean[spent].mean(), rel=1e-5)
        else:
            assert value != value
    assert not grid.names[grid.chosen].half


@pytest.mark.slow
def test_a_signal_with_the_wrong_sign_stays_below_one_half(tmp_path: Path) -> None:
    wrong: Made = {("tokens", "3/entropy"): lambda right, n, rng: planted(~right, n, rng)}
    store = fill(tmp_path / "store", wrong)
    grid = make_grid(store, load_table(store), 0.4, n_draws=99)
    row = grid.row_of[Score("tokens", "3/entropy", "mean")]
    assert float(grid.aurocs["val"].auroc[row]) < 0.3
    assert float(grid.aurocs["test"].auroc[row]) < 0.3
    record = grid_record(grid, 10, 0)
    assert record["grid"]["n_below"] > 0
    assert "rank wrong answers above right answers" in signals_page(record, [])


# Choice and test


def test_the_planted_signal_is_found_and_noise_is_not(grid: Grid, record: dict[str, Any]) -> None:
    assert grid.names[grid.chosen].signal == "tokens"
    rows = {row["family"]: row for row in record["rows"] if row["role"] == "best"}
    assert rows["tokens"]["auroc"]["low"] > 0.6
    assert rows["tokens"]["p_corrected"] < 0.01
    assert rows["entropy_profile"]["p_corrected"] > 0.05
    assert "ranks right answers above wrong answers" in signals_verdict(record)
    of_noise = torch.tensor([name.signal == "entropy_profile" for name in grid.names])
    assert not (grid.p[of_noise] < 0.05).any()
    constant = grid.row_of[Score("entropy_profile", "1/entropy", "std")]
    assert float(grid.aurocs["test"].auroc[constant]) == 0.5
    assert bool(grid.p[constant].isnan())
    assert (grid.p[~of_noise] < 0.05).any()


def test_a_verdict_claims_no_more_than_both_test_and_interval(record: dict[str, Any]) -> None:
    unsure = copy.deepcopy(record)
    row = next(row for row in unsure["rows"] if row["name"] == unsure["chosen"])
    row["auroc"] = {"value": 0.85, "low": 0.43, "high": 0.98}
    assert "The p-value indicates a difference from chance, but the interval does not" in signals_verdict(unsure)
    assert "ranks right answers" not in signals_verdict(unsure)
    row["p_corrected"] = 0.2
    assert "not significantly different from chance" in signals_verdict(unsure)


@pytest.mark.slow
def test_the_verdict_on_noise_claims_nothing(tmp_path: Path) -> None:
    made: Made = {("tokens", "3/entropy"): noise, ("entropy_profile", "1/entropy"): noise}
    store = fill(tmp_path / "store", made, seed=3)
    said = signals_verdict(grid_record(make_grid(store, load_table(store), 0.4, n_draws=999), 200, 0))
    assert "is not significantly different from chance" in said
    assert "better than" not in said


def test_an_effect_of_length_vanishes_between_answers_of_equal_length(record: dict[str, Any]) -> None:
    rows = {row["family"] or row["name"]: row for row in record["rows"]}
    confounded, length, signal = rows["attention_entropy"], rows[LENGTH], rows["tokens"]
    assert confounded["auroc"]["low"] > 0.55
    assert confounded["equal_length"]["low"] < 0.5 < confounded["equal_length"]["high"]
    assert length["auroc"]["value"] == pytest.approx(confounded["auroc"]["value"], abs=0.02)
    assert signal["equal_length"]["low"] > 0.6
    assert record["longer_is_wrong"]
    assert rows[TRUNCATED]["auroc"]["value"] != 0.5
    assert rows[TRUNCATED]["uncut"]["value"] == 0.5
    assert 0 < signal["share_of_pairs"] < 1


def test_lengths_within_a_stratum_are_equal_or_similar() -> None:
    n = torch.arange(1, 400)
    stratum = length_stratum(n)
    assert (stratum.diff() >= 0).all()
    assert len(stratum[:5].unique()) == 5
    for one in stratum.unique():
        own = n[stratum == one]
        assert int(own[-1]) < 1.25 * int(own[0]) or len(own) == 1


@pytest.mark.slow
def test_grades_of_test_questions_do_not_change_the_choice(store: Store, grid: Grid) -> None:
    table = load_table(store)
    rows = grid.parts["test"].row.numpy()
    table.answers.right[rows] = 1 - table.answers.right[rows]
    turned = make_grid(store, table, 0.4, n_draws=99)
    assert turned.chosen == grid.chosen
    assert turned.of_families() == grid.of_families()
    assert torch.equal(turned.aurocs["val"].auroc, grid.aurocs["val"].auroc)
    assert torch.allclose(turned.aurocs["test"].auroc, 1 - grid.aurocs["test"].auroc)
    assert grid_record(turned, 200, 0)["longer_is_wrong"]


def test_grades_of_validation_questions_change_the_choice(store: Store, grid: Grid) -> None:
    table = load_table(store)
    rows = grid.parts["val"].row.numpy()
    table.answers.right[rows] = 1 - table.answers.right[rows]
    assert make_grid(store, table, 0.4, n_draws=99).chosen != grid.chosen


def test_the_test_questions_are_those_of_the_probes(store: Store, table: QuestionTable) -> None:
    data = FeatureDataModule(str(store.path), signal="hidden", positions=["last_prompt"])
    data.setup()
    part = make_grid(store, table, n_draws=99).parts["test"]
    assert sorted(set(table.answers.question[part.row.numpy()])) == data.question_rows["test"].tolist()


def test_unknown_grades_are_left_out_and_counted(store: Store, grid: Grid) -> None:
    table, part = load_table(store), grid.parts["test"]
    unknown = part.row[part.sample == 1][:7].numpy()
    table.answers.known[unknown] = 0
    masked = make_grid(store, table, 0.4, n_draws=99)
    assert masked.parts["test"].n_unknown == 7
    assert len(masked.parts["test"].row) == len(part.row) - 7
    table.answers.right[unknown] = 1 - table.answers.right[unknown]
    again = make_grid(store, table, 0.4, n_draws=99)
    assert torch.equal(again.aurocs["test"].auroc, masked.aurocs["test"].auroc)
    assert torch.allclose(again.p, masked.p, equal_nan=True)


def test_empty_answers_have_no_score_and_are_counted(grid: Grid, record: dict[str, Any]) -> None:
    counts, n_empty = record["parts"]["test"], int((grid.n_tokens[grid.parts["test"].row] == 0).sum())
    assert counts["n_empty"] == n_empty > 0
    best = next(row for row in record["rows"] if row["name"] == record["chosen"])
    assert best["n_answers"] == counts["n_answers"] - n_empty
    assert "nan" not in signals_page(json.loads(json.dumps(record, allow_nan=False)), ["signals"]).lower()


def test_a_score_that_many_answers_lack_is_not_chosen(grid: Grid) -> None:
    val = grid.aurocs["val"]
    best = int(val.auroc.nan_to_num(0).argmax())
    few = val._replace(n_answers=val.n_answers.clone(), auroc=val.auroc.clone())
    few.n_answers[best] = int(0.5 * val.n_answers.max())
    few.auroc[best] = 0.99
    among = list(range(len(grid.names)))
    parts = {**vars(grid)}
    parts = {name: value for name, value in parts.items() if name not in ("chosen", "row_of")}
    assert Grid(**{**parts, "aurocs": {**grid.aurocs, "val": few}}).choose(among) != best
    assert grid.choose([]) is None


def test_the_chosen_score_is_tested_against_length_and_mean_entropy(record: dict[str, Any]) -> None:
    against = {one["b"]: one for one in record["tests"] if one["a"] == record["chosen"]}
    assert set(against) == {LENGTH, record["reference"]} - {record["chosen"]}
    assert against[LENGTH]["value"] > 0
    assert all(one["p_holm"] >= one["p"] for one in record["tests"])
    of_half = [one for one in record["tests"] if one["b"] == record["chosen"]]
    assert [one["a"].split()[0] for one in of_half] == ["mc_predictive_entropy"]
    on_half = next(row["n_answers"] for row in record["rows"] if row["half"])
    assert on_half == record["parts"]["test"]["n_answers"] / 2
    assert 0.9 * on_half < of_half[0]["n_answers"] <= on_half  # those with content tokens


def test_a_score_that_weights_do_not_change_is_not_a_weighted_score(grid: Grid) -> None:
    chosen = {family: grid.names[row] for family, row in grid.of_families().items()}
    assert set(chosen) == {name.family for name in grid.names}
    val = grid.aurocs["val"].influence
    for family in ("tokens × entropy", "tokens × rollout"):
        own = val[grid.row_of[chosen[family]]]
        for name in grid.names:
            if name.weighting == "none" and name.key == chosen[family].key:
                assert not torch.equal(val[grid.row_of[name]], own)
    weighted = [name for name in grid.names if name.pooling == "max" and name.weighting != "none"]
    assert weighted
    for name in weighted:
        plain = grid.scores[grid.row_of[name._replace(weighting="none")]]
        assert torch.equal(grid.scores[grid.row_of[name]].nan_to_num(), plain.nan_to_num())


def test_groups_have_counts_that_add_up(record: dict[str, Any]) -> None:
    groups, counts = record["groups"], record["parts"]["test"]
    assert sum(one["n_questions"] for one in groups) == counts["n_questions"]
    assert sum(one["n_answers"] for one in groups) == counts["n_answers"] - counts["n_empty"]
    assert all(0 < one["n_right"] < one["n_answers"] for one in groups)
    assert [one["group"] for one in groups] == [f"group {i}" for i in range(4)]


def test_few_questions_of_a_group_give_no_interval(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", TOKENS, n=40)
    record = grid_record(make_grid(store, load_table(store), 0.4, n_draws=99), 100, 0)
    assert [one["n_questions"] for one in record["groups"]] == [4] * 4
    assert all(one["auroc"] is None for one in record["groups"])
    assert any(one["value"] is not None for one in record["groups"])
    assert "**There are only 16 test questions" in signals_page(record, [])


# The command


@pytest.mark.slow
def test_the_command_writes_its_page_record_table_and_pictures(store: Store, tmp_path: Path) -> None:
    folder = signals(str(store.path), str(tmp_path / "out"), test_fraction=0.4, n_resamples=100)
    assert {path.name for path in folder.iterdir()} == {"grid.parquet", "plots", "report.json", "signals.md"}
    record, text = json.loads((folder / "report.json").read_text()), (folder / "signals.md").read_text()
    rows = pq.read_table(folder / "grid.parquet").to_pylist()
    assert len(rows) == record["grid"]["n_scores"]
    assert set(rows[0]) >= {"signal", "key", "pooling", "weighting", "auroc_val", "se_val", "auroc_test", "low", "high"}
    for row in rows:
        assert row["low"] is None or row["low"] < row["auroc_test"] < row["high"]
    assert {path.name for path in (folder / "plots").glob("*.png")} == {"signals.png", "weightings.png"}
    for picture in (folder / "plots").glob("*.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert f"plots/{picture.name}" in text
    for row in record["rows"]:
        assert row["name"] in text
    with pytest.raises(InputError, match="`out` to be a new folder"):
        signals(str(store.path), str(tmp_path / "out"))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[("tokens", "3/nll")], [("entropy_profile", "1/entropy")]])
def test_a_store_with_one_signal_has_a_page(tmp_path: Path, keys: list[tuple[str, str]]) -> None:
    fill(tmp_path / "store", {key: ALL[key] for key in keys}, n=40)
    folder = signals(str(tmp_path / "store"), str(tmp_path / "out"), test_fraction=0.4, n_resamples=100)
    record = json.loads((folder / "report.json").read_text())
    assert record["reference"] is None
    assert {path.name for path in (folder / "plots").glob("*.png")} == {"signals.png"}
    assert {row["family"] for row in record["rows"] if row["role"] == "best"} >= {keys[0][0]}


@pytest.mark.slow
def test_an_incomplete_signal_is_left_out_and_its_command_is_named(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    store.signals.file("entropy_profile", store.samples.ranges()[0]).with_suffix(".json").unlink()
    store = Store.open(tmp_path / "store")
    grid = make_grid(store, load_table(store), 0.4, n_draws=99)
    assert "read --store" in grid.masked["entropy_profile"]
    assert "entropy_profile" not in {name.signal for name in grid.names}
    assert "`entropy_profile`: missing for 1 of" in signals_page(grid_record(grid, 100, 0), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_fraction": 1.0}, "`test_fraction` to be between 0 and 1"),
        ({"test_fraction": 0.95}, "at least 10 validation questions"),
        ({"test_fraction": 0.01}, "at least 2 test questions"),
    ],
)
def test_impossible_grids_are_refused_and_leave_no_folder(
    store: Store, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        signals(str(store.path), str(tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())


def test_a_store_without_token_signals_names_the_command_that_reads_them(tmp_path: Path) -> None:
    make_store(tmp_path / "store", np.zeros((40, 1, 2), np.float32), np.full(40, 0.5))
    with pytest.raises(InputError, match=r"extract read --store .* --signals '\[tokens\]' --scope sample"):
        signals(str(tmp_path / "store"), str(tmp_path / "out"))


def test_a_store_with_only_right_answers_is_refused(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", TOKENS, n=40)
    for part in store.samples.ranges():
        rows = [{**row, "right": True} for row in store.grades.read("made", part).to_pylist()]
        store.grades.write("alike", part, rows, "all are right")
    with pytest.raises(InputError, match="validation split to contain right and wrong answers, but all 128"):
        signals(str(store.path), str(tmp_path / "out"), grader="alike")
