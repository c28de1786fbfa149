"""Tests of `hidden_tokens`: the states of all tokens of an answer, compared with transformers and in a store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from extract import InputError, Store, read
from extract.signals.base import Answer
from extract.signals.reading import read_answers
from extract.signals.registry import SIGNALS
from extract.store.ragged import Ragged
from tests.helpers.tiny import tiny_model

ANSWERS = [
    Answer((5, 6, 7), (40, 41, 42, 43)),
    Answer((8, 9, 10, 11, 12), (50,)),
    Answer((5, 6, 7), ()),
    Answer((5, 6, 7), (40, 41)),
]


@pytest.fixture(scope="module")
def store(make_small_store: Callable[..., Path]) -> Path:
    return make_small_store(n=12, k=3)


@pytest.fixture
def copied(store: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(store, tmp_path / "store"))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("batch_tokens", [8, 2048])
def test_the_states_are_those_of_the_tokens_of_the_answer(family: str, batch_tokens: int) -> None:
    model = tiny_model(family)
    layers = {"hidden": [2], "hidden_tokens": [0, 3]}
    found = read_answers(model, ANSWERS, ["hidden", "hidden_tokens"], layers, batch_tokens)
    assert list(found["hidden_tokens"]) == ["0/answer_tokens", "3/answer_tokens"]
    assert {key.split("/")[0] for key in found["hidden"]} == {"2"}
    for layer in (0, 3):
        ragged = found["hidden_tokens"][f"{layer}/answer_tokens"]
        assert isinstance(ragged, Ragged)
        assert ragged.values.dtype == torch.float32
        assert ragged.lengths.tolist() == [4, 1, 0, 2]
        for answer, states in zip(ANSWERS, ragged.rows(), strict=True):
            sequence = torch.tensor([answer.prompt + answer.content])
            expected = model(sequence, output_hidden_states=True).hidden_states[layer][0, len(answer.prompt) :]
            torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-4)


def test_the_mean_and_the_last_state_are_those_of_the_signal_hidden(model: Any) -> None:
    found = read_answers(model, ANSWERS, ["hidden", "hidden_tokens"], [1])
    tokens: Any = found["hidden_tokens"]["1/answer_tokens"]
    for row, states in enumerate(tokens.rows()):
        if len(states):
            torch.testing.assert_close(states[-1], found["hidden"]["1/last_answer"][row])
            torch.testing.assert_close(states.mean(0), found["hidden"]["1/mean_answer"][row])


def test_a_store_contains_the_chosen_layers_in_either_dtype(copied: str, tiny_folder: Path, tmp_path: Path) -> None:
    half = str(shutil.copytree(copied, tmp_path / "half"))
    single = read(copied, ["hidden_tokens"], "sample", [1, 2], str(tiny_folder)).signals
    assert single.keys("hidden_tokens", "sample") == ["1/answer_tokens", "2/answer_tokens"]
    rounded = read(half, ["hidden_tokens"], "sample", [1, 2], str(tiny_folder), dtype="bfloat16").signals
    sizes = [signals.layout("hidden_tokens", "sample")["1/answer_tokens"] for signals in (single, rounded)]
    assert [entry.dtype for entry in sizes] == ["F32", "BF16"]
    expected, found = (signals.read_ragged("hidden_tokens", "2/answer_tokens") for signals in (single, rounded))
    assert torch.equal(found.values, expected.values.bfloat16())
    assert torch.equal(found.offsets, expected.offsets)
    with pytest.raises(InputError, match="differs in dtype"):
        read(half, ["hidden_tokens"], "sample", [1, 2], str(tiny_folder))


def test_three_layers_are_read_by_default(copied: str, tiny_folder: Path) -> None:
    store = read(copied, ["hidden", "hidden_tokens"], "sample", None, str(tiny_folder))
    assert store.signals.keys("hidden_tokens", "sample") == ["1/answer_tokens", "2/answer_tokens"]  # of 3 blocks
    assert len(store.signals.keys("hidden", "sample")) == 4 * 3
    assert SIGNALS["hidden_tokens"].default_layers(30) == [12, 18, 24]


def test_a_store_without_the_signal_names_the_command(store: Path) -> None:
    with pytest.raises(InputError, match=r"read --store \S+ --signals '\[hidden_tokens\]' --scope sample"):
        Store.open(store).signals.keys("hidden_tokens", "sample")
    with pytest.raises(InputError, match="to be one of hidden, tokens"):
        read(str(store), ["hidden_tokens"], "question")
