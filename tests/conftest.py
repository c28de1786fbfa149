"""Shared fixtures: a tiny random model, its tokenizer, and a small store. No network, no download."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from benchmarks.tiny import byte_tokenizer, save_model, tiny_model, write_questions
from extract.signals.reading import read_questions

settings.register_profile("the same in every run", derandomize=True, deadline=None)
settings.load_profile("the same in every run")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    """The tiny model as a folder that `load_model` takes."""
    return save_model(model, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def make_small_store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Callable[..., Path]:
    """Makes stores with planted grades: the hidden state decides how often an answer is right."""

    def make(n: int = 120, k: int = 6, seed: int = 0) -> Path:
        from extract import StoreRecipe, read, sample

        folder = tmp_path_factory.mktemp("stores")
        questions = write_questions(folder / "questions.jsonl", n)
        recipe = StoreRecipe(questions=str(questions), model=str(tiny_folder), k=k)
        store = sample(str(folder / "store"), recipe)
        read(str(folder / "store"), model=str(tiny_folder))
        plant_grades(store, seed)
        return folder / "store"

    return make


def plant_grades(store: Any, seed: int) -> None:
    """Grade the answers by coins whose bias is a direction of layer 2."""
    hidden = store.signals.read("hidden", "2/last_prompt").numpy()
    rng = np.random.default_rng(seed)
    standardised = (hidden - hidden.mean(0)) / hidden.std(0)
    logit = standardised @ rng.normal(size=hidden.shape[1]) / 2
    probability = dict(zip((q.id for q in store.questions), 1 / (1 + np.exp(-logit)), strict=True))
    for part in store.samples.ranges():
        rows = [
            {
                "question_id": row["question_id"],
                "sample": row["sample"],
                "right": bool(rng.random() < probability[row["question_id"]]),
                "answer": row["text"][:1],
            }
            for row in store.samples.read(part).to_pylist()
        ]
        store.grades.write("planted", part, rows, "a biased coin")


@pytest.fixture(scope="session")
def small_store(make_small_store: Callable[..., Path]) -> Path:
    """A store of 120 questions with 6 answers each; tests only read it."""
    return make_small_store()


def read_hidden(
    model: Any, prompts: Sequence[Sequence[int]], layers: Sequence[int] | None = None, batch_tokens: int = 2048
) -> torch.Tensor:
    """Hidden states [question, layer, d_model] at `last_prompt`, of every layer for None."""
    wanted = range(model.config.num_hidden_layers + 1) if layers is None else layers
    return torch.stack(list(read_questions(model, prompts, ["hidden"], wanted, batch_tokens)["hidden"].values()), dim=1)
