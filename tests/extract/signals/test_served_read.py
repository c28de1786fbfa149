"""Tests of reading a served model's store with a local copy: checks of the copy, tokens, and missing values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import train
from datamodules import load_table
from extract import Decoding, InputError, PromptTemplate, Store, StoreRecipe, load_model, load_questions, read
from extract.commands import ask, make_store
from extract.likelihood.command import score_store
from extract.models.loading import model_identity
from extract.policy import Identity
from extract.questions import questions_hash
from extract.running.worker import Worker
from extract.samplers import SAMPLERS
from extract.sampling.server.policy import Server
from extract.sampling.server.sampler import ServerSampler
from extract.store.questions import Questions
from extract.store.shards import Block, Scope
from extract.store.verify import verify
from extract.viewing.inspection import describe
from extract.viewing.show import show
from probes import load_probe
from probes.comparison.out_of_fold import Comparison
from probes.comparison.record import comparison_page, comparison_record
from tests.helpers.planted import plant_grades
from tests.helpers.tiny import save_model, tiny_model, write_questions

MODEL = "served/tiny"


def served_recipe(folder: Path, n: int, k: int) -> StoreRecipe:
    questions = write_questions(folder / "questions.jsonl", n)
    return StoreRecipe(
        questions=str(questions),
        sampler="server",
        model=MODEL,
        k=k,
        block_size=16,
        policy=Decoding(max_new_tokens=8),
        server=Server(),
    )


def make(folder: Path, n: int, k: int, answer: Callable[[int, int], dict[str, Any]]) -> Store:
    """Make a store in the format of the server sampler.

    `answer` returns the server's reply for question i and sample j.
    """
    recipe = served_recipe(folder, n, k)
    questions = Questions.of(load_questions(recipe.questions), recipe.block_size)
    policy = ServerSampler(recipe.sampling_options(), recipe.policy, Worker()).policy(recipe.policy)
    version = SAMPLERS["server"].version
    identity = Identity(policy, questions_hash(questions), recipe.block_size, version)
    store = Store.create(folder / "store", identity, questions)
    untold = dict.fromkeys(("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens"))
    for part in store.samples.missing(k):
        rows = [
            {"question_id": id_, "sample": j, "text": "x", "finish_reason": "stop", **untold, **answer(int(id_[1:]), j)}
            for id_ in store.questions.ids(part)
            for j in range(part.start, part.stop)
        ]
        store.samples.write(part, rows)
    return store


def told(i: int, j: int) -> dict[str, Any]:
    """Return a complete server reply for the tiny model's byte tokens."""
    return {"text": "ab", "token_ids": [68, 69, 0], "logprobs": [-1.0, -0.5, -3.0], "n_tokens": 3}


@pytest.fixture
def prompt_lengths(tiny_folder: Path, tmp_path: Path) -> dict[str, int]:
    _, tokenizer = load_model(str(tiny_folder))
    questions = load_questions(str(write_questions(tmp_path / "q.jsonl", 20)))
    return {one.id: len(PromptTemplate().encode(tokenizer, one.prompt)) for one in questions}


def test_a_store_accepts_only_its_first_local_copy(tiny_folder: Path, tmp_path: Path) -> None:
    store = make(tmp_path, 20, 2, told)
    path = str(store.path)
    with pytest.raises(InputError, match=r"local copy of 'served/tiny'.* --model PATH_OR_HUB_ID`\.$"):
        read(path)
    read(path, model=str(tiny_folder))
    assert store.reader == store.model == vars(model_identity(*load_model(str(tiny_folder))))
    assert str(tiny_folder) not in (store.path / "reader.json").read_text()
    assert store.identity["policy"]["model"]["fingerprint"] is None
    other = save_model(tiny_model(seed=1), tmp_path / "other")
    for scope in get_args(Scope):
        with pytest.raises(InputError, match="differs in fingerprint"):
            read(path, ["tokens"], scope, model=str(other))
    with pytest.raises(InputError, match="path of the store's model 'tiny'"):
        read(path, ["tokens"], "sample")
    read(path, ["tokens"], "sample", model=str(tiny_folder))
    verify(path)


def test_a_reader_that_was_altered_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    store = make(tmp_path, 4, 2, told)
    read(str(store.path), model=str(tiny_folder))
    record = json.loads((store.path / "reader.json").read_text())
    altered: list[Any] = [
        {**record, "identity": "0" * 64},
        {**record, "model": {**record["model"], "fingerprint": None}},
        {**record, "further": 1},
        [],
    ]
    for changed in altered:
        (store.path / "reader.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=r"reader\.json"):
            verify(str(store.path))
        with pytest.raises(InputError, match=r"reader\.json"):
            read(str(store.path), ["tokens"], model=str(tiny_folder))


def test_a_model_whose_prompts_are_longer_than_the_server_counted_is_refused(
    tiny_folder: Path, tmp_path: Path, prompt_lengths: dict[str, int]
) -> None:
    def counting(further: Callable[[int], int]) -> Callable[[int, int], dict[str, Any]]:
        return lambda i, j: {**told(i, j), "prompt_tokens": prompt_lengths[f"q{i}"] + further(i)}

    def reads(name: str, further: Callable[[int], int], scope: Scope) -> Store:
        (tmp_path / name).mkdir()
        store = make(tmp_path / name, 20, 2, counting(further))
        read(str(store.path), ["tokens"], scope, model=str(tiny_folder))
        return store

    for scope in get_args(Scope):
        with pytest.raises(InputError, match=r"or has a different chat template"):
            reads(f"all-{scope}", lambda i: 1, scope)
        assert not (tmp_path / f"all-{scope}" / "store" / "reader.json").exists()
        with pytest.raises(InputError, match=r"'q3' to have "):  # in the second block
            reads(f"one-{scope}", lambda i: i == 3, scope)
        reads(f"none-{scope}", lambda i: 0, scope)


def test_tokens_come_from_the_server_or_the_tokenizer_and_are_missing_after_thinking(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (_, tokenizer) = load_model(str(tiny_folder))
    ids = tokenizer("ab", add_special_tokens=False)["input_ids"]
    kinds: list[dict[str, Any]] = [
        {"text": "ab", "token_ids": [*ids, 0]},  # with the end token
        {"text": "ab"},
        {"text": "ab", "finish_reason": "length"},
        {"text": "ab", "reasoning": "Let me think."},
        {"text": "ab", "reasoning": "c", "token_ids": tokenizer("c ab", add_special_tokens=False)["input_ids"]},
        {"text": ""},
    ]
    store = make(tmp_path, 3, len(kinds), lambda i, j: kinds[j])
    read(str(store.path), ["tokens"], "sample", model=str(tiny_folder))
    nll = store.signals.read_ragged("tokens", "3/nll")
    rows = [nll.values[nll.offsets[i] : nll.offsets[i + 1]] for i in range(len(kinds))]
    assert [len(row) for row in rows] == [2, 2, 2, 0, 4, 0]
    assert "read: 3 answers with reasoning have no values" in capsys.readouterr().err
    for row in rows[1:3]:
        torch.testing.assert_close(row, rows[0], atol=1e-5, rtol=0)


def test_values_that_a_server_did_not_report_are_nan(tmp_path: Path) -> None:
    store = make(tmp_path, 8, 2, lambda i, j: told(i, j) if j else {"text": "ab"})
    plant(store)
    table = load_table(store)
    assert np.isnan(table.answers.mean_nll[table.answers.sample == 0]).all()
    assert np.isnan(table.answers.n_tokens[table.answers.sample == 0]).all()
    assert np.isnan(table.prompt_tokens).all()
    # it is unknown whether the server's log-probabilities include the end token, so none is left out
    assert table.answers.mean_nll[table.answers.sample == 1] == pytest.approx(1.5)
    assert table.answers.max_nll[table.answers.sample == 1] == pytest.approx(3.0)
    assert (table.answers.n_tokens[table.answers.sample == 1] == 3).all()
    assert MODEL in describe(store, None, 3)


def plant(store: Store) -> None:
    """Write both right and wrong grades for most questions."""
    for part in store.samples.ranges():
        rows = store.samples.read(part).to_pylist()
        graded = [
            {"question_id": row["question_id"], "sample": row["sample"], "answer": row["text"]}
            | {"right": (int(row["question_id"][1:]) + row["sample"]) % 3 > 0}
            for row in rows
        ]
        store.grades.write("planted", part, graded, "a rule of the test")


@pytest.fixture(scope="module")
def readable(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    """Make a store of a served model without token ids, with signals that a local copy has read.

    The store has 100 questions with 4 answers each.
    """
    store = make(tmp_path_factory.mktemp("served"), 100, 4, lambda i, j: {"text": "abcd"[: 1 + (i + j) % 4]})
    read(str(store.path), model=str(tiny_folder))
    plant_grades(store, 0)
    return store


def test_a_probe_of_a_served_store_attaches_to_the_local_copy_and_baselines_without_values_are_named(
    readable: Store, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = train.run(
        [
            f"--data.store={readable.path}",
            f"--runs={tmp_path / 'runs'}",
            "--data.recipe=null",
            "--data.grader=planted",
            "--trainer.max_epochs=5",
            "--n_resamples=50",
        ]
    )
    model, tokenizer = load_model(str(tiny_folder))
    probe = load_probe(folder / "probe")
    assert probe.config["model"] == readable.model
    answers = probe.attach(model, tokenizer).generate(["Say 3"], max_new_tokens=2, do_sample=False)
    assert 0 <= float(answers.confidence[0]) <= 1
    report, words = json.loads((folder / "report.json").read_text()), (folder / "report.md").read_text()
    methods = report["splits"]["test"]["capability"]
    assert {"length", "mean_nll", "max_nll"}.isdisjoint(methods)
    assert {"constant", "base_rate", "consistency", "semantic_entropy"} <= set(methods)
    assert "100 lengths are unknown" in report["masked"]["length"]
    assert f"`{MODEL}` (known by name only) answered" in words


def test_a_comparison_has_no_cost_if_the_server_reported_none(readable: Store) -> None:
    record = comparison_record(Comparison(str(readable.path), probes=["logistic"], n_folds=3).run(), 3, 50, 0)
    assert record["methods"]["logistic"]["tokens_read"] is None
    assert record["methods"]["constant"]["tokens_read"] == 0
    json.dumps(record, allow_nan=False)
    assert "–, 0" in comparison_page(record, [])


@pytest.mark.slow
def test_asking_about_a_served_store_uses_the_local_copy(tmp_path: Path) -> None:
    store, copy = make(tmp_path, 6, 2, told), save_model(tiny_model(max_position_embeddings=1024), tmp_path / "copy")
    with pytest.raises(InputError, match="--model PATH_OR_HUB_ID"):
        ask(str(store.path), ["verbalized"])
    ask(str(store.path), ["verbalized"], model=str(copy), max_new_tokens=4)
    how = pq.read_schema(store.asked.file("verbalized", Block(0))).metadata[b"how"]
    assert json.loads(how)["model"] == store.model


def test_answers_without_ids_are_shown_by_the_tokenizer_of_the_local_copy(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make(tmp_path, 4, 2, lambda i, j: {"text": "ab"})
    read(str(store.path), ["tokens"], "sample", model=str(tiny_folder))
    out = show(str(store.path), out=str(tmp_path / "answers.html"), model=str(tiny_folder))
    assert MODEL in out.read_text()


def test_a_complete_store_is_unchanged_and_missing_signals_require_the_local_copy(
    tiny_folder: Path, tmp_path: Path
) -> None:
    store = make(tmp_path, 8, 2, told)
    plant(store)
    recipe = served_recipe(tmp_path, 8, 2)
    with pytest.raises(InputError, match="local copy"):
        make_store(str(store.path), recipe, "short", ["hidden"])
    read(str(store.path), model=str(tiny_folder))
    make_store(str(store.path), recipe, "short", ["hidden"])  # no request is sent, and no model is loaded
    with pytest.raises(InputError, match=r"model\.id"):
        make_store(str(store.path), replace(recipe, model="other"), "short", ["hidden"])


def test_likelihoods_of_a_served_model_need_a_local_copy(tiny_folder: Path, tmp_path: Path) -> None:
    store = make(tmp_path, 20, 2, told)
    with pytest.raises(InputError, match="local copy of 'served/tiny'"):
        score_store(str(store.path))
    score_store(str(store.path), model=str(tiny_folder))
    rows = store.asked.read("likelihood").to_pylist()
    assert [row["n_tokens"] for row in rows] == [[1]] * 20
    assert store.reader is not None
