"""Tests of `python -m extract likelihood`, and of its results as a baseline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from datamodules import FeatureDataModule
from extract import Decoding, InputError, Store, StoreRecipe, read, sample
from extract.__main__ import COMMANDS
from extract.commands import ask
from extract.likelihood.command import likelihood, score_store
from extract.likelihood.options import right
from extract.prompts import PromptTemplate
from extract.running.cli import run
from extract.running.worker import Worker
from extract.sampling.imported.command import import_log
from extract.store.shards import Block
from probes.baselines.registry import available, confidence, cost_of
from tests.helpers.continuations import by_hand
from tests.helpers.planted import plant_grades

OPTIONS = ("ash", "birch wood", "cedar", "é")


@pytest.fixture(scope="module")
def make_choices(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Callable[..., Path]:
    """Return a function that makes a store of 40 questions with four options each, in two blocks."""

    def make(chat: bool = False, k: int = 0, **fields: Any) -> Path:
        folder = tmp_path_factory.mktemp("choices")
        rows = [
            {
                "id": f"q{i}",
                "text": f"Which tree is number {i}?",
                "kind": "choice",
                "choices": OPTIONS,
                "references": ["ABCD"[i % 4], OPTIONS[i % 4]],
                **fields,
            }
            for i in range(40)
        ]
        (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
        prompt = PromptTemplate("{question}\nAnswer:", chat=chat)
        policy = Decoding(max_new_tokens=4, prompt=prompt)
        source = str(folder / "questions.jsonl")
        sample(str(folder / "store"), StoreRecipe(source, model=str(tiny_folder), k=k, block_size=20, policy=policy))
        return folder / "store"

    return make


@pytest.fixture(scope="module")
def choices(make_choices: Callable[..., Path]) -> Path:
    return make_choices()


@pytest.fixture
def store(choices: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(choices, tmp_path / "store"))


@pytest.mark.parametrize("form", ["letters", "texts"])
def test_the_table_has_the_log_probability_of_every_option(
    store: str, tiny_folder: Path, model: Any, tokenizer: Any, form: Any
) -> None:
    score_store(store, form, str(tiny_folder))
    rows = Store.open(store).asked.read("likelihood").to_pylist()
    texts = ["A", "B", "C", "D"] if form == "letters" else list(OPTIONS)
    questions = Store.open(store).questions
    assert [row["question_id"] for row in rows] == [question.id for question in questions]
    for question, row in [(questions[0], rows[0]), (questions[33], rows[33])]:
        assert row["continuations"] == texts
        assert row["target"] == int(question.id[1:]) % 4
        assert row["n_bytes"] == [len(text.encode()) for text in texts]
        assert row["n_tokens"] == [1 + len(text.encode()) for text in texts]  # a token per byte, and the space
        prompt = tokenizer(f"{question.prompt}\nAnswer:")["input_ids"]
        for context, column in ((prompt, "logprobs"), ([0], "unconditional")):
            continuations = [tokenizer(f" {text}")["input_ids"] for text in texts]
            assert row[column] == pytest.approx(by_hand(model, context, continuations), abs=1e-4)
        p = np.exp(row["logprobs"])
        assert row["mass"] == pytest.approx(p.sum())
        assert row["value"] == pytest.approx(p.max() / p.sum())
        assert row["text"] == texts[int(p.argmax())]


def test_the_command_prints_the_accuracy_under_each_normalisation(
    store: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["likelihood", "--store", store, "--continuations", "texts", "--model", str(tiny_folder)]
    assert run(COMMANDS, "python -m extract", arguments) == 0
    printed = capsys.readouterr().out
    rows = Store.open(store).asked.read("likelihood").to_pylist()
    assert f"is right with probability {right(rows, 'sum').mean():.3f} [" in printed
    assert "40 questions, chance 0.250" in printed
    for name, label in (("byte", "acc_bytes"), ("character", "acc_norm"), ("pmi", "acc_mutual_info")):
        (line,) = [line for line in printed.splitlines() if label in line]
        assert f"{right(rows, name).mean():.3f} [" in line


def test_a_complete_store_is_unchanged_and_another_form_is_refused(store: str, tiny_folder: Path) -> None:
    score_store(store, model=str(tiny_folder))
    before = {path: path.read_bytes() for path in Path(store, "asked").rglob("*.parquet")}
    score_store(store, model=str(tiny_folder))
    assert {path: path.read_bytes() for path in Path(store, "asked").rglob("*.parquet")} == before
    with pytest.raises(InputError, match="differs in continuations"):
        score_store(store, "texts", str(tiny_folder))


def test_two_workers_and_the_command_ask_write_the_same_bytes(choices: Path, tmp_path: Path, tiny_folder: Path) -> None:
    stores = [shutil.copytree(choices, tmp_path / name) for name in "abc"]
    score_store(str(stores[0]), model=str(tiny_folder))
    for rank in range(2):
        score_store(str(stores[1]), model=str(tiny_folder), worker=Worker(rank, 2))
    ask(str(stores[2]), ["likelihood"], model=str(tiny_folder))
    files = [[path.read_bytes() for path in sorted((store / "asked").rglob("*.parquet"))] for store in stores]
    assert files[0] == files[1] == files[2]
    assert len(files[0]) == 2


def test_the_likelihood_is_a_baseline_in_comparisons(make_choices: Callable[..., Path], tiny_folder: Path) -> None:
    store = make_choices(k=4)
    read(str(store), model=str(tiny_folder))
    plant_grades(Store.open(store), 0)
    score_store(str(store), model=str(tiny_folder))
    data = FeatureDataModule(str(store))
    data.load()
    assert all(available(name, data) for name in ("likelihood", "likelihood_isotonic"))
    rows = Store.open(store).asked.read("likelihood").to_pylist()
    assert confidence("likelihood", data)(data.question_rows).tolist() == [row["value"] for row in rows]
    tokens, replies = cost_of("likelihood", data)
    assert tokens.tolist() == [row["prompt_tokens"] for row in rows]
    assert not replies.any()


def test_a_question_without_options_has_no_accuracy(
    make_choices: Callable[..., Path], tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_choices(chat=True, kind="short", choices=[], references=["ash", "birch"])
    score_store(str(store), model=str(tiny_folder))
    row = Store.open(store).asked.read_shard("likelihood", Block(1)).to_pylist()[0]
    assert (row["continuations"], row["target"], row["value"]) == (["ash"], 0, None)
    assert "40 questions scored. The accuracy is unknown." in capsys.readouterr().out


def test_an_empty_option_is_refused_with_its_question(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "questions.csv").write_text("text,a,b,right\nWhich tree?,ash,,A\n")
    fields = {"text": "text", "choices": ["a", "b"], "references": "right"}
    recipe = StoreRecipe(str(tmp_path / "questions.csv"), fields=fields, model=str(tiny_folder), k=0)
    sample(str(tmp_path / "store"), recipe)
    with pytest.raises(InputError, match=r"question '\w+' has an empty continuation"):
        score_store(str(tmp_path / "store"), "texts", str(tiny_folder))
    score_store(str(tmp_path / "store"), "letters", str(tiny_folder))


def test_a_damaged_table_is_written_again(store: str, tiny_folder: Path) -> None:
    opened = score_store(store, model=str(tiny_folder))
    file = opened.asked.file("likelihood", Block(0))
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    score_store(store, model=str(tiny_folder))
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of `store`, `prompt` and `texts`, but got none"),
        ({"prompt": "a", "texts": "b.txt"}, "but got prompt and texts"),
        ({"store": "nowhere"}, "nowhere"),
        ({"texts": "nowhere.txt"}, "does not exist"),
        ({"store": "nowhere", "top_k": 3}, "`top_k` to be passed only with --prompt, but it was passed with --store"),
        ({"prompt": "a", "window": 8}, "`window` to be passed only with --texts, but it was passed with --prompt"),
        (
            {"texts": "nowhere.txt", "continuations": "letters"},
            "`continuations` to be passed only with --store, but it was passed with --texts",
        ),
    ],
)
def test_impossible_requests_are_refused(options: dict[str, Any], message: str, tiny_folder: Path) -> None:
    with pytest.raises(InputError, match=message):
        likelihood(**options, model=str(tiny_folder))


@pytest.mark.parametrize("target", ["", "/dev/null/folder/values.parquet"])
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path: Path, target: str) -> None:
    (tmp_path / "texts.txt").write_text("one two")
    with pytest.raises(InputError, match="`out` to be a writable file"):
        likelihood(texts=str(tmp_path / "texts.txt"), out=target or str(tmp_path), model="/nowhere")


def test_the_folder_of_the_output_file_is_created(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "texts.txt").write_text("one two")
    out = tmp_path / "missing" / "values.parquet"
    likelihood(texts=str(tmp_path / "texts.txt"), out=str(out), model=str(tiny_folder))
    assert parquet.read_table(out).num_rows == 1


def import_questions(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "log.jsonl").write_text("\n".join(json.dumps({"answer": "a", **row}) for row in rows))
    import_log(str(folder / "imported"), str(folder / "log.jsonl"), "jsonl")
    return str(folder / "imported")


def test_questions_with_neither_options_nor_references_are_refused(tmp_path: Path) -> None:
    store = import_questions(tmp_path, {"id": "x", "text": "Which tree?"})
    with pytest.raises(InputError, match="question 'x' has neither"):
        score_store(store, model="/nowhere")


@pytest.mark.parametrize("form", ["letters", "texts"])
def test_options_without_a_reference_have_no_target(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str], form: Any
) -> None:
    store = import_questions(tmp_path, {"text": "Which tree?", "choices": ["ash", "birch"], "kind": "choice"})
    score_store(store, form, str(tiny_folder))
    (row,) = Store.open(store).asked.read("likelihood").to_pylist()
    assert (len(row["logprobs"]), row["target"]) == (2, None)
    printed = capsys.readouterr().out
    assert "The accuracy is unknown. 1 question has only one continuation or no known right answer.\n" in printed


def test_a_question_that_is_too_long_is_named(make_choices: Callable[..., Path], tiny_folder: Path) -> None:
    store = make_choices(text="tree " * 200)
    with pytest.raises(InputError, match=r"at most 512 tokens.*question 'q\d+' with continuation 0 has"):
        score_store(str(store), model=str(tiny_folder))


def test_a_store_whose_model_was_a_folder_requires_the_option_model(store: str) -> None:
    with pytest.raises(InputError, match="Stores do not record paths. Pass --model PATH"):
        likelihood(store)


def test_next_tokens_and_perplexity_are_printed(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    likelihood(prompt="Lim", top_k=3, model=str(tiny_folder))
    assert "The 3 most likely next tokens have a total probability of" in capsys.readouterr().out
    (tmp_path / "texts.jsonl").write_text('{"text": "one two"}\n{"text": "three four five"}')
    out = tmp_path / "values.parquet"
    likelihood(texts=str(tmp_path / "texts.jsonl"), out=str(out), model=str(tiny_folder))
    printed = capsys.readouterr().out
    assert "per token over 2 texts (95 % intervals over texts)" in printed
    assert out.is_file()
    (tmp_path / "text.txt").write_text("one two")
    likelihood(texts=str(tmp_path / "text.txt"), model=str(tiny_folder))
    assert "over 1 text (no interval, because there is only one text)" in capsys.readouterr().out
