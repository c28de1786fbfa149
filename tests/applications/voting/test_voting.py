"""Tests of votes over stored answers: classes, replay, tuning, the command on stores and grids, and bad input."""

from __future__ import annotations

import json
import shutil
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from applications.__main__ import COMMANDS
from applications.voting.ballots import Ballots, read_poll
from applications.voting.command import vote
from applications.voting.evaluation import choose_threshold, evaluate_rules
from applications.voting.replay import Outcome, Replay, shuffled
from applications.voting.weighting import weighted_winner
from extract.errors import InputError
from extract.running.cli import run
from extract.sampling.prior import Prior
from extract.sampling.stopping import STOPPING_RULES, Answers
from extract.store.store import Store
from tests.helpers.synthetic import make_grid, make_store

N = 40
ACCURACY = np.linspace(0.02, 0.98, N)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "made"
    return make_store(folder, np.zeros((N, 1, 2), np.float32), ACCURACY, k=8).path


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_grid(tmp_path_factory.mktemp("stores") / "grid", ACCURACY, (0.0, 0.5, 1.0), k=6)


def confidences(folder: Path, values: np.ndarray = ACCURACY) -> str:
    table = pa.table({"question_id": [f"q{i}" for i in range(N)], "f": pa.array(values, from_pandas=True)})
    pq.write_table(table, folder / "f.parquet")
    return f"{folder / 'f.parquet'}:f"


def one_question(classes: list[int], right: list[bool]) -> Ballots:
    n = len(classes)
    return Ballots(np.array(classes), np.array(right), np.full(n, 0.7), np.arange(1.0, n + 1), np.ones(n))


# Reading


def test_a_grid_gives_rounds_with_one_answer_per_temperature_and_a_single_answer_at_zero(grid: Path) -> None:
    poll = read_poll(str(grid))
    assert list(poll.stores) == [0.0, 0.5, 1.0]
    assert poll.ballots[0].temperatures.tolist() == [0.0, 0.5, 1.0] + [0.5, 1.0] * 5


def test_questions_with_an_ungraded_answer_are_left_out(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s", np.zeros((N, 1, 2), np.float32), ACCURACY, k=4).path
    store = Store.open(path)
    part = store.samples.ranges()[0]
    rows = store.grades.read("made", part).to_pylist()
    rows[5] |= {"right": None, "answer": "never seen"}
    store.grades.write("other", part, rows, "as it was drawn, but for one")
    assert 1 not in read_poll(str(path), "other").questions
    assert len(read_poll(str(path), "other").questions) == N - 1


# Replay


@pytest.mark.slow
def test_replays_are_unbiased() -> None:
    ballots = one_question([0, 0, 1, 2, 1, 0], [False, True, False])
    rule = STOPPING_RULES["prior"]
    prior = Prior(0.4, 2, 1)
    every = np.array(list(permutations(range(6))))
    decisions = [
        rule.decide(Answers(ballots.classes[order][None], ballots.temperatures), 0.03, prior) for order in every
    ]
    right = np.array([ballots.right[one.leader] for one in decisions])
    answers = np.array([one.n_answers for one in decisions])
    tokens = np.array([ballots.n_tokens[order[:n]].sum() for order, n in zip(every, answers, strict=True)])
    found = Replay(ballots, 4000, np.random.default_rng(0)).outcome(rule, prior)
    index = rule.thresholds.index(0.03)
    for values, mean in (
        (right, found.accuracy),
        (answers, found.answers),
        (tokens, found.tokens),
        (answers < 6, found.exits),
    ):
        assert mean[index] == pytest.approx(values.mean(), abs=3 * values.std() / 4000**0.5 + 1e-12)
    assert 0 < found.exits[index] < 1


def test_answers_are_permuted_only_within_a_temperature() -> None:
    temperatures = np.array([0.0, 0.5, 1.0, 0.5, 1.0])
    order = shuffled(temperatures, 500, np.random.default_rng(0))
    assert (temperatures[order] == temperatures).all()
    assert (np.sort(order) == np.arange(5)).all()
    assert len(np.unique(order, axis=0)) == 4


def test_weights_decide_a_vote() -> None:
    assert weighted_winner(np.array([0, 0, 1]), np.array([0.2, 0.2, 0.9])) == 1
    assert weighted_winner(np.array([0, 0, 1]), np.array([0.5, 0.5, 0.9])) == 0
    assert weighted_winner(np.array([0, 1, 1]), np.array([0.5, np.nan, 0.4])) == 0


# Tuning


def test_the_cheapest_threshold_within_the_loss_is_chosen_on_the_given_questions() -> None:
    accuracy = np.array([[0.50, 0.9], [0.60, 0.1], [0.595, 0.1]])
    answers = np.array([[1.0, 9.0], [7.0, 1.0], [5.0, 1.0]])
    outcome = Outcome(accuracy, answers, answers, answers)
    first, full = np.array([True, False]), np.array([0.6, 0.9])
    assert choose_threshold(outcome, first, full) == 2
    assert choose_threshold(outcome, ~first, full) == 0
    assert choose_threshold(outcome, first, np.array([0.9, 0.9])) == 1  # all lose more


@pytest.mark.slow
def test_every_question_is_evaluated_with_settings_of_the_other_half(store: Path) -> None:
    poll = read_poll(str(store))
    half = np.arange(N) % 2
    found = evaluate_rules(poll.ballots, half, list(STOPPING_RULES)[1:], {"f": ACCURACY}, 20, 0).methods
    altered = list(poll.ballots)
    for i in np.flatnonzero(half == 0):  # all answers of the first half become equal
        altered[i] = one_question([0] * 8, [True])
    changed = evaluate_rules(altered, half, list(STOPPING_RULES)[1:], {"f": ACCURACY}, 20, 0).methods
    for name in ("adaptive_consistency", "prior_f"):
        assert found[name].chosen[1] == changed[name].chosen[1]
        assert found[name].chosen[0] != changed[name].chosen[0]
    assert found["prior_f"].priors[1] == changed["prior_f"].priors[1]
    assert found["prior_f"].priors[0] != changed["prior_f"].priors[0]


@pytest.mark.slow
def test_a_good_confidence_saves_answers(store: Path) -> None:
    poll = read_poll(str(store))
    half = np.arange(N) % 2
    methods = evaluate_rules(poll.ballots, half, ["adaptive_consistency", "prior"], {"f": ACCURACY}, 50, 0).methods
    used = {name: one.outcome.answers.mean() for name, one in methods.items()}
    assert used["prior_f"] < 0.9 * used["adaptive_consistency"]
    assert methods["prior_f"].outcome.accuracy.mean() > methods["majority"].outcome.accuracy.mean() - 0.03


# The command


@pytest.mark.slow
def test_the_command_writes_a_page_a_record_a_table_and_a_picture(store: Path, tmp_path: Path) -> None:
    options = [
        "--store",
        str(store),
        "--confidences",
        f"[{confidences(tmp_path)}]",
        "--orders",
        "20",
        "--n_resamples",
        "100",
    ]
    assert run(COMMANDS, "x", ["vote", *options, "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out/vote.json").read_text())
    table = pq.read_table(tmp_path / "out/vote.parquet")
    assert table.num_rows == record["n_questions"] == N
    for name, found in record["methods"].items():
        assert np.mean(table[f"{name}_accuracy"]) == pytest.approx(found["accuracy"]["value"])
        assert found["answers"]["low"] <= found["answers"]["value"] <= found["answers"]["high"]
    assert (tmp_path / "out/plots/vote.png").is_file()
    assert "sampling with a prior, f (`prior_f`)" in (tmp_path / "out/vote.md").read_text()


@pytest.mark.slow
def test_a_grid_is_compared_with_the_best_temperature_of_the_other_half(grid: Path, tmp_path: Path) -> None:
    out = vote(str(grid), orders=10, n_resamples=100, out=str(tmp_path / "out"))
    record = json.loads((out / "vote.json").read_text())
    assert set(record["methods"]["best_temperature"]["chosen"]) <= {0.0, 0.5, 1.0}
    assert {"two_stage", "prior_base_rate"} <= set(record["methods"])
    assert record["methods"]["majority"]["answers"]["value"] == 13


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": ["two_stage"]}, "apply to a single store, but got two_stage"),
        ({"rules": ["pior"]}, "Did you mean `prior`"),
        ({"orders": 9}, "`orders` to be at least 10, but got 9"),
        ({"confidences": "gaps"}, "every question with votes, but 1 of 40 questions have none"),
    ],
)
def test_bad_options_give_a_one_line_error(store: Path, tmp_path: Path, options: dict, message: str) -> None:
    if "confidences" in options:
        options = {"confidences": [confidences(tmp_path, np.where(np.arange(N) == 3, np.nan, ACCURACY))]}
    with pytest.raises(InputError, match=message) as raised:
        vote(str(store), **options, out=str(tmp_path / "out"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("n", "k", "message"), [(1, 4, "at least 20 questions"), (25, 1, "two graded answers")])
def test_too_few_questions_or_answers_give_a_one_line_error(tmp_path: Path, n: int, k: int, message: str) -> None:
    path = make_store(tmp_path / "s", np.zeros((n, 1, 2), np.float32), np.full(n, 0.5), k=k).path
    with pytest.raises(InputError, match=message):
        vote(str(path), out=str(tmp_path / "out"))


def test_stores_that_differ_in_more_than_the_temperature_are_not_a_grid(tmp_path: Path) -> None:
    for name, temperature, longest in (("a", 0.5, 1), ("b", 1.0, 9)):
        states = np.zeros((20, 1, 2), np.float32)
        make_store(tmp_path / "g" / name, states, np.full(20, 0.5), k=2, temperature=temperature, longest=longest)
    with pytest.raises(InputError, match="differ only in temperature, but .*max_new_tokens"):
        read_poll(str(tmp_path / "g"))


def test_a_temperature_without_answers_gives_a_one_line_error(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "grid", ACCURACY, (0.5, 1.0))
    for part in ("samples", "grades"):
        shutil.rmtree(grid / "t1.0" / part)
    with pytest.raises(InputError, match="t1.0") as raised:
        read_poll(str(grid))
    assert "\n" not in str(raised.value)


def test_a_store_without_right_answers_gives_a_one_line_error(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s", np.zeros((25, 1, 2), np.float32), np.zeros(25), k=4).path
    with pytest.raises(InputError, match="at least one right answer, but all answers are wrong"):
        vote(str(path), out=str(tmp_path / "out"))


def test_all_stores_of_a_grid_have_the_same_grader(grid: Path, tmp_path: Path) -> None:
    shutil.copytree(grid, tmp_path / "grid")
    (tmp_path / "grid/t1.0/grades/made").rename(tmp_path / "grid/t1.0/grades/other")
    with pytest.raises(InputError, match="`grader` to be one of other"):
        read_poll(str(tmp_path / "grid"))
