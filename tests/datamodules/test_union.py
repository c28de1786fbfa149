"""Tests of the datamodule with the questions of several stores."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule
from datamodules.union import UnionDataModule, broader_rows
from extract import InputError, Store
from extract.questions.rewording import REWORDINGS, reworded
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("stores")
    for seed, name in enumerate(("first", "second")):
        make_store(folder / name, *planted(n=50 + 10 * seed, seed=seed), name=name)
    return [str(folder / name) for name in ("first", "second")]


def loaded(store: str, **options: str) -> FeatureDataModule:
    data = FeatureDataModule(store, **options)
    data.load()
    return data


def test_a_union_has_the_rows_of_its_parts(stores: list[str]) -> None:
    parts = [loaded(store) for store in stores]
    union = UnionDataModule(parts)
    every = union.every()
    assert len(every.row) == 110
    assert set(union.table.groups) == {"first", "second"}
    for part, start in zip(parts, (0, 50), strict=True):
        own, rows = part.every(), slice(start, start + len(part.table.ids))
        assert torch.equal(every.features[rows], own.features)
        assert torch.equal(every.right[rows], own.right)
        assert union.table.ids[rows] == part.table.ids
        np.testing.assert_array_equal(union.table.right[rows], part.table.right)


def test_a_union_can_be_split_by_question(stores: list[str]) -> None:
    union = UnionDataModule([loaded(store) for store in stores])
    union.use_split({"train": [0, 1, 60], "val": [2, 70], "test": [100]})
    assert union.batch("train").question.tolist() == [0, 1, 60]
    assert torch.equal(union.batch("test").target, torch.tensor([union.table.accuracy[100]]).float())


def test_targets_of_one_store_are_refused(stores: list[str]) -> None:
    data = FeatureDataModule(stores[0], target="seu")
    with pytest.raises(
        InputError,
        match="Expected `target` to be computed from grades or answers if there are several stores, but got 'seu'",
    ):
        UnionDataModule([data])


def split(store: str, **options: object) -> FeatureDataModule:
    data = FeatureDataModule(store, **options)
    data.setup()
    return data


@pytest.mark.slow
def test_broader_rows_leave_out_the_test_questions_and_their_rewordings(stores: list[str], tmp_path: Path) -> None:
    again, rewordings = str(tmp_path / "again"), str(tmp_path / "rewordings")
    make_store(tmp_path / "again", *planted(n=50, seed=7), name="first")
    own = list(Store.open(stores[0]).questions)
    make_store(tmp_path / "rewordings", *planted(n=100, seed=8), questions=reworded(own, n=2))
    data = split(stores[0], broader=[again, rewordings, stores[1]])
    batch, groups, ids = broader_rows(data)
    n_left = 50 - len(data.question_rows["test"])
    assert len(batch.row) == len(groups) == len(ids) == n_left + 2 * n_left + 60
    assert groups[:n_left] == [f"{again}/{data.table.groups[row]}" for row in sorted(rows_but_test(data))]
    assert {group.rpartition("/")[2] for group in groups[n_left : 3 * n_left]} <= set(REWORDINGS)
    assert set(ids[n_left : 3 * n_left]) == set(ids[:n_left])
    part = loaded(again)
    assert torch.equal(batch.features[:n_left], part.every().features[sorted(rows_but_test(data))])


def rows_but_test(data: FeatureDataModule) -> list[int]:
    return torch.cat([data.question_rows["train"], data.question_rows["val"]]).tolist()


def test_broader_stores_of_another_model_are_refused(stores: list[str], tmp_path: Path) -> None:
    identity = tmp_path / "other"
    make_store(identity, *planted(n=50, seed=7), name="other")
    data = split(stores[0], broader=[str(identity)])
    data.store.model["name"] = "another"  # as if the store were of another model
    with pytest.raises(
        InputError, match="Expected the stores in `broader` to come from the same model, but .* differ in"
    ):
        broader_rows(data)


def test_broader_stores_with_other_layers_are_refused(stores: list[str], tmp_path: Path) -> None:
    make_store(tmp_path / "other", *planted(n=50, layers=4, seed=7), name="other")
    with pytest.raises(InputError, match="Expected the stores in `broader` to have the same layers"):
        broader_rows(split(stores[0], broader=[str(tmp_path / "other")]))


def test_the_original_store_can_be_broader_for_its_rewordings(stores: list[str], tmp_path: Path) -> None:
    own = list(Store.open(stores[0]).questions)
    twice = reworded(reworded(own, n=1), n=1)
    assert [question.meta["reworded"] for question in twice] == [question.id for question in own]
    make_store(tmp_path / "twice", *planted(n=50, seed=8), questions=twice)
    data = split(str(tmp_path / "twice"), broader=[stores[0]])
    _, _, ids = broader_rows(data)
    assert not set(ids) & {own[row].id for row in data.question_rows["test"].tolist()}
    assert len(ids) == 50 - len(data.question_rows["test"])


def test_broader_stores_without_other_questions_are_refused(stores: list[str], tmp_path: Path) -> None:
    data = split(stores[0], broader=[str(tmp_path / "rewordings")])
    own = list(Store.open(stores[0]).questions)
    held_out = reworded([own[row] for row in data.question_rows["test"].tolist()], n=1)
    make_store(tmp_path / "rewordings", *planted(n=len(held_out), seed=8), questions=held_out)
    with pytest.raises(InputError, match="every store in `broader` to have questions other than the test questions"):
        broader_rows(data)


def test_broader_stores_use_the_grader_of_the_probe_if_they_have_it(stores: list[str], tmp_path: Path) -> None:
    store = make_store(tmp_path / "two", *planted(n=50, seed=7), name="two")
    grader = store.grades.choose(None)
    shutil.copytree(tmp_path / "two" / "grades" / grader, tmp_path / "two" / "grades" / "another")
    assert len(Store.open(tmp_path / "two").grades.names()) == 2
    batch, _, _ = broader_rows(split(stores[0], broader=[str(tmp_path / "two")]))
    assert len(batch.row) == 50
