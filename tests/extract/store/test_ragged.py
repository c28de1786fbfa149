"""Signals of tokens in the store: as they were written, read without padding, and refused when they are altered."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from extract import InputError, Store
from extract.commands import verify
from extract.hashing import sha256_file
from extract.store.files import Damaged
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange
from extract.store.verify import find_problems
from extract.viewing.inspection import describe
from tests.helpers import altered_stores
from tests.helpers.altering import Alteration

TOKEN_ALTERATIONS = [*altered_stores.TOKEN_ALTERATIONS.items()]


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return altered_stores.add_tokens(altered_stores.make_store(tmp_path_factory.mktemp("whole") / "store"))


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Store:
    return Store.open(shutil.copytree(whole_store, tmp_path / "store"))


def of_lengths(*lengths: int) -> Ragged:
    """Values 0, 1, … in rows of these lengths."""
    return Ragged.of(list(torch.arange(sum(lengths)).float().split(lengths)))


def test_rows_of_different_lengths_become_ragged_and_padded_and_rows_again() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.zeros(0), torch.tensor([3.0])]
    ragged = Ragged.of(rows)
    assert (ragged.n_rows, ragged.lengths.tolist(), ragged.offsets.tolist()) == (3, [2, 0, 1], [0, 2, 2, 3])
    assert all(torch.equal(a, b) for a, b in zip(ragged.rows(), rows, strict=True))
    assert ragged.padded(fill=-1).tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert Ragged.of([torch.zeros(0)]).padded().isnan().tolist() == [[True]]


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


def test_offsets_are_no_keys_and_the_layout_says_what_is_ragged(store: Store) -> None:
    assert store.signals.keys("tokens", "sample") == ["1/entropy", "2/entropy"]
    assert [entry.ragged for entry in store.signals.layout("tokens", "sample").values()] == [True, True]
    assert [entry.shape for entry in store.signals.layout("tokens", "sample").values()] == [(), ()]
    assert not any(entry.ragged for entry in store.signals.layout("hidden").values())
    assert "signal     tokens: 6 of 6 parts of answers" in describe(store)
    assert list(find_problems(store)) == []


def test_vectors_of_tokens_and_tensors_of_rows_stand_in_one_file_and_may_be_of_questions(store: Store) -> None:
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


def test_answers_without_a_single_token_are_read_as_such(store: Store) -> None:
    for part in store.samples.ranges():
        nothing = of_lengths(*[0] * store.questions.n_rows(part))
        store.signals.write("none", part, {"0/a": nothing, "0/b": nothing})
    read = store.signals.read_ragged("none", "0/b")
    assert (read.values.shape, read.n_rows) == ((0,), 80)
    assert list(find_problems(store)) == []


def test_a_tensor_longer_than_a_piece_is_read_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = store.signals.read_ragged("tokens", "2/entropy")
    monkeypatch.setattr("extract.store.tensors._CHUNK", 12)  # bytes: three tokens
    assert torch.equal(store.signals.read_ragged("tokens", "2/entropy").values, whole.values)
    altered_stores.TOKEN_ALTERATIONS["token that is not finite"](store.path, random.Random(0))
    with pytest.raises(Damaged, match="not finite in row"):
        [Store.open(store.path).signals.read_ragged("tokens", key) for key in ("1/entropy", "2/entropy")]


def test_each_way_of_reading_refuses_what_the_other_one_reads(store: Store) -> None:
    with pytest.raises(InputError, match="'2/entropy' of the signal 'tokens' .* tokens of each row. Use `read_ragged`"):
        store.signals.read("tokens", "2/entropy", "sample")
    with pytest.raises(InputError, match="Use `read_ragged`"):
        store.read_block("tokens", store.samples.ranges()[0], "2/entropy")
    with pytest.raises(InputError, match="one tensor for each row. Use `read_signal`"):
        store.signals.read_ragged("hidden", "0/last_prompt", "question")
    with pytest.raises(InputError, match="Expected `key` to be one that the signal 'tokens'"):
        store.signals.read_ragged("tokens", "2/entropy.offsets")
    with pytest.raises(InputError, match="Run `python -m extract read .* --signals .rollout. --scope sample`"):
        store.signals.read_ragged("rollout", "2/entropy")


def test_a_missing_answer_is_nan_in_all_of_its_tokens_and_one_that_is_so_in_part_is_named(store: Store) -> None:
    part, tokens = SampleRange(1, 0, 2), of_lengths(2, 0, 3, *[1] * 13)
    tokens.values[2:5] = torch.nan
    store.signals.write("tokens", part, {"2/entropy": tokens, "1/entropy": of_lengths(*tokens.lengths.tolist())})
    read = store.signals.read_ragged("tokens", "2/entropy")
    assert [int(row.isnan().sum()) for row in read.rows()[32:36]] == [0, 0, 3, 0]
    tokens.values[3] = 0.0
    store.signals.write("tokens", part, {"2/entropy": tokens, "1/entropy": of_lengths(*tokens.lengths.tolist())})
    with pytest.raises(Damaged, match=r"'2/entropy' is not finite in row 2 \(question 'q9', sample 0\)"):
        store.signals.read_ragged("tokens", "2/entropy")
    assert "not finite in row 2" in next(find_problems(store))


def test_parts_of_which_one_is_ragged_and_one_is_not_are_refused(store: Store) -> None:
    part = SampleRange(1, 0, 2)
    store.signals.write(
        "tokens", part, {f"{layer}/entropy": torch.ones(store.questions.n_rows(part)) for layer in (1, 2)}
    )
    with pytest.raises(Damaged, match="'1/entropy' is F32 of shape .. a row while it is F32 of shape .. a token in"):
        store.signals.keys("tokens", "sample")


def test_keys_of_one_file_are_of_the_same_tokens(store: Store) -> None:
    part = store.samples.ranges()[0]
    n = store.questions.n_rows(part)
    one, other = (Ragged.of([torch.ones(2 + (row == place)) for row in range(n)]) for place in (3, 5))
    store.signals.write("tokens", part, {"2/entropy": one, "2/nll": other})
    with pytest.raises(Damaged, match=r"'2/nll.offsets' are others than '2/entropy.offsets', of the same tokens"):
        store.signals.shard_layout("tokens", part)


def test_the_file_is_hashed_once_however_many_keys_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    monkeypatch.setattr("extract.store.files.sha256_file", counted)
    for key in ("1/entropy", "2/entropy", "1/entropy"):
        store.signals.read_ragged("tokens", key)
    assert sorted(hashed) == sorted(store.signals.file("tokens", part) for part in store.samples.ranges())


def test_what_is_whole_is_not_refused_and_there_are_alterations(whole_store: Path) -> None:
    verify(str(whole_store))
    assert len(TOKEN_ALTERATIONS) >= 15


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "alter"), TOKEN_ALTERATIONS, ids=[name for name, _ in TOKEN_ALTERATIONS])
def test_altered_tokens_are_refused_in_one_line_that_names_the_file(
    store: Store, name: str, alter: Alteration, seed: int
) -> None:
    named = alter(store.path, random.Random(seed))
    for read in (
        lambda: [Store.open(store.path).signals.read_ragged("tokens", key) for key in ("1/entropy", "2/entropy")],
        lambda: verify(str(store.path)),
    ):
        with pytest.raises(InputError) as refused:
            read()
        message = str(refused.value)
        assert named in message
        assert message.isprintable()
        assert len(message) < 2000
