"""Tests of opening a store or a temperature grid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from applications.stores import open_stores
from extract import InputError, Store
from tests.helpers.altered_stores import identity
from tests.helpers.synthetic import make_store

MakeMember = Callable[..., Store]


@pytest.fixture
def make_member(tmp_path: Path) -> MakeMember:
    def make(name: str, temperature: float, n: int = 3, **options: Any) -> Store:
        return make_store(
            tmp_path / name, np.zeros((n, 1, 2), np.float32), np.full(n, 0.5), k=2, temperature=temperature, **options
        )

    return make


def test_a_grid_is_opened_in_the_order_of_its_temperatures(tmp_path: Path, make_member: MakeMember) -> None:
    for temperature in (10.0, 0.0, 2.0):
        make_member(f"t{temperature}", temperature)
    found = open_stores(str(tmp_path))
    assert list(found) == [0.0, 2.0, 10.0]
    assert found[2.0].path == tmp_path / "t2.0"


def test_one_store_is_a_grid_of_one_temperature(tmp_path: Path, make_member: MakeMember) -> None:
    make_member("store", 0.7)
    assert list(open_stores(str(tmp_path / "store"))) == [0.7]


def test_stores_with_other_questions_or_the_same_temperature_are_refused(
    tmp_path: Path, make_member: MakeMember
) -> None:
    make_member("a", 0.5)
    make_member("b", 1.0, n=4)
    with pytest.raises(InputError, match=r"differ only in temperature, but '.*b' differs .* in questions: found"):
        open_stores(str(tmp_path))
    identity(lambda of: of["policy"]["decoding"].update(temperature=0.5))(tmp_path / "b")
    make_member("a2", 0.5)
    with pytest.raises(InputError, match="'.*a' and '.*' both have temperature 0.5"):
        open_stores(str(tmp_path))


def test_a_temperature_without_samples_is_refused(tmp_path: Path, make_member: MakeMember) -> None:
    make_member("t0.5", 0.5)
    for file in (make_member("t1.0", 1.0).path / "samples").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"t1.0' \(temperature 1\) to contain samples, but it has none"):
        open_stores(str(tmp_path))
