"""Shared fixtures: a tiny random model, its tokenizer, and a small store, without a network or downloads.

Modules that import torch are imported in the fixtures, because the controller of pytest-xdist runs no tests.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("the same in every run", derandomize=True, deadline=None)
settings.load_profile("the same in every run")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["LANGUAGE"] = "C"  # otherwise, argparse searches for translations of every message
os.environ["WANDB_MODE"] = "disabled"  # W&B takes a tenth of the time of a short run
os.environ["WANDB_SILENT"] = "true"
os.environ["WANDB_X_SAVE_REQUIREMENTS"] = "false"  # reading the metadata of every installed package takes time
os.fsync = lambda fd: None  # files of tests need not survive a power failure


#: Fixtures that run a model.
MODELS = {"model", "tiny_folder", "make_small_store", "small_store"}


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run a model as slow.

    Tests of SmolLM2-135M-Instruct come first, because they take longest. Those that share processes come next, so that
    a single process of pytest-xdist runs all of them.
    """
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("real_model", "processes")])
    for item in items:
        fixtures = getattr(item, "fixturenames", [])  # docstring examples have none
        if item.get_closest_marker("real_model") or not MODELS.isdisjoint(fixtures):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exclude all modules from later garbage collections, which otherwise take 4 % of the time of a run."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Use the value of a case as its id where pytest would use a number."""
    if isinstance(val, str | bytes | int | float | complex | None) or hasattr(val, "__name__"):
        return None  # pytest uses these values itself
    return shorten(f"{argname}={val!r}".encode("ascii", "backslashreplace").decode(), 60, placeholder="...")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tests.helpers.tiny import byte_tokenizer

    return byte_tokenizer()


@pytest.fixture(scope="session")
def model() -> Any:
    from tests.helpers.tiny import tiny_model

    return tiny_model()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    """Save the tiny model in a folder that `load_model` can read."""
    from tests.helpers.tiny import save_model

    return save_model(model, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def make_small_store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Callable[..., Path]:
    """Return a function that makes stores in which the hidden state determines how often an answer is right."""

    def make(n: int = 120, k: int = 6, seed: int = 0) -> Path:
        from extract import StoreRecipe, read, sample
        from tests.helpers.planted import plant_grades
        from tests.helpers.tiny import write_questions

        folder = tmp_path_factory.mktemp("stores")
        questions = write_questions(folder / "questions.jsonl", n)
        recipe = StoreRecipe(questions=str(questions), model=str(tiny_folder), k=k)
        store = sample(str(folder / "store"), recipe)
        read(str(folder / "store"), model=str(tiny_folder))
        plant_grades(store, seed)
        return folder / "store"

    return make


@pytest.fixture(scope="session")
def small_store(make_small_store: Callable[..., Path]) -> Path:
    """Make a store of 120 questions with 6 answers each. Tests must not change it."""
    return make_small_store()


_drawn: set[str] = set()  # names of pictures


@pytest.fixture(autouse=True)
def drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each picture once per process, with few pixels and without a layout, and save empty pictures after that.

    Pictures would take a fifth of the time of a run. Tests of pictures override this fixture.
    """
    from matplotlib.figure import Figure

    savefig = Figure.savefig

    def save_draft(figure: Figure, target: Any, **options: Any) -> None:
        name = Path(target).name if isinstance(target, str | Path) else ""
        figure.set_layout_engine("none")
        savefig(Figure((1, 1)) if name in _drawn else figure, target, **options | {"dpi": 20})
        _drawn.add(name)

    monkeypatch.setattr(Figure, "savefig", save_draft)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt. Processes that a shell starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
