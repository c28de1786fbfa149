"""Tests of early stopping while sampling: decisions as in a replay, resumed runs, completion, and bad input."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamodules.table import load_table
from extract.commands import grade, make_store, sample_family
from extract.errors import InputError
from extract.grading import load_grader
from extract.grading.classes import AnswerClasses
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.recipe import StoreRecipe
from extract.sampling import prior
from extract.sampling.local.token_sampler import TokenSampler
from extract.sampling.prior import Prior
from extract.sampling.server.policy import Server
from extract.sampling.stopping import STOPPING_RULES, Answers
from extract.sampling.stopping_settings import turns
from extract.store.answer_log import logged_ranges
from extract.store.samples import REJECTED, SKIPPED
from extract.store.store import Store
from extract.viewing.inspection import inspect
from extract.viewing.stopping import describe_stopping
from tests.helpers.serving_stub import MODEL, Running, stub
from tests.helpers.tiny import write_questions

K, N = 8, 24
GRID = "0:1:0.5"
Rows = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", N))


@pytest.fixture(scope="module")
def priors(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_priors(tmp_path_factory.mktemp("priors") / "priors.parquet")


def write_priors(path: Path, n: int = N, **columns: Any) -> str:
    values = {"confidence": np.linspace(0, 1, n), "concentration": np.full(n, 3.0), "diversity": np.full(n, 1.5)}
    pq.write_table(pa.table({"question_id": [f"q{i}" for i in range(n)], **values, **columns}), path)
    return str(path)


@pytest.fixture(scope="module")
def recipe(questions: str, tiny_folder: Path) -> StoreRecipe:
    """Return a recipe for answers of two tokens, drawn from the three most likely ones, so that answers often agree."""
    policy = Decoding(0.3, max_new_tokens=2, top_k=3, prompt=PromptTemplate(chat=False))
    return StoreRecipe(questions=questions, model=str(tiny_folder), k=K, policy=policy, block_size=8)


@pytest.fixture(scope="module")
def full(recipe: StoreRecipe, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with K answers to each question."""
    return sample_family(str(tmp_path_factory.mktemp("stores") / "full"), recipe)[0]


@pytest.fixture(scope="module")
def decided(recipe: StoreRecipe, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store in which `adaptive_consistency` stopped sampling early. Tests must not change it."""
    path = str(tmp_path_factory.mktemp("decided") / "store")
    return sample_family(path, recipe, stop="adaptive_consistency", threshold=0.85)[0]


@pytest.fixture
def stopped(decided: Store, tmp_path: Path) -> Store:
    """Copy a store in which sampling stopped early."""
    return Store.open(shutil.copytree(decided.path, tmp_path / "store"))


@pytest.fixture(scope="module")
def stopped_at_two(recipe: StoreRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store in which `early_stopping` stopped sampling. Tests must not change it."""
    path = tmp_path_factory.mktemp("stopped") / "store"
    sample_family(str(path), recipe, stop="early_stopping", threshold=2)
    return path


@pytest.fixture
def stopped_path(stopped_at_two: Path, tmp_path: Path) -> str:
    """Copy a store in which `early_stopping` stopped sampling."""
    return str(shutil.copytree(stopped_at_two, tmp_path / "store"))


def rows_of(store: Store) -> Rows:
    rows = store.samples.read().to_pylist()
    return {(row["question_id"], row["sample"]): row for row in rows if row["finish_reason"] not in (SKIPPED, REJECTED)}


def outcomes(store: Store) -> dict[str, dict[str, Any]]:
    records = [store.samples.stopping(part) for part in store.samples.ranges()]
    return {id_: one for record in records if record is not None for id_, one in record["questions"].items()}


def replayed(stores: dict[float, Store], rule: str, threshold: float, priors: str | None = None) -> dict[str, Any]:
    """Apply a rule to the stored answers in index order."""
    grader, found, of_question = load_grader("short"), {}, {}
    if priors:
        of_question = {row.pop("question_id"): Prior(**row) for row in pq.read_table(priors).to_pylist()}
    rows = {temperature: rows_of(store) for temperature, store in stores.items()}
    order = turns(stores, K)
    for question in next(iter(stores.values())).questions:
        classes = AnswerClasses()
        answers = [grader.grade(question, rows[t][question.id, j]["text"]).answer for j, t in order]
        held = np.array([[classes.add(answer) for answer in answers]])
        decision = STOPPING_RULES[rule].decide(
            Answers(held, np.array([t for _, t in order])), threshold, of_question.get(question.id)
        )
        found[question.id] = (decision.reason, decision.n_answers, classes.first[decision.leader])
    return found


def decisions(store: Store) -> dict[str, Any]:
    return {id_: (one["reason"], one["n_answers"], one["answer"]) for id_, one in outcomes(store).items()}


@pytest.mark.parametrize(
    ("rule", "threshold", "per_round"),
    [("adaptive_consistency", 0.85, 1), ("early_stopping", 3, 1), ("early_stopping", 3, 3), ("prior", 0.02, 3)],
)
def test_live_decisions_equal_a_replay_in_index_order(
    rule: str, threshold: float, per_round: int, recipe: StoreRecipe, full: Store, priors: str, tmp_path: Path
) -> None:
    file = priors if rule == "prior" else None
    (store,) = sample_family(
        str(tmp_path / "store"), recipe, stop=rule, threshold=threshold, priors=file, per_round=per_round
    )
    assert decisions(store) == replayed({0.3: full}, rule, threshold, file)
    assert {reason for reason, _, _ in decisions(store).values()} == {"rule", "budget"}
    drawn, everything = rows_of(store), rows_of(full)
    for (id_, j), row in drawn.items():
        assert row["token_ids"] == everything[id_, j]["token_ids"]
        assert j < outcomes(store)[id_]["n_answers"] + per_round
    assert len(drawn) < len(everything)
    assert store.identity == full.identity


def test_two_stage_voting_stops_a_grid(recipe: StoreRecipe, tmp_path: Path) -> None:
    grid = replace(recipe, policy=replace(recipe.policy, temperature=GRID))
    whole = sample_family(str(tmp_path / "whole"), grid)
    stopped = sample_family(str(tmp_path / "stopped"), grid, stop="two_stage", threshold=0.6)
    by_temperature = dict(zip((0.0, 0.5, 1.0), whole, strict=True))
    assert decisions(stopped[0]) == replayed(by_temperature, "two_stage", 0.6)
    assert {reason for reason, _, _ in decisions(stopped[0]).values()} == {"rule", "budget"}
    assert decisions(stopped[0]) == decisions(stopped[1]) == decisions(stopped[2])
    assert {j for _, j in rows_of(stopped[0])} == {0}  # one answer at temperature 0
    completed = sample_family(str(tmp_path / "stopped"), grid)
    assert [texts(store) for store in completed] == [texts(store) for store in whole]


def texts(store: Store) -> dict[tuple[str, int], str]:
    return {key: row["text"] for key, row in rows_of(store).items()}


def test_a_run_that_was_killed_continues_with_the_same_decisions(
    recipe: StoreRecipe, decided: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original, n_calls = str(tmp_path / "killed"), TokenSampler.sample_grid, 0

    def killed(self: TokenSampler, *args: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls % 3 == 0:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(TokenSampler, "sample_grid", killed)
    for _ in range(20):
        try:
            (store,) = sample_family(path, recipe, stop="adaptive_consistency", threshold=0.85)
            break
        except KeyboardInterrupt:
            continue
    monkeypatch.undo()
    assert n_calls > 6
    assert outcomes(store) == outcomes(decided)
    assert rows_of(store) == rows_of(decided)
    assert not logged_ranges(store)


def test_a_fixed_number_of_samples_completes_the_store(
    recipe: StoreRecipe, full: Store, stopped_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped_path
    grade(path)
    assert Store.open(path).samples.stopped()
    capsys.readouterr()
    made = make_store(path, recipe, "short", ["hidden"])
    assert "Run `python -m extract grade` again afterwards" in capsys.readouterr().err
    assert texts(made) == texts(full)
    assert not made.samples.stopped()
    assert load_table(made).known.tolist() == [K] * N


def test_another_rule_or_budget_continues_where_sampling_stopped(
    recipe: StoreRecipe, stopped_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped_path
    before = rows_of(Store.open(path))
    sample_family(path, recipe, stop="early_stopping", threshold=2)
    assert "has 8 answers or was stopped earlier" in capsys.readouterr().err
    (more,) = sample_family(path, replace(recipe, k=2 * K), stop="adaptive_consistency", threshold=0.95)
    assert rows_of(more).items() >= before.items()
    (direct,) = sample_family(
        str(tmp_path / "direct"), replace(recipe, k=2 * K), stop="adaptive_consistency", threshold=0.95
    )
    assert decisions(more) == decisions(direct)


def test_answers_from_a_run_with_a_fixed_number_are_used(recipe: StoreRecipe, decided: Store, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    sample_family(path, replace(recipe, k=3))
    (store,) = sample_family(path, recipe, stop="adaptive_consistency", threshold=0.85)
    assert decisions(store) == decisions(decided)


def test_metrics_refuse_a_store_that_stopped_early_and_inspect_describes_it(
    stopped: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store, path = stopped, str(stopped.path)
    grade(path)
    n_drawn = len(rows_of(store))
    assert f"grade: {n_drawn} answers graded by short" in capsys.readouterr().err
    with pytest.raises(InputError, match="same number of answers.*stopped early .rule adaptive_consistency.*--k 8"):
        load_table(store)
    inspect(path)
    page = capsys.readouterr().out
    assert f"samples    {n_drawn:,}: " in page
    assert "by adaptive_consistency (threshold 0.85, at most 8 answers)" in page
    assert "the accuracies below are biased" in page
    mean = np.mean([one["n_answers"] for one in outcomes(store).values()])
    assert f"each decision uses {mean:.1f} answers on average" in page


def test_the_accuracy_of_the_decisions_is_that_of_their_answers(
    stopped: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store, path = stopped, str(stopped.path)
    plant_right_answers(store)
    found = outcomes(store)
    expected = np.mean([one["answer"] == "v" for one in found.values()])
    inspect(path)
    assert f"accuracy of the decisions: {expected:.3f} [" in capsys.readouterr().out
    assert 0 < expected < 1
    assert describe_stopping([store], "contains")[-1].startswith(
        "the accuracy of the decisions requires grades by short"
    )


def plant_right_answers(store: Store) -> None:
    """Write grades in which the answer "v" is right and all others are wrong."""
    questions, grader = {one.id: one for one in store.questions}, load_grader("short")
    for part in store.samples.ranges():
        rows = []
        for row in store.samples.read(part).to_pylist():
            answer = grader.grade(questions[row["question_id"]], row["text"]).answer
            right = None if row["finish_reason"] == SKIPPED else answer == "v"
            rows.append({"question_id": row["question_id"], "sample": row["sample"], "right": right, "answer": answer})
        store.grades.write("short", part, rows, grader.rule)


def test_a_damaged_range_is_drawn_again_by_any_run(recipe: StoreRecipe, full: Store, stopped_path: str) -> None:
    store = Store.open(stopped_path)
    file = store.samples.file(store.samples.ranges()[0])
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    (completed,) = sample_family(stopped_path, recipe)
    assert texts(completed) == texts(full)


def test_a_smaller_number_of_samples_leaves_later_ranges_alone(recipe: StoreRecipe, stopped_path: str) -> None:
    path = stopped_path
    (store,) = sample_family(path, replace(recipe, k=2 * K), stop="early_stopping", threshold=2)
    ranges = store.samples.ranges()
    (smaller,) = sample_family(path, recipe)
    assert smaller.samples.ranges() == ranges
    assert not logged_ranges(smaller)
    (completed,) = sample_family(path, replace(recipe, k=2 * K))
    assert len(rows_of(completed)) == 2 * K * N


def test_a_rule_replaces_the_record_of_another_one_that_skipped_nothing(recipe: StoreRecipe, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    sample_family(path, recipe, stop="adaptive_consistency", threshold=1)
    (store,) = sample_family(path, recipe, stop="early_stopping", threshold=2)
    assert {(store.samples.stopping(part) or {})["rule"] for part in store.samples.ranges()} == {"early_stopping"}


def test_a_lost_store_of_a_grid_is_decided_again(recipe: StoreRecipe, tmp_path: Path) -> None:
    grid = replace(recipe, policy=replace(recipe.policy, temperature="0.3:0.9:0.6"))
    before = sample_family(str(tmp_path / "grid"), grid, stop="early_stopping", threshold=2)
    shutil.rmtree(before[1].path / "samples")
    after = sample_family(str(tmp_path / "grid"), grid, stop="adaptive_consistency", threshold=0.9)
    assert decisions(after[0]) == decisions(after[1])
    assert not {one["reason"] for one in outcomes(after[0]).values()} - {"rule", "budget"}


# Servers


@pytest.fixture
def server() -> Iterator[Running]:
    with stub(answers=("paris", "rome", "lima"), rejects="Say 3 ") as running:
        yield running


def served(url: str, questions: str) -> StoreRecipe:
    options = Server(url=url, max_concurrency=10, timeout=5.0, attempts=3)
    return StoreRecipe(
        questions=questions,
        sampler="server",
        model=MODEL,
        k=K,
        block_size=8,
        policy=Decoding(temperature=1.0, max_new_tokens=8),
        server=options,
    )


@pytest.mark.slow
def test_a_served_model_stops_early_and_is_completed(server: Running, questions: str, tmp_path: Path) -> None:
    recipe, path = served(server.url, questions), str(tmp_path / "store")
    (store,) = sample_family(path, recipe, stop="adaptive_consistency", threshold=0.85)
    found = decisions(store)
    assert found["q3"] == (REJECTED, 0, None)
    n_drawn = len(rows_of(store))
    assert n_drawn < (N - 1) * K
    n_asked = len([one for one in server.answered() if len(one["texts"]) and one["seed"] is not None])
    (completed,) = sample_family(path, recipe)
    n_more = len([one for one in server.answered() if one["seed"] is not None]) - n_asked
    assert n_more <= (N - 1) * K - n_drawn + 4 + 8  # the missing answers, a preflight, and the rejected question
    assert len(rows_of(completed)) == (N - 1) * K
    full = {id_: one for id_, one in replayed_of(completed, 0.85).items() if id_ != "q3"}
    assert {id_: one for id_, one in found.items() if id_ != "q3"} == full


def replayed_of(store: Store, threshold: float) -> dict[str, Any]:
    grader, found = load_grader("short"), {}
    rows = rows_of(store)
    for question in store.questions:
        if question.id == "q3":
            continue
        classes = AnswerClasses()
        held = [classes.add(grader.grade(question, rows[question.id, j]["text"]).answer) for j in range(K)]
        rule = STOPPING_RULES["adaptive_consistency"]
        one = rule.decide(Answers(np.array([held]), np.ones(K)), threshold)
        found[question.id] = (one.reason, one.n_answers, classes.first[one.leader])
    return found


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "adaptiv_consistency"}, "`rule` to be one of two_stage, .* Did you mean .adaptive_consistency"),
        ({"stop": "two_stage"}, "a grid of temperatures for the rule two_stage, but got one"),
        ({"stop": "prior"}, "`priors` to be a file for the rule prior, but got None. Write it with"),
        ({"stop": "early_stopping", "priors": "x.parquet"}, "`priors` to be omitted for the rule early_stopping"),
        ({"stop": "adaptive_consistency", "threshold": 1.5}, "between 0.5 and 1 for the rule adaptive_consistency"),
        ({"stop": "adaptive_consistency", "threshold": float("nan")}, "but got nan"),
        ({"stop": "early_stopping", "threshold": 2.5}, "a whole number between 2 and 1000 .* but got 2.5"),
        ({"stop": "early_stopping", "grader": "number"}, "x"),
        ({"stop": "adaptive_consistency", "per_round": 0}, "`per_round` to be at least 1, but got 0"),
        ({"stop": "adaptive_consistency", "grader": "judge"}, "parses answers without a model, but got 'judge'"),
        ({"stop": "adaptive_consistency", "grader": "shrt"}, "`grader` to be one of short"),
        ({"threshold": 0.5}, "`stop` to be a rule"),
    ],
    ids=[
        "unknown_rule",
        "no_grid",
        "no_priors",
        "useless_priors",
        "threshold",
        "nan",
        "no_integer",
        "unsuitable",
        "rounds",
        "judge",
        "grader",
        "stop",
    ],
)
def test_options_are_checked_before_the_model_is_loaded(
    options: dict[str, Any], message: str, recipe: StoreRecipe, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        sample_family(str(tmp_path / "store"), replace(recipe, model="no model"), **options)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("columns", "n", "message"),
    [
        ({}, N - 1, "1 of them have none, such as 'q23'"),
        ({"question_id": [f"q{i // 2}" for i in range(2 * N)]}, 2 * N, "but some have more than one"),
        ({"confidence": np.full(N, 1.5)}, N, r"in \[0, 1\] .* but got \(1.5, 3.0, 1.5\) for 'q0'"),
        ({"confidence": np.full(N, np.nan)}, N, r"in \[0, 1\]"),
        ({"diversity": np.zeros(N)}, N, r"in \[0.01, 1000\]"),
        ({"concentration": ["high"] * N}, N, "reading .* failed"),
    ],
    ids=["missing", "twice", "above_one", "nan", "zero", "text"],
)
def test_priors_are_checked(columns: dict[str, Any], n: int, message: str, recipe: StoreRecipe, tmp_path: Path) -> None:
    file = write_priors(tmp_path / "priors.parquet", n, **columns)
    with pytest.raises(InputError, match=message):
        sample_family(str(tmp_path / "store"), recipe, stop="prior", priors=file)


def test_priors_for_another_prompt_are_refused(recipe: StoreRecipe, tmp_path: Path) -> None:
    file = tmp_path / "priors.parquet"
    prior.write_priors(file, [f"q{i}" for i in range(N)], np.full(N, 0.5), 2.0, 1.0, prompt="another")
    with pytest.raises(InputError, match="with this run's prompt, but they were computed with a different prompt"):
        sample_family(str(tmp_path / "store"), recipe, stop="prior", priors=str(file))


@pytest.mark.parametrize("content", [None, b"question_id,confidence\nq0,0.5\n"], ids=["no_file", "csv"])
def test_a_file_without_priors_is_refused(content: bytes | None, recipe: StoreRecipe, tmp_path: Path) -> None:
    path = tmp_path / "priors.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="`priors` to be a Parquet file with the columns question_id, confidence"):
        sample_family(str(tmp_path / "store"), recipe, stop="prior", priors=str(path))
