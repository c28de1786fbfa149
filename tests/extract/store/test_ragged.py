"""Tests of token signals in the store: exact values, reading without padding, and altered files."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from extract import InputError, Store
from extract.errors import Damaged
from extract.hashing import sha256_file
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange
from extract.store.verify import find_problems
from extract.viewing.inspection import describe
from tests.helpers import altered_stores


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return altered_stores.add_tokens(altered_stores.make_store(tmp_path_factory.mktemp("whole") / "store"))


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Store:
    return Store.open(shutil.copytree(whole_store, tmp_path / "store"))


def of_lengths(*lengths: int) -> Ragged:
    """Return the values 0, 1, … in rows of these lengths."""
    return Ragged.of(list(torch.arange(sum(lengths)).float().split(lengths)))


def test_rows_are_converted_to_ragged_and_padded_tensors_and_back() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.zeros(0), torch.tensor([3.0])]
    ragged = Ragged.of(rows)
    assert (ragged.n_rows, ragged.lengths.tolist(), ragged.offsets.tolist()) == (3, [2, 0, 1], [0, 2, 2, 3])
    assert all(torch.equal(a, b) for a, b in zip(ragged.rows(), rows, strict=True))
    assert ragged.padded(fill=-1).tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert Ragged.of([torch.zeros(0)]).padded().isnan().tolist() == [[True]]


@pytest.mark.slow
def test_tokens_of_all_answers_are_read_in_the_order_of_the_samples(store: Store) -> None:
    read = store.signals.read_ragged("tokens", "2/entropy")
    rows = iter(read.rows())
    assert read.n_rows == store.samples.read().num_rows == 80
    for part in store.samples.ranges():
        held = load_file(store.signals.file("tokens", part))
        values, offsets = held["2/entropy"], held["2/entropy.offsets"].tolist()
        assert offsets[0] == 0
        assert offsets[-1] == len(values)  # no padding
        for start, stop in pairwise(offsets):
            assert torch.equal(next(rows), values[start:stop])
    assert next(rows, None) is None
    assert 0 in read.lengths
    assert torch.equal(store.signals.read_ragged("tokens", "1/entropy").values, read.values + 1)


@pytest.mark.slow
def test_offsets_are_not_keys_and_the_layout_names_ragged_tensors(store: Store) -> None:
    assert store.signals.keys("tokens", "sample") == ["1/entropy", "2/entropy"]
    assert [entry.ragged for entry in store.signals.layout("tokens", "sample").values()] == [True, True]
    assert [entry.shape for entry in store.signals.layout("tokens", "sample").values()] == [(), ()]
    assert not any(entry.ragged for entry in store.signals.layout("hidden").values())
    assert "signal     tokens: 6 of 6 sample ranges" in describe(store)
    assert list(find_problems(store)) == []


def test_a_file_can_contain_token_vectors_and_row_tensors_also_for_questions(store: Store) -> None:
    generator = torch.Generator().manual_seed(0)
    written = []
    for block in range(store.questions.n_blocks):
        rows = [
            torch.rand(i % 3, 4, 2, generator=generator).half() for i in range(store.questions.n_rows(Block(block)))
        ]
        written += rows
        store.signals.write("mixed", Block(block), {"0/states": Ragged.of(rows), "0/count": torch.ones(len(rows))})
    read = store.signals.read_ragged("mixed", "0/states", "question")
    assert read.values.dtype == torch.float16
    assert all(torch.equal(a, b) for a, b in zip(read.rows(), written, strict=True))
    assert torch.equal(store.signals.read("mixed", "0/count"), torch.ones(20))


def test_answers_without_tokens_are_read_as_empty_rows(store: Store) -> None:
    for part in store.samples.ranges():
        nothing = of_lengths(*[0] * store.questions.n_rows(part))
        store.signals.write("none", part, {"0/a": nothing, "0/b": nothing})
    read = store.signals.read_ragged("none", "0/b")
    assert (read.values.shape, read.n_rows) == ((0,), 80)
    assert list(find_problems(store)) == []


def test_a_tensor_longer_than_a_chunk_is_read_completely(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = store.signals.read_ragged("tokens", "2/entropy")
    monkeypatch.setattr("extract.store.signals.CHUNK_BYTES", 12)  # bytes: three tokens
    assert torch.equal(store.signals.read_ragged("tokens", "2/entropy").values, whole.values)


def test_ragged_and_plain_reading_refuse_each_others_tensors(store: Store) -> None:
    with pytest.raises(
        InputError,
        match="'2/entropy' of the 'tokens' signal .* to be a plain tensor, but it is not. Use `read_ragged`",
    ):
        store.signals.read("tokens", "2/entropy", "sample")
    with pytest.raises(InputError, match="to be ragged, but it is not. Use `read`"):
        store.signals.read_ragged("hidden", "0/last_prompt", "question")
    with pytest.raises(InputError, match="Expected `key` to be a key of the 'tokens' signal"):
        store.signals.read_ragged("tokens", "2/entropy.offsets")
    with pytest.raises(InputError, match="Run `python -m extract read .* --signals '.rollout.' --scope sample`"):
        store.signals.read_ragged("rollout", "2/entropy")


def test_all_tokens_of_a_missing_answer_are_nan(store: Store) -> None:
    samples, tokens = SampleRange(1, 0, 2), of_lengths(2, 0, 3, *[1] * 13)
    tokens.values[2:5] = torch.nan
    store.signals.write("tokens", samples, {"2/entropy": tokens, "1/entropy": of_lengths(*tokens.lengths.tolist())})
    read = store.signals.read_ragged("tokens", "2/entropy")
    assert [int(row.isnan().sum()) for row in read.rows()[32:36]] == [0, 0, 3, 0]


def test_a_mixture_of_ragged_and_plain_ranges_is_refused(store: Store) -> None:
    part = SampleRange(1, 0, 2)
    store.signals.write(
        "tokens", part, {f"{layer}/entropy": torch.ones(store.questions.n_rows(part)) for layer in (1, 2)}
    )
    with pytest.raises(Damaged, match="'1/entropy' is F32 of shape .. per row, but F32 of shape .. per token in"):
        store.signals.keys("tokens", "sample")


def test_the_file_is_hashed_once_however_many_keys_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    monkeypatch.setattr("extract.store.files.sha256_file", counted)
    for key in ("1/entropy", "2/entropy", "1/entropy"):
        store.signals.read_ragged("tokens", key)
    signals = [path for path in hashed if path.suffix == ".safetensors"]
    assert sorted(signals) == sorted(store.signals.file("tokens", part) for part in store.samples.ranges())
