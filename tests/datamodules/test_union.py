"""Tests of the datamodule with the questions of several stores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule
from datamodules.union import UnionDataModule
from extract import InputError
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
    with pytest.raises(InputError, match="Expected a target that is computed from grades or answers, but got 'seu'"):
        UnionDataModule([data])
