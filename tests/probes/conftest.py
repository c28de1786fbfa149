"""Fixtures for the tests of probes and baselines."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamodules import FeatureDataModule
from tests.helpers.planted import planted
from tests.helpers.synthetic import add_answer_signals, make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with every signal and answers of 0 to 6 tokens."""
    folder = tmp_path_factory.mktemp("stores") / "made"
    add_answer_signals(make_store(folder, *planted(), k=6, longest=6))
    return folder


@pytest.fixture(scope="module")
def data(store: Path) -> FeatureDataModule:
    """Return a datamodule with the hidden states of the store's questions."""
    data = FeatureDataModule(str(store))
    data.setup()
    return data
