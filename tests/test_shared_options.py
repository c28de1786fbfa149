"""Tests of the options that all commands with a result folder share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from applications.__main__ import COMMANDS as APPLICATIONS
from extract.errors import InputError
from probes.__main__ import COMMANDS as PROBES
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("stores") / "made"
    return str(make_store(folder, *planted(), k=2).path)


COMMANDS = [
    command
    for command in (*PROBES.values(), *APPLICATIONS.values())
    if "n_resamples" in inspect.signature(command).parameters
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_resamples": 99}, "`n_resamples` to be at least 100"),
        ({"seed": -1}, "`seed` to be between 0 and 4294967295, but got -1"),
        ({"seed": 10**20}, "`seed` to be between 0 and 4294967295"),
        ({"grader": "nobody"}, "nobody"),
    ],
)
def test_impossible_options_are_refused_and_leave_no_folder(
    command: Callable[..., Path], store: str, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    parameters = inspect.signature(command).parameters
    if not options.keys() <= parameters.keys():
        pytest.skip("the command has no such option")
    given = {"store": store, "stores": [store], "tested": store, "references": [store]}
    stores = {name: value for name, value in given.items() if name in parameters}
    with pytest.raises(InputError, match=message):
        command(**stores, out=str(tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())
