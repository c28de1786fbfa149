"""Tests of the store: identity, adding files without rewriting others, and damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from datamodules import load_table
from extract import Decoding, InputError, PromptTemplate, Store, StoreRecipe, grade, read, sample
from extract.commands import make_store
from extract.hashing import differences
from extract.store import parquet
from extract.store.parquet import write_table
from extract.store.shards import Block, Scope, Shard
from extract.store.verify import find_problems, write_manifest
from tests.helpers import altered_stores
from tests.helpers.killing import changed, finished
from tests.helpers.tiny import write_questions


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", 12))


def recipe(questions: str, folder: Path, **changes: Any) -> StoreRecipe:
    options = {"k": 3, "block_size": 8, "policy": Decoding(max_new_tokens=6), **changes}
    return StoreRecipe(**{"questions": questions, "model": str(folder), **options})


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, questions: str, tiny_folder: Path) -> Path:
    """Make a store of 2 blocks with 3 samples per question. Tests must not change it."""
    return sample(str(tmp_path_factory.mktemp("sampled") / "store"), recipe(questions, tiny_folder)).path


@pytest.fixture
def path(sampled: Path, tmp_path: Path) -> Path:
    """Copy the sampled store."""
    return Path(shutil.copytree(sampled, tmp_path / "store"))


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "manifest.json"
    }


def test_more_samples_add_files_and_rewrite_none(path: Path, questions: str, tiny_folder: Path) -> None:
    grade(str(path))
    before, stamps = contents(path), finished(path)
    sample(str(path), recipe(questions, tiny_folder, k=5))
    after = contents(path)
    assert {name: after[name] for name in before} == before
    assert changed(stamps, finished(path)) == 0
    added = set(after) - set(before)
    assert {name for name in added if name.endswith(".parquet")} == {
        "samples/00000.003-005.parquet",
        "samples/00001.003-005.parquet",
    }
    assert Store.open(path).samples.read().num_rows == 60
    grade(str(path))
    assert Store.open(path).grades.read("short").num_rows == 60


def test_a_store_keeps_the_positions_of_its_shuffled_questions_in_the_source(
    tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    store = sample(str(tmp_path / "store"), recipe(questions, tiny_folder, n_questions=10))
    ids = [json.loads(line)["id"] for line in Path(questions).read_text().splitlines()]
    rows = [question.row for question in store.questions]
    assert rows == [ids.index(question.id) for question in store.questions]
    assert rows != sorted(rows)


def test_a_store_without_positions_has_the_same_identity(tmp_path: Path) -> None:
    path = altered_stores.make_store(tmp_path / "store")
    table = pq.read_table(path / "questions.parquet")
    write_table(path / "questions.parquet", table.drop_columns(["row"]))
    assert {question.row for question in Store.open(path).questions} == {None}
    write_table(path / "questions.parquet", table.set_column(9, "row", pa.array(range(20), pa.int32())))
    assert [question.row for question in Store.open(path).questions] == list(range(20))


def test_five_samples_in_one_or_two_runs_are_the_same(
    path: Path, tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    stores = [sample(str(folder), recipe(questions, tiny_folder, k=5)) for folder in (path, tmp_path / "one run")]
    rows = [
        sorted((r["question_id"], r["sample"], r["text"]) for r in store.samples.read().to_pylist()) for store in stores
    ]
    assert len(rows[0]) == 60
    assert rows[0] == rows[1]


def test_an_interrupted_run_continues_and_gives_the_same_bytes(
    path: Path, tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    read(str(path), model=str(tiny_folder))
    broken = Path(shutil.copytree(path, tmp_path / "broken"))
    (broken / "samples/00001.000-003.json").unlink()
    (broken / "samples/00001.000-003.parquet").write_bytes(b"half")
    (broken / "signals/hidden/question/00000.safetensors").unlink()
    (broken / "questions.parquet").unlink()
    sample(str(broken), recipe(questions, tiny_folder))
    read(str(broken), model=str(tiny_folder))
    assert contents(broken) == contents(path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"policy": Decoding(max_new_tokens=6, temperature=1.0)},
            "policy.decoding.temperature: found 0.7, expected 1.0",
        ),
        (
            {"policy": Decoding(max_new_tokens=6, prompt=PromptTemplate("Q: {question}"))},
            "policy.decoding.prompt.template",
        ),
        ({"block_size": 4}, "block_size: found 8, expected 4"),
        ({"n_questions": 6}, "questions: found"),
    ],
)
def test_another_identity_is_refused_with_both_values(
    path: Path, questions: str, tiny_folder: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        sample(str(path), recipe(questions, tiny_folder, **changes))


def test_another_model_of_the_same_name_is_refused(
    path: Path, tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    other = tmp_path / "tiny"
    shutil.copytree(tiny_folder, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 1] += 0.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="model.fingerprint: found"):
        sample(str(path), recipe(questions, other, k=4))
    with pytest.raises(InputError, match="Expected the model of the store .* differs in fingerprint"):
        read(str(path), model=str(other))


def test_device_and_k_are_not_in_the_identity(sampled: Path, tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    other = sample(str(tmp_path / "store"), recipe(questions, tiny_folder, k=2, device="cpu"))
    assert other.sha256 == Store.open(sampled).sha256


def test_verify_names_damaged_files(tmp_path: Path, small_store: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    assert list(find_problems(Store.open(store))) == []
    file = store / "samples/00000.000-006.parquet"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    (store / "signals/hidden/question/00001.json").unlink()
    (store / "grades/planted/00000.000-006.parquet").write_bytes(b"")
    problems = "\n".join(find_problems(Store.open(store)))
    assert "samples/00000.000-006.parquet: its content has changed" in problems
    assert "signals/hidden/question/00001.safetensors: it is unfinished" in problems
    assert "grades/planted/00000.000-006.parquet: it has 0 bytes instead of" in problems


def test_an_altered_identity_and_a_folder_that_is_not_a_store_are_refused(tmp_path: Path, small_store: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    record = json.loads((store / "identity.json").read_text())
    record["of"]["policy"]["decoding"]["temperature"] = 0.1
    (store / "identity.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="file was altered"):
        Store.open(store)
    with pytest.raises(InputError, match="has no identity.json. Make a store with `python -m extract sample"):
        Store.open(tmp_path / "none")


def test_the_tables_open_in_datasets_and_pandas(small_store: Path, tmp_path: Path) -> None:
    files = sorted(str(path) for path in (small_store / "samples").glob("*.parquet"))
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert len(loaded) == 720
    assert set(pd.read_parquet(files[0])["finish_reason"]) <= {"stop", "length"}


def test_one_layer_is_one_contiguous_tensor_with_rows_in_the_questions_order(small_store: Path) -> None:
    store = Store.open(small_store)
    assert store.signals.keys("hidden") == [f"{layer}/last_prompt" for layer in range(4)]
    assert store.signals.read("hidden", "2/last_prompt").shape == (120, 32)
    with safe_open(small_store / "signals/hidden/question/00001.safetensors", framework="pt") as file:
        block = file.get_tensor("3/last_prompt")
        stamp = {"identity": store.sha256, "signal": "hidden", "block": 1, "batch_tokens": 2048}
        assert json.loads(file.metadata()["store"]) == stamp
    assert torch.equal(store.signals.read("hidden", "3/last_prompt")[32:64], block)


def test_a_missing_signal_is_refused_with_the_command_that_reads_it(small_store: Path) -> None:
    with pytest.raises(InputError, match=r"`python -m extract read --store .* --signals '\[entropy\]'`"):
        Store.open(small_store).signals.keys("entropy")


def test_differences_name_both_values() -> None:
    assert list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})) == ["a.b: found 1, expected 3"]


def test_another_dtype_is_refused_before_the_model_is_loaded(small_store: Path, tmp_path: Path) -> None:
    questions = str(write_questions(tmp_path / "questions.jsonl", 120))
    asked = StoreRecipe(questions=questions, model=str(tmp_path), dtype="bfloat16")
    with pytest.raises(InputError, match="policy.model.dtype: found 'float32', expected 'bfloat16'"):
        asked.check_store(Store.open(small_store))


def test_a_lost_shard_of_an_extended_store_is_drawn_again(path: Path, questions: str, tiny_folder: Path) -> None:
    sample(str(path), recipe(questions, tiny_folder, k=6))
    grade(str(path))
    before = contents(path)
    for ending in ("parquet", "json"):
        (path / f"samples/00000.000-003.{ending}").unlink()
    assert any("00000.000-003.parquet: it is missing" in problem for problem in find_problems(Store.open(path)))
    with pytest.raises(InputError, match="some samples are missing"):
        load_table(Store.open(path))
    sample(str(path), recipe(questions, tiny_folder, k=6))
    assert contents(path) == before


def test_another_model_folder_is_refused_for_a_complete_store(
    path: Path, tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    make_store(str(path), recipe(questions, tiny_folder), "short", ["hidden"])
    other = Path(shutil.copytree(tiny_folder, tmp_path / "other"))
    with pytest.raises(InputError, match="policy.model.id: found 'tiny', expected 'other'"):
        make_store(str(path), recipe(questions, other), "short", ["hidden"])


def test_an_unknown_grader_or_signal_is_refused_before_sampling(
    tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    for grader, signal in (("shrt", "hidden"), ("short", "hiden")):
        with pytest.raises(InputError, match="Did you mean"):
            make_store(str(tmp_path / "store"), recipe(questions, tiny_folder), grader, [signal])
    assert not (tmp_path / "store").exists()


def test_a_relative_path_opens_the_same_store(small_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = Store.open(small_store)
    monkeypatch.chdir(small_store.parent)
    store = Store.open(small_store.name)
    assert store.grades.names() == absolute.grades.names() == ["planted"]
    assert store.grades.read("planted") == absolute.grades.read("planted")
    assert store.signals.keys("hidden") == absolute.signals.keys("hidden")


def test_a_store_whose_model_was_a_folder_requires_its_path(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(small_store, tmp_path / "store")
    shutil.rmtree(store / "signals")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="model 'tiny', but got None. Stores do not record paths. Pass --model PATH"):
        read(str(store))


# Model-based baselines and signals of answers, in a store of 20 questions in 3 blocks of two parts, without a model

HOW = {"model": "tiny", "prompts": ["Are you sure?"], "options": {"attempts": 3}}


def asked_rows(store: Store, place: Shard) -> list[dict[str, Any]]:
    costs = {"prompt_tokens": 9, "completion_tokens": 2}
    if isinstance(place, Block):
        reply = {"text": "0.5", "mass": None, "attempts": 1, **costs}
        return [
            {"question_id": id_, "value": None if i % 2 else 0.5, **reply}
            for i, id_ in enumerate(store.questions.ids(place))
        ]
    samples = range(place.start, place.stop)
    return [
        {"question_id": id_, "sample": j, "value": 0.25, **costs} for id_ in store.questions.ids(place) for j in samples
    ]


def ask(store: Store, scope: Scope, how: dict[str, Any] = HOW) -> None:
    for place in store.shards(scope):
        store.asked.write("sure", place, asked_rows(store, place), how)


def embed(store: Store, scope: Scope, how: dict[str, Any] = HOW) -> None:
    for i, place in enumerate(store.shards(scope)):
        vectors = torch.arange(store.questions.n_rows(place) * 2).reshape(-1, 2).float() + 100 * i
        store.signals.write("text_embedding", place, {"0/text": vectors}, settings=how)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return altered_stores.make_store(tmp_path_factory.mktemp("made") / "store")


@pytest.fixture
def made(made_once: Path, tmp_path: Path) -> Store:
    return Store.open(shutil.copytree(made_once, tmp_path / "store"))


@pytest.mark.slow
@pytest.mark.parametrize(("scope", "n_rows"), [("question", 20), ("sample", 80)])
def test_asked_tables_are_added_and_read_in_order(made: Store, scope: Scope, n_rows: int) -> None:
    before = contents(made.path)
    assert made.asked.names(scope) == []
    assert made.asked.missing("sure", scope) == made.shards(scope)
    ask(made, scope)
    table = Store.open(made.path).asked.read("sure", scope)
    ids = [question.id for question in made.questions] if scope == "question" else made.samples.read()["question_id"]
    assert table["question_id"].to_pylist() == list(map(str, ids))
    assert table.num_rows == n_rows
    assert table["value"].null_count == (10 if scope == "question" else 0)
    assert made.asked.settings("sure", scope) == HOW
    assert made.asked.names(scope) == ["sure"]
    assert made.asked.names("sample" if scope == "question" else "question") == []
    assert {name: content for name, content in contents(made.path).items() if name in before} == before
    assert list(find_problems(Store.open(made.path))) == []
    assert len(write_manifest(made)["files"]) == 1 + 6 + 6 + 3 + len(made.shards(scope))


@pytest.mark.parametrize("scope", ["question", "sample"])
def test_the_error_for_other_settings_names_the_difference(made: Store, scope: Scope) -> None:
    ask(made, scope)
    other = {**HOW, "options": {"attempts": 5}}
    for store in (made, Store.open(made.path)):
        with pytest.raises(
            InputError,
            match="to have the same settings as the files in .*/asked/sure.* options.attempts: found 3, expected 5",
        ):
            ask(store, scope, other)
        with pytest.raises(InputError, match="delete that folder to start over"):
            store.asked.check_settings("sure", scope, other)
    shutil.rmtree(made.path / "asked")
    ask(Store.open(made.path), scope, other)


def test_an_incomplete_baseline_is_refused(made: Store) -> None:
    with pytest.raises(
        InputError,
        match=r"3 of 3 blocks lack it\. Run `python -m extract ask.*The store has these baselines for some or all questions: none",
    ):
        made.asked.read("sure")
    ask(made, "sample")
    made.asked.file("sure", made.samples.ranges()[1]).with_suffix(".json").unlink()
    with pytest.raises(InputError, match="1 of 6 sample ranges lack it"):
        made.asked.read("sure", "sample")


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["question", "sample"])
def test_a_table_of_another_shard_or_with_other_settings_is_refused_and_verify_names_it(
    made: Store, scope: Scope
) -> None:
    ask(made, scope)
    first, second = (made.asked.file("sure", shard) for shard in made.shards(scope)[:2])
    for ending in (".parquet", ".json"):
        shutil.copy(first.with_suffix(ending), second.with_suffix(ending))
    with pytest.raises(InputError, match="it does not contain each row of"):
        Store.open(made.path).asked.read("sure", scope)
    assert second.name in "\n".join(find_problems(Store.open(made.path)))
    rows = asked_rows(made, made.shards(scope)[1])
    shutil.copytree(made.path, made.path.parent / "other")
    shutil.rmtree(made.path.parent / "other/asked")
    other = Store.open(made.path.parent / "other")
    other.asked.write("sure", made.shards(scope)[1], rows, {**HOW, "model": "large"})
    for ending in (".parquet", ".json"):
        shutil.copy(other.asked.file("sure", made.shards(scope)[1]).with_suffix(ending), second.with_suffix(ending))
    with pytest.raises(InputError, match=r"settings differ from those of another table \(model"):
        Store.open(made.path).asked.read("sure", scope)


def test_verify_names_asked_files_of_another_shard_or_of_none(made: Store) -> None:
    ask(made, "question")
    ask(made, "sample")
    folder = made.path / "asked/sure"
    for to in ("00002", "00007", "00000.000-003", "foo"):
        for ending in ("parquet", "json"):
            shutil.copy(folder / f"00000.{ending}", folder / f"{to}.{ending}")
    names = [problem.split(":")[0] for problem in find_problems(Store.open(made.path))]
    assert names == [f"asked/sure/{name}.parquet" for name in ("00000.000-003", "00002", "00007", "foo")]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["question", "sample"])
def test_embeddings_of_two_encoders_are_not_mixed(made: Store, scope: Scope) -> None:
    embed(made, scope)
    keys = Store.open(made.path).signals.keys("text_embedding", scope)
    assert keys == ["0/text"]
    whole = Store.open(made.path).signals.read("text_embedding", "0/text", scope)
    parts = [load_file(made.signals.file("text_embedding", shard))["0/text"] for shard in made.shards(scope)]
    assert torch.equal(whole, torch.cat(parts))
    other = {**HOW, "model": "another"}
    with pytest.raises(InputError, match="settings as the files in .* differs in model: found 'tiny', expected"):
        embed(Store.open(made.path), scope, other)
    first = made.shards(scope)[0]
    file = made.signals.file("text_embedding", first)
    stash = {path: path.read_bytes() for path in file.parent.iterdir()}
    shutil.rmtree(file.parent)
    embed(made, scope, other)
    for path in (file, file.with_suffix(".json")):
        path.write_bytes(stash[path])
    with pytest.raises(InputError, match="its settings differ from those in 00000"):
        Store.open(made.path).signals.read("text_embedding", "0/text", scope)


@pytest.mark.slow
def test_a_signal_of_deleted_answers_is_named(made: Store) -> None:
    for samples in made.samples.ranges():
        made.signals.write("mean", samples, {"0/answer": torch.zeros(made.questions.n_rows(samples), 2)})
    made.samples.file(made.samples.ranges()[3]).unlink()
    assert "signals/mean/sample/00001.002-004.safetensors: the store contains no samples for this file" in list(
        find_problems(Store.open(made.path))
    )


def test_a_store_that_no_longer_exists_is_not_created_again(
    tmp_path: Path, questions: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its file system were unmounted after the first of two blocks."""
    path, write = tmp_path / "store", parquet.write_file

    def vanish(file: Path, content: bytes) -> None:
        write(file, content)
        if file.parent.name == "samples":
            path.rename(tmp_path / "away")

    monkeypatch.setattr(parquet, "write_file", vanish)
    with pytest.raises(InputError, match="no longer exists. Check that its file system is mounted. Then run the same"):
        sample(str(path), recipe(questions, tiny_folder, block_size=10))
    assert not list(path.rglob("*.parquet"))
    monkeypatch.undo()
    shutil.rmtree(path, ignore_errors=True)
    (tmp_path / "away").rename(path)
    assert sample(str(path), recipe(questions, tiny_folder, block_size=10)).samples.read().num_rows == 36
