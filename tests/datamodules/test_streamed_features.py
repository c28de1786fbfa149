"""Tests of features that are read from a store in chunks, and of the order of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from datamodules import FeatureDataModule, batches, streamed_features
from datamodules.streamed_features import StreamedFeatures, in_order
from extract import InputError, Store
from extract.errors import Damaged
from extract.store.shards import Block
from extract.store.signals import Signals
from tests.helpers.synthetic import add_answer_signals, make_store


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the rows of the test stores into many chunks, which are smaller than a block."""
    monkeypatch.setattr(streamed_features, "CHUNK_BYTES", 1500)
    monkeypatch.setattr(streamed_features, "LARGEST_GAP", 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("streamed") / "store"
    made = make_store(folder, rng.normal(size=(150, 3, 8)).astype(np.float32), rng.random(150), k=4, block_size=32)
    add_answer_signals(made)
    return folder


def loaded(store: Path, **options: Any) -> tuple[FeatureDataModule, FeatureDataModule]:
    """Load the features of a store in memory and streamed."""
    both = FeatureDataModule(str(store), **options), FeatureDataModule(str(store), in_memory=False, **options)
    for data in both:
        data.load()
    return both


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"layers": [0, 2]}, {"join": ["tokens"]}, {"target": "response", "positions": ["mean_answer", "last_answer"]}],
)
def test_streamed_features_equal_those_in_memory(store: Path, options: dict[str, Any]) -> None:
    memory, streamed = (data.batch("train") for data in loaded(store, **options))
    assert streamed.features.shape == memory.features.shape
    assert torch.equal(streamed.features.read(), memory.features)
    rows = torch.randperm(len(memory.row))[:40]
    part = streamed.take(rows)
    assert torch.equal(part.features[:, [1]], memory.features[rows][:, [1]])
    total = part.features.map([0, 1], lambda _, features: features.sum((1, 2)))
    torch.testing.assert_close(total, memory.features[rows][:, :2].sum((1, 2)))


@pytest.mark.slow
def test_chunks_are_in_the_order_of_the_store_and_need_at_most_the_chunk_size(store: Path) -> None:
    features = loaded(store)[1].batch("train").features[torch.randperm(150)]
    assert isinstance(features, StreamedFeatures)
    parts = list(features.chunks([0, 1], lambda _, rows: rows))
    rows = torch.cat([features.rows[places] for places, _ in parts])
    assert torch.equal(rows, torch.arange(150))
    assert max(4 * part.numel() for _, part in parts) <= streamed_features.CHUNK_BYTES
    assert len(parts) > 150 // 32  # smaller than blocks


@pytest.mark.slow
def test_a_pass_over_a_layer_reads_only_this_layer_and_skips_gaps(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, original = [], Signals.read_rows

    def spy(self: Signals, signal: str, key: str, shard: Any, start: int, stop: int) -> torch.Tensor:
        read.append((key, stop - start))
        return original(self, signal, key, shard, start, stop)

    monkeypatch.setattr(Signals, "read_rows", spy)
    features = loaded(store)[1].batch("train").features[torch.tensor([1, 3, 120, 121])]
    read.clear()
    assert features[:, [2]].shape == (4, 1, 8)
    assert read == [("2/last_prompt", 3), ("2/last_prompt", 2)]


def test_rows_without_finite_features_are_left_out(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(60, 2, 4)).astype(np.float32)
    make_store(tmp_path / "store", states, np.full(60, 0.5), block_size=16)
    signals, block = Store.open(tmp_path / "store").signals, Block(1)
    tensors = {key: signals.read_rows("hidden", key, block, 0, 16).clone() for key in signals.keys("hidden")}
    tensors["0/last_prompt"][3, 2], tensors["1/last_prompt"][5, 0] = torch.nan, -torch.inf
    signals.write("hidden", block, tensors)
    memory, streamed = (data.batch("train").row.tolist() for data in loaded(tmp_path / "store"))
    assert streamed == memory == [row for row in range(60) if row not in (19, 21)]


@pytest.mark.slow
@pytest.mark.parametrize("buffer_bytes", [2**28, 1500], ids=["one buffer", "several buffers"])
def test_batches_are_the_same_as_in_memory(store: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int) -> None:
    monkeypatch.setattr(batches, "BUFFER_BYTES", buffer_bytes)
    passes = []
    for data in loaded(store):
        data.batch_size = 7
        torch.manual_seed(1)
        loader = data.train_dataloader()
        passes.append([list(loader), list(loader)])
    for memory, streamed in zip(*passes, strict=True):
        assert sorted(torch.cat([batch.row for batch in streamed]).tolist()) == list(range(150))
        assert {len(batch.row) for batch in streamed} == {6, 7}
        for one, other in zip(memory, streamed, strict=True):
            assert torch.equal(one.row, other.row)
            assert torch.equal(one.features, other.features)
    assert not torch.equal(passes[0][0][0].row, passes[0][1][0].row)  # another order in the second pass


@pytest.mark.slow
def test_a_buffer_contains_rows_from_the_whole_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BUFFER_BYTES", 96 * 50)
    data = loaded(store)[1]
    data.batch_size = 10
    first = torch.cat([batch.row for batch in list(data.train_dataloader())[:5]])
    assert len((first // 32).unique()) == 5


def test_results_come_in_order_and_only_a_few_are_computed_ahead() -> None:
    begun: list[int] = []

    def square(number: int) -> int:
        begun.append(number)
        return number**2

    results = in_order(square, range(100), n_workers=3)
    assert next(results) == 0
    assert len(begun) <= 4
    assert list(results) == [number**2 for number in range(1, 100)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"signal": "tokens"}, "the 'tokens' signal"),
        ({"signal": "hidden_tokens", "target": "response"}, "the 'hidden_tokens' signal"),
        ({"prefixes": True, "target": "response"}, "prefixes"),
    ],
)
def test_other_features_than_vectors_cannot_be_streamed(store: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"`in_memory` to be true for {named}, but got false"):
        FeatureDataModule(str(store), in_memory=False, **options)


def test_there_is_at_least_one_worker(store: Path) -> None:
    with pytest.raises(InputError, match="`num_workers` to be at least 1, but got 0"):
        FeatureDataModule(str(store), in_memory=False, num_workers=0)


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_in_use_is_named(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(60, 2, 4)).astype(np.float32)
    make_store(tmp_path / "store", states, np.full(60, 0.5), block_size=16)
    _, streamed = loaded(tmp_path / "store")
    features, signals = streamed.batch("train").features, Store.open(tmp_path / "store").signals
    file = signals.file("hidden", Block(1))
    tensors = {key: signals.read_rows("hidden", key, Block(1), 0, 16) for key in signals.keys("hidden")}
    save_file({key: values[:9].clone() for key, values in tensors.items()}, file)
    with pytest.raises(Damaged, match=r"changed while it was in use, and row \d+ is missing"):
        features.read()
    file.write_bytes(b"")
    with pytest.raises(Damaged, match="changed or removed while it was in use"):
        features.read()
    file.unlink()
    with pytest.raises(Damaged, match="changed or removed while it was in use"):
        features.read()
