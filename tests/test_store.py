"""The store: identity, adding without rewriting, damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from conftest import write_questions
from safetensors import safe_open

from datamodules import load_table
from extract import Decoding, InputError, PromptTemplate, Store, StoreRecipe, grade, read, sample
from extract.commands import make_store
from extract.policy import differences


@pytest.fixture
def questions(tmp_path: Path) -> str:
    return str(write_questions(tmp_path / "questions.jsonl", 40))


def recipe(questions: str, folder: Path, **changes: Any) -> StoreRecipe:
    return StoreRecipe(
        **{"questions": questions, "model": str(folder), "k": 3, "policy": Decoding(max_new_tokens=6), **changes}
    )


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "manifest.json"
    }


def test_more_samples_add_files_and_rewrite_none(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    path = tmp_path / "store"
    sample(str(path), recipe(questions, tiny_folder))
    grade(str(path))
    before = contents(path)
    sample(str(path), recipe(questions, tiny_folder, k=5))
    after = contents(path)
    assert {name: after[name] for name in before} == before
    added = set(after) - set(before)
    assert {name for name in added if name.endswith(".parquet")} == {
        "samples/00000.003-005.parquet",
        "samples/00001.003-005.parquet",
    }
    assert Store.open(path).samples().num_rows == 200
    grade(str(path))
    assert Store.open(path).grades("short").num_rows == 200


def test_five_samples_at_once_or_in_two_goes_are_the_same(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    sample(str(tmp_path / "a"), recipe(questions, tiny_folder, k=5))
    for k in (2, 5):
        sample(str(tmp_path / "b"), recipe(questions, tiny_folder, k=k))
    rows = [
        sorted((r["question_id"], r["sample"], r["text"]) for r in Store.open(tmp_path / name).samples().to_pylist())
        for name in "ab"
    ]
    assert rows[0] == rows[1]


def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    for name in ("whole", "broken"):
        sample(str(tmp_path / name), recipe(questions, tiny_folder))
        read(str(tmp_path / name), model=str(tiny_folder))
    broken = tmp_path / "broken"
    (broken / "samples/00001.000-003.json").unlink()
    (broken / "samples/00001.000-003.parquet").write_bytes(b"half")
    (broken / "signals/hidden/question/00000.safetensors").unlink()
    (broken / "questions.parquet").unlink()
    sample(str(broken), recipe(questions, tiny_folder))
    read(str(broken), model=str(tiny_folder))
    assert contents(broken) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"policy": Decoding(max_new_tokens=6, temperature=1.0)}, "policy.decoding.temperature: found 0.7, wanted 1.0"),
        (
            {"policy": Decoding(max_new_tokens=6, prompt=PromptTemplate("Q: {question}"))},
            "policy.decoding.prompt.template",
        ),
        ({"block_size": 8}, "block_size: found 32, wanted 8"),
        ({"n_questions": 20}, "questions: found"),
    ],
)
def test_another_identity_is_refused_with_both_values(
    tmp_path: Path, questions: str, tiny_folder: Path, changes: dict[str, Any], named: str
) -> None:
    sample(str(tmp_path / "store"), recipe(questions, tiny_folder))
    with pytest.raises(InputError, match=named):
        sample(str(tmp_path / "store"), recipe(questions, tiny_folder, **changes))


def test_another_model_of_the_same_name_is_refused(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    sample(str(tmp_path / "store"), recipe(questions, tiny_folder))
    other = tmp_path / "tiny"
    shutil.copytree(tiny_folder, other)
    from safetensors.torch import load_file, save_file

    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 1] += 0.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="model.fingerprint: found"):
        sample(str(tmp_path / "store"), recipe(questions, other, k=4))
    with pytest.raises(InputError, match="Expected the model of the store .* differs in fingerprint"):
        read(str(tmp_path / "store"), model=str(other))


def test_device_and_k_are_not_in_the_identity(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    first = sample(str(tmp_path / "a"), recipe(questions, tiny_folder, k=2))
    second = sample(str(tmp_path / "b"), recipe(questions, tiny_folder, k=3, device="cpu"))
    assert first.sha256 == second.sha256


def test_verify_names_what_is_damaged(tmp_path: Path, small_store: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    assert list(Store.open(store).problems()) == []
    file = store / "samples/00000.000-006.parquet"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    (store / "signals/hidden/question/00001.json").unlink()
    (store / "grades/planted/00000.000-006.parquet").write_bytes(b"")
    problems = "\n".join(Store.open(store).problems())
    assert "samples/00000.000-006.parquet: its content changed" in problems
    assert "signals/hidden/question/00001.safetensors: it is unfinished" in problems
    assert "grades/planted/00000.000-006.parquet: 0 bytes are there" in problems


def test_an_altered_identity_and_a_folder_that_is_no_store_are_refused(tmp_path: Path, small_store: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    record = json.loads((store / "identity.json").read_text())
    record["of"]["policy"]["decoding"]["temperature"] = 0.1
    (store / "identity.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="it was altered"):
        Store.open(store)
    with pytest.raises(InputError, match="has no identity.json. Make one with `python -m extract sample"):
        Store.open(tmp_path)


def test_the_tables_open_in_datasets_and_pandas(small_store: Path, tmp_path: Path) -> None:
    files = sorted(str(path) for path in (small_store / "samples").glob("*.parquet"))
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert len(loaded) == 720
    assert set(pd.read_parquet(files[0])["finish_reason"]) <= {"stop", "length"}


def test_one_layer_is_one_contiguous_tensor_with_rows_in_the_questions_order(small_store: Path) -> None:
    store = Store.open(small_store)
    assert store.signal_keys("hidden") == [f"{layer}/last_prompt" for layer in range(4)]
    assert store.read_signal("hidden", "2/last_prompt").shape == (120, 32)
    with safe_open(small_store / "signals/hidden/question/00001.safetensors", framework="pt") as file:
        block = file.get_tensor("3/last_prompt")
        stamp = {"identity": store.sha256, "signal": "hidden", "block": 1, "batch_tokens": 2048}
        assert json.loads(file.metadata()["store"]) == stamp
    assert torch.equal(store.read_signal("hidden", "3/last_prompt")[32:64], block)


def test_a_missing_signal_is_refused_with_the_command_that_makes_it(small_store: Path) -> None:
    with pytest.raises(InputError, match=r"`python -m extract read --store .* --signals \[entropy\]`"):
        Store.open(small_store).signal_keys("entropy")


def test_differences_name_both_values() -> None:
    assert list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})) == ["a.b: found 1, wanted 3"]


def test_another_dtype_is_refused_before_the_model_is_loaded(small_store: Path, tmp_path: Path) -> None:
    questions = str(write_questions(tmp_path / "questions.jsonl", 120))
    asked = StoreRecipe(questions=questions, model=str(tmp_path), dtype="bfloat16")
    with pytest.raises(InputError, match="policy.model.dtype: found 'float32', wanted 'bfloat16'"):
        asked.check_store(Store.open(small_store))


def test_a_lost_part_of_an_extended_store_is_drawn_again(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    path = tmp_path / "store"
    for k in (3, 6):
        sample(str(path), recipe(questions, tiny_folder, k=k))
    grade(str(path))
    before = contents(path)
    for ending in ("parquet", "json"):
        (path / f"samples/00000.000-003.{ending}").unlink()
    assert any("00000.000-003.parquet: missing" in problem for problem in Store.open(path).problems())
    with pytest.raises(InputError, match="some samples are gone"):
        load_table(Store.open(path))
    sample(str(path), recipe(questions, tiny_folder, k=6))
    assert contents(path) == before


def test_another_model_folder_is_refused_for_a_whole_store(tmp_path: Path, questions: str, tiny_folder: Path) -> None:
    path = tmp_path / "store"
    make_store(str(path), recipe(questions, tiny_folder), "short", ["hidden"])
    other = Path(shutil.copytree(tiny_folder, tmp_path / "other"))
    with pytest.raises(InputError, match="policy.model.id: found 'tiny', wanted 'other'"):
        make_store(str(path), recipe(questions, other), "short", ["hidden"])


def test_a_grader_or_signal_that_is_not_there_is_refused_before_anything_is_sampled(
    tmp_path: Path, questions: str, tiny_folder: Path
) -> None:
    for grader, signal in (("shrt", "hidden"), ("short", "hiden")):
        with pytest.raises(InputError, match="Did you mean"):
            make_store(str(tmp_path / "store"), recipe(questions, tiny_folder), grader, [signal])
    assert not (tmp_path / "store").exists()


def test_a_store_whose_model_was_a_folder_asks_for_its_place(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(small_store, tmp_path / "store")
    shutil.rmtree(store / "signals")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="a folder called 'tiny': a store keeps no paths. Give --model PATH"):
        read(str(store))
