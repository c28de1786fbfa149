"""Tests of splits, counts and the datamodule."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule, load_table
from datamodules.splits import split_questions
from datamodules.table import modal_share
from extract import InputError, Store
from extract.store.shards import Block

IDS = [f"q{i}" for i in range(200)]
GROUPS = ["abc"[i % 3] if i < 150 else "d" for i in range(200)]


def test_splits_have_the_requested_sizes_in_every_group() -> None:
    parts = split_questions(IDS, GROUPS, (0.6, 0.2, 0.2), seed=1)
    assert Counter(parts) == {0: 120, 1: 40, 2: 40}
    for group in "abcd":
        inside = Counter(part for part, g in zip(parts, GROUPS, strict=True) if g == group)
        assert abs(inside[2] - 10) <= 1
        assert abs(inside[1] - 10) <= 1


def test_the_split_depends_on_seed_and_ids_and_not_on_the_order() -> None:
    parts = dict(zip(IDS, split_questions(IDS, GROUPS, (0.5, 0.5)), strict=True))
    backwards = dict(zip(IDS[::-1], split_questions(IDS[::-1], GROUPS[::-1], (0.5, 0.5)), strict=True))
    assert parts == backwards
    assert split_questions(IDS, GROUPS, (0.5, 0.5), seed=1) != list(parts.values())


def test_fractions_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(InputError, match="sum to 1"):
        split_questions(IDS, GROUPS, (0.5, 0.2))
    with pytest.raises(InputError, match="sum to 1"):
        split_questions(IDS, GROUPS, (1.3, -0.3))


def test_unknown_grades_are_left_out_and_counted(tmp_path: Path, small_store: Path) -> None:
    shutil.copytree(small_store, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    for part in store.samples.ranges():
        rows = [
            {
                "question_id": row["question_id"],
                "sample": row["sample"],
                "right": [True, None, False][row["sample"] % 3],
                "answer": "",
            }
            for row in store.samples.read(part).to_pylist()
        ]
        store.grades.write("partial", part, rows, "by index")
    table = load_table(store, "partial")
    assert set(table.right) == {2}
    assert set(table.known) == {4}
    assert set(table.unknown) == {2}
    assert set(table.accuracy) == {0.5}
    assert set(table.held_right) == {1}  # odd j: 1 unknown, 3 right, 5 wrong
    assert set(table.held_known) == {2}
    with pytest.raises(InputError, match="one of partial, planted.*got None"):
        load_table(store)


def test_the_counts_of_the_table_are_those_of_the_grades(small_store: Path) -> None:
    store = Store.open(small_store)
    table, grades = load_table(store), store.grades.read("planted").to_pandas()
    by_question = grades.groupby("question_id")["right"].sum()
    assert [by_question[i] for i in table.ids] == table.right.tolist()
    assert table.known.tolist() == [6] * 120
    odd = grades[grades["sample"] % 2 == 1].groupby("question_id")["right"].sum()
    assert [odd[i] for i in table.ids] == table.held_right.tolist()


def test_empty_answers_are_never_equal_in_the_modal_share() -> None:
    assert modal_share(["a", "a", "b", "c"]) == 0.5
    assert modal_share(["", "", ""]) == pytest.approx(1 / 3)
    assert np.isnan(modal_share([]))


def test_batches_contain_each_question_once(small_store: Path) -> None:
    data = FeatureDataModule(str(small_store), batch_size=32)
    data.setup()
    loader = data.train_dataloader()
    rows = torch.cat([batch.row for batch in loader])
    assert sorted(rows.tolist()) == sorted(data.split_rows["train"].tolist())
    assert len(list(loader)) == len(loader) == 3
    every = torch.cat(list(data.split_rows.values()))
    assert sorted(every.tolist()) == list(range(120))


def test_only_the_requested_layers_are_read(small_store: Path) -> None:
    data = FeatureDataModule(str(small_store), layers=[1, 3])
    data.setup()
    assert data.feature_names == ["1/last_prompt", "3/last_prompt"]
    assert data.batch("val").features.shape == (24, 2, 32)
    store = Store.open(small_store)
    assert torch.equal(
        data.batch("val").features[:, 1], store.signals.read("hidden", "3/last_prompt")[data.split_rows["val"]]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": ["last_answer"]}, "`positions` to be one of last_prompt"),
        ({"layers": [9]}, r"`layers` to be one of 0, 1, 2, 3 for the .* signal .* but got '9'"),
        ({"grader": "judge"}, "`grader` to be one of planted"),
        ({"signal": "entropy"}, "to contain the 'entropy' signal"),
        ({"test_fraction": 0.9}, "sum to 1"),
    ],
)
def test_data_that_the_store_lacks_are_refused(small_store: Path, options: dict[str, object], message: str) -> None:
    data = FeatureDataModule(str(small_store), **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        data.setup()


def test_a_split_with_one_class_is_refused(tmp_path: Path, small_store: Path) -> None:
    shutil.copytree(small_store, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    for part in store.samples.ranges():
        rows = [
            {"question_id": r["question_id"], "sample": r["sample"], "right": False, "answer": ""}
            for r in store.samples.read(part).to_pylist()
        ]
        store.grades.write("harsh", part, rows, "all wrong")
    with pytest.raises(
        InputError,
        match="right and wrong answers to the train and val questions, but all 576 answers are wrong",
    ):
        FeatureDataModule(str(tmp_path / "store"), grader="harsh").setup()


def test_a_question_with_a_missing_feature_is_left_out_and_counted(tmp_path: Path, small_store: Path) -> None:
    shutil.copytree(small_store, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    tensors = {key: store.signals.read("hidden", key)[:32].clone() for key in store.signals.keys("hidden")}
    tensors["2/last_prompt"][5] = torch.nan
    store.signals.write("hidden", Block(0), tensors)
    data = FeatureDataModule(str(tmp_path / "store"))
    data.setup()
    assert data.n_unusable == 1
    assert 5 not in torch.cat(list(data.split_rows.values())).tolist()


def test_a_validation_split_of_fewer_than_ten_questions_is_refused(small_store: Path) -> None:
    data = FeatureDataModule(store=str(small_store), val_fraction=0.05)
    with pytest.raises(
        InputError, match=r"at least 10 questions.* but it has only 6 .of 120 .* a `val_fraction` above 0.05"
    ):
        data.setup()


def test_the_table_and_the_datamodule_can_use_a_subset_of_the_grades(small_store: Path) -> None:
    data = FeatureDataModule(str(small_store))
    data.setup()
    features, table = data.batch("train").features, data.table
    last = table.answers.sample == 5
    subset = table.with_grades(last)
    assert set(subset.known) == set(subset.held_known) == {1}
    assert set(subset.unknown) == {5}
    assert set(subset.held_unknown) == {2}
    assert subset.right.tolist() == table.answers.right[last].tolist()
    data.use_grades(subset)
    train = data.batch("train")
    assert torch.equal(train.features, features)
    assert set(train.known.tolist()) == {1}
    assert train.right.tolist() == train.target.tolist() == subset.right[train.row].tolist()
    data.use_split({"train": range(60), "test": range(60, 120)})
    assert data.batch("test").target.tolist() == subset.right[60:].tolist()
    with pytest.raises(InputError, match="two known grades"):
        data.load(subset)
