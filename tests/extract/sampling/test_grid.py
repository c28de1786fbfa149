"""Tests of temperature grids: one store for each temperature, prompts processed once, and commands on all stores."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from extract import Decoding, InputError, Store, StoreRecipe, read, sample
from extract.__main__ import COMMANDS
from extract.commands import sample_family
from extract.policy import grid
from extract.running.cli import run
from extract.running.worker import Worker
from extract.sampling.local.batching import rows_of
from extract.sampling.local.draws import draw
from extract.sampling.local.token_sampler import TokenSampler
from extract.sampling.server.policy import Server
from extract.sampling.temperature_grid import member_name
from extract.signals.registry import SIGNALS
from extract.store.verify import find_problems
from tests.helpers.forking import Forked
from tests.helpers.serving_stub import MODEL, stub
from tests.helpers.tiny import tiny_model, write_questions

pytestmark = pytest.mark.slow

PROMPTS = ["Say", "Say a longer thing", "What?", "An A", "Something of another length altogether"]
EXAMPLES = "Examples that every prompt begins with, as a set of few-shot prompts has. "
GRID = (0.0, 0.5, 1.0)
IDS = [str(i) for i in range(len(PROMPTS))]
#: SHA-256 of the draws of sampler version local-2 in `test_the_draws_at_one_temperature_never_change`.
HASH_BEFORE_GRIDS = "039e18a2e53fecc98617647a5590ccc3e7059107401cd117f21a13a6fd4f1da7"


def encoded(tokenizer: Any, before: str = "") -> list[list[int]]:
    return [tokenizer(before + text)["input_ids"] for text in PROMPTS]


def prompt_tokens_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of prompt tokens in all passes over more than one token, without padding."""
    read: list[int] = []
    forward = model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[1] > 1:
            read.append(int(kwargs["attention_mask"][:, -kwargs["input_ids"].shape[1] :].sum()))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting)
    return read


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Callable[..., StoreRecipe]:
    questions = str(write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", 40))

    def make(temperature: float | str = "0:1:0.5", **changes: Any) -> StoreRecipe:
        policy = Decoding(temperature=temperature, max_new_tokens=6)
        return StoreRecipe(**{"questions": questions, "model": str(tiny_folder), "k": 3, "policy": policy, **changes})

    return make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, recipe: Callable[..., StoreRecipe]) -> Path:
    """Make the stores of a grid. Tests must not change them."""
    path = tmp_path_factory.mktemp("made") / "family"
    sample_family(str(path), recipe())
    return path


@pytest.fixture
def family(tmp_path: Path, made: Path) -> Path:
    """Copy the stores of a grid."""
    return Path(shutil.copytree(made, tmp_path / "family"))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def answers(store: Path | Store) -> list[tuple[Any, ...]]:
    kept = store if isinstance(store, Store) else Store.open(store)
    return [
        (row["question_id"], row["sample"], row["token_ids"], row["text"]) for row in kept.samples.read().to_pylist()
    ]


# Drawing


def test_each_row_of_logits_is_sampled_at_its_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 300, generator=generator) * 3
    uniforms = torch.rand(100, generator=generator, dtype=torch.float64)
    temperatures = torch.tensor([0.0, 0.3, 1.0, 1.7, 0.0]).repeat(20)
    together = draw(logits, uniforms, temperatures, top_p=0.9, top_k=50)
    for i, temperature in enumerate(temperatures.tolist()):
        alone = draw(logits[i : i + 1], uniforms[i : i + 1], temperature, top_p=0.9, top_k=50)
        assert together.tokens[i] == alone.tokens[0]
        torch.testing.assert_close(together.logprobs[i], alone.logprobs[0])


@pytest.mark.parametrize("before", ["", EXAMPLES], ids=["alone", "after a shared prefix"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_a_grid_draws_the_same_answers_as_each_temperature_alone(family: str, before: str, tokenizer: Any) -> None:
    model, samples = tiny_model(family, num_hidden_layers=2), range(2, 4)
    prompts = encoded(tokenizer, before)
    alone = {
        temperature: TokenSampler(model, tokenizer, Decoding(temperature, max_new_tokens=12)).sample(
            IDS, prompts, samples
        )
        for temperature in GRID
    }
    for max_rows in (320, 4):
        together = TokenSampler(model, tokenizer, Decoding("0:1:0.5", max_new_tokens=12), max_rows)
        drawn = together.sample_grid(IDS, prompts, samples, GRID)
        assert list(drawn) == list(GRID)
        for temperature in GRID:
            for one, other in zip(drawn[temperature], alone[temperature], strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
                assert replace(one, logprobs=[]) == replace(other, logprobs=[])


@pytest.mark.parametrize("max_rows", [320, 4, 1])
def test_each_prompt_is_read_once_for_all_temperatures(
    max_rows: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = tiny_model(), encoded(tokenizer)
    read = prompt_tokens_read(model, monkeypatch)
    sampler = TokenSampler(model, tokenizer, Decoding("0:1:0.25", max_new_tokens=2), max_rows)
    sampler.sample_grid(IDS, prompts, range(2), sampler.decoding.temperatures)
    assert sum(read) == sum(map(len, prompts))


def test_the_common_prefix_is_read_once_for_all_temperatures(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = tiny_model(), encoded(tokenizer, EXAMPLES)
    read = prompt_tokens_read(model, monkeypatch)
    sampler = TokenSampler(model, tokenizer, Decoding("0:1:0.25", max_new_tokens=3), max_rows=4)
    sampler.sample_grid(IDS, prompts, range(4), sampler.decoding.temperatures)
    assert sum(read) == 64 + sum(len(prompt) - 64 for prompt in prompts)


def test_greedy_answers_of_a_grid_are_drawn_once(tokenizer: Any) -> None:
    assert len(rows_of([0.0, 0.5], range(3))) == 4
    assert len(rows_of([0.0], range(3))) == 3  # as they always were
    seen: list[tuple[int, int]] = []
    sampler = TokenSampler(tiny_model(), tokenizer, Decoding("0:1:0.5", max_new_tokens=5))
    drawn = sampler.sample_grid(IDS, encoded(tokenizer), range(3), GRID, lambda a, t: seen.append((a, t)))
    assert sum(n for n, _ in seen) == sum(map(len, drawn.values())) == 3 * 3 * len(IDS)
    greedy = drawn[0.0]
    assert [answer.sample for answer in greedy[:3]] == [0, 1, 2]
    assert greedy[0].token_ids == greedy[1].token_ids == greedy[2].token_ids


def test_the_draws_at_one_temperature_never_change(tokenizer: Any) -> None:
    """Compare the hash with that of the draws before grids were introduced."""
    drawn, model = [], tiny_model()
    for temperature, changes in ((0, {}), (0.7, {}), (1.0, {"top_p": 0.8, "top_k": 20}), (1.3, {"stop": ("e",)})):
        for max_rows in (320, 9):
            decoding = Decoding(temperature=temperature, max_new_tokens=20, **changes)
            sampler = TokenSampler(model, tokenizer, decoding, max_rows)
            samples = sampler.sample(IDS, encoded(tokenizer, EXAMPLES), range(2, 7))
            drawn += [[one.question_id, one.sample, one.token_ids, one.finish_reason] for one in samples]
    assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest() == HASH_BEFORE_GRIDS


# Stores


def test_names_of_stores_sort_by_temperature_and_do_not_depend_on_the_grid() -> None:
    temperatures = grid("0:2:0.05")
    names = [member_name(one) for one in temperatures]
    assert names == sorted(names)
    assert len(set(names)) == 41
    assert {member_name(one) for one in grid("0:2:0.5")} < set(names)


def test_each_store_of_a_grid_equals_a_store_made_alone(
    tmp_path: Path, family: Path, recipe: Callable[..., StoreRecipe]
) -> None:
    stores = sample_family(str(family), recipe())
    assert [store.path.name for store in stores] == ["t0.0", "t0.5", "t1.0"]
    for store, temperature in zip(stores, GRID, strict=True):
        alone = sample(str(tmp_path / f"alone-{temperature}"), recipe(temperature))
        assert store.identity == alone.identity
        assert answers(store) == answers(alone)
        assert list(find_problems(store)) == []
        sample(str(store.path), recipe(temperature))  # nothing is missing


def test_a_grid_of_one_temperature_has_the_bytes_of_one_store(
    tmp_path: Path, recipe: Callable[..., StoreRecipe]
) -> None:
    sample_family(str(tmp_path / "family"), recipe("0.5:0.5:0.1"))
    sample(str(tmp_path / "alone"), recipe(0.5))
    assert contents(tmp_path / "family/t0.5") == contents(tmp_path / "alone")


def test_a_wider_grid_and_more_samples_add_files_and_rewrite_none(
    family: Path, recipe: Callable[..., StoreRecipe]
) -> None:
    before = {name: data for name, data in contents(family).items() if not name.endswith("manifest.json")}
    sample_family(str(family), recipe("0:1:0.25", k=5))
    after = contents(family)
    assert {name: after[name] for name in before} == before
    for name in ("t0.0", "t0.25", "t0.5", "t0.75", "t1.0"):
        assert Store.open(family / name).samples.read().num_rows == 200
    assert (family / "t0.25/samples/00000.000-005.parquet").is_file()
    assert (family / "t0.5/samples/00000.003-005.parquet").is_file()


def test_missing_samples_of_one_store_are_drawn_and_the_other_stores_are_unchanged(
    family: Path, recipe: Callable[..., StoreRecipe]
) -> None:
    before, expected = contents(family), answers(family / "t0.5")
    for ending in ("parquet", "json"):
        (family / f"t0.5/samples/00001.000-003.{ending}").unlink()
    sample_family(str(family), recipe())
    assert answers(family / "t0.5") == expected
    after = contents(family)
    assert {name for name in before if after[name] != before[name]} <= {
        f"t0.5/{name}" for name in ("samples/00001.000-003.parquet", "samples/00001.000-003.json", "manifest.json")
    }


def test_settings_that_differ_from_the_grid_are_refused_before_the_model_is_loaded(
    tmp_path: Path, family: Path, recipe: Callable[..., StoreRecipe]
) -> None:
    with pytest.raises(InputError, match="max_new_tokens: found 6, expected 7"):
        sample_family(str(family), recipe(policy=Decoding("0:1:0.5", max_new_tokens=7), model="nowhere"))
    with pytest.raises(
        InputError, match="contains one store per temperature: .*t0.0, .*t1.0. Set --store to one of these"
    ):
        sample(str(family), recipe(0.5))
    with pytest.raises(InputError, match="is itself a store"):
        sample_family(str(family / "t0.5"), recipe())
    with pytest.raises(InputError, match="Use `sample_family`"):
        sample(str(tmp_path / "other"), recipe())
    with pytest.raises(InputError, match="folder of one store, but .* contains several stores: .*t0.0, .*t0.5, .*t1.0"):
        Store.open(family)


def test_two_workers_write_a_grid_with_the_same_bytes_as_one(
    tmp_path: Path, made: Path, recipe: Callable[..., StoreRecipe]
) -> None:
    for rank in range(2):
        sample_family(str(tmp_path / "two"), recipe(), Worker(rank, 2))
    assert contents(tmp_path / "two") == contents(made)


def test_a_grid_of_a_served_model_is_sampled_store_by_store(tmp_path: Path) -> None:
    questions = str(write_questions(tmp_path / "questions.jsonl", 6))
    with stub() as server:
        recipe = StoreRecipe(
            questions=questions,
            sampler="server",
            model=MODEL,
            k=2,
            block_size=2,
            policy=Decoding("0.5:1:0.5", max_new_tokens=8),
            server=Server(url=server.url, max_concurrency=4),
        )
        for rank in range(2):
            sample_family(str(tmp_path / "two"), recipe, Worker(rank, 2))
        sample_family(str(tmp_path / "one"), recipe)
    for name, temperature in (("t0.5", 0.5), ("t1.0", 1.0)):
        kept = Store.open(tmp_path / "two" / name)
        assert kept.identity["policy"]["decoding"]["temperature"] == temperature
        assert kept.samples.read().num_rows == 12
        assert kept.samples.read() == Store.open(tmp_path / "one" / name).samples.read()


# Commands


def test_commands_on_a_grid_process_each_store(
    tmp_path: Path, recipe: Callable[..., StoreRecipe], tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = str(tmp_path / "family")
    questions = recipe().questions
    options = ["--questions", questions, "--model", str(tiny_folder), "--k", "3", "--policy.max_new_tokens", "6"]
    assert run(COMMANDS, "extract", ["sample", *options, "--policy.temperature", "0:1:0.5", "--store", family]) == 0
    for command in (["grade"], ["inspect"], ["verify"]):
        assert run(COMMANDS, "extract", [*command, "--store", family]) == 0
        seen = capsys.readouterr()
        for name in ("t0.0", "t0.5", "t1.0"):
            assert f"== {family}/{name}\n" in seen.err
    (tmp_path / "family/t0.5/samples/00000.000-003.json").unlink()
    assert run(COMMANDS, "extract", ["verify", "--store", family]) == 2
    seen = capsys.readouterr()
    assert f"{family}/t1.0: " in seen.out  # a failure in one store does not stop the others
    assert seen.err.splitlines()[-1].startswith("error: Expected the command to succeed for all 3 stores")
    assert "but it failed for t0.5. See the errors above." in seen.err


def test_a_grid_is_not_parsed_as_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that 0:1:0.5 is not parsed as sixty and a half seconds, as in YAML 1.1."""
    seen = []

    def command(store: str, recipe: StoreRecipe) -> None:
        """Record the options."""
        seen.append(recipe.policy.temperature)

    config = tmp_path / "config.yaml"
    config.write_text("policy:\n  temperature: 0:1:0.5\n")
    for options in (["--policy.temperature", "0:1:0.5"], ["--config", str(config)], ["--policy.temperature", "1:2:1"]):
        assert run({"command": command}, "extract", ["command", *options, "--store", "s"]) == 0
    for number in ("0.5", "1", "1e-3"):
        run({"command": command}, "extract", ["command", "--policy.temperature", number, "--store", "s"])
    assert seen == ["0:1:0.5", "0:1:0.5", "1:2:1", 0.5, 1.0, 0.001]
    assert run({"command": command}, "extract", ["command", "--policy.temperature", "warm", "--store", "s"]) == 2
    assert "to be a number or a grid START:STOP:STEP" in capsys.readouterr().err


def test_signals_of_questions_are_read_once_for_all_temperatures(
    tmp_path: Path,
    family: Path,
    recipe: Callable[..., StoreRecipe],
    tiny_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = tmp_path / "alone"
    sample(str(alone), recipe(0.5))
    for one in (family / "t0.0", alone):
        read(str(one), signals=["hidden", "tokens"], layers=[1, 3], model=str(tiny_folder))
    capsys.readouterr()
    read(str(family / "t0.5"), signals=["hidden", "tokens"], model="nowhere")  # it isn't loaded
    assert "copied hidden for 2 blocks of questions from" in capsys.readouterr().err
    assert contents(family / "t0.5/signals") == contents(alone / "signals")
    assert list(find_problems(Store.open(family / "t0.5"))) == []
    with pytest.raises(InputError, match="nowhere"):  # other layers are not there
        read(str(family / "t1.0"), layers=[0], model="nowhere")
    sample(str(family / "other"), recipe(policy=Decoding(1.0, max_new_tokens=6, seed=1)))
    with pytest.raises(InputError, match="nowhere"):  # another seed is another policy
        read(str(family / "other"), model="nowhere")


def test_signals_of_another_version_are_not_copied(
    family: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(str(family / "t0.0"), signals=["tokens"], model=str(tiny_folder))
    monkeypatch.setitem(SIGNALS, "tokens", SIGNALS["tokens"]._replace(version=2))
    with pytest.raises(InputError, match="nowhere"):
        read(str(family / "t0.5"), signals=["tokens"], model="nowhere")


@pytest.mark.processes
def test_a_killed_run_of_a_grid_continues(
    tmp_path: Path, recipe: Callable[..., StoreRecipe], tiny_folder: Path
) -> None:
    family, questions = tmp_path / "family", recipe().questions
    options = ["--questions", questions, "--model", str(tiny_folder), "--k", "3", "--policy.max_new_tokens", "6"]
    options += ["--n_questions", "8", "--block_size", "1"]
    grid_options = ["--policy.temperature", "0:1:0.5", "--store", str(family)]
    child = Forked(["sample", *options, *grid_options])
    try:
        while not list(family.glob("t0.5/samples/*.json")):
            assert child.poll() is None
            time.sleep(0.005)
    finally:
        child.kill()
        child.communicate()
    assert len(list(family.glob("*/samples/*.json"))) < 3 * 8
    few: dict[str, Any] = {"n_questions": 8, "block_size": 1}
    sample_family(str(family), recipe(**few))
    for name, temperature in (("t0.0", 0.0), ("t0.5", 0.5), ("t1.0", 1.0)):
        kept = Store.open(family / name)
        assert list(find_problems(kept)) == []
        assert answers(kept) == answers(sample(str(tmp_path / name), recipe(temperature, **few)))
