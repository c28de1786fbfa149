"""Tests of kills, signals, full disks, lack of memory, damaged files, and several processes on one store."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock

from extract import Decoding, StoreRecipe, grade, read, sample
from extract.errors import InputError
from extract.running.exit import Terminated, exit_status
from extract.running.memory import retry_with_smaller_batch
from extract.running.worker import Worker
from extract.sampling.local.token_sampler import TokenSampler
from extract.store.store import Store
from tests.helpers.killing import Commands, content, finished, kill_often
from tests.helpers.tiny import write_questions

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> StoreRecipe:
    questions = write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", 22)
    return StoreRecipe(
        questions=str(questions), model=str(tiny_folder), k=3, block_size=4, policy=Decoding(max_new_tokens=6)
    )


def make(folder: Path, recipe: StoreRecipe, worker: Worker | None = None) -> Path:
    for command in (sample, grade, read):
        options = {"recipe": recipe} if command is sample else {"model": recipe.model} if command is read else {}
        command(str(folder), **options, worker=worker)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, recipe: StoreRecipe) -> Path:
    return make(tmp_path_factory.mktemp("stores") / "store", recipe)


@pytest.fixture(scope="module")
def uninterrupted(whole: Path) -> dict[str, bytes]:
    return content(whole)


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store", ignore=shutil.ignore_patterns("*.lock")))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(tmp_path_factory.mktemp("commands"), n_questions=24)


def test_a_run_after_kills_rewrites_nothing_and_gives_the_bytes_of_an_uninterrupted_run(
    commands: Commands,
) -> None:
    stores = [commands.folder / name for name in ("uninterrupted", "killed")]
    counts = kill_often(commands, "sample", stores[1], kills=2, spread=0.1)
    assert counts == {"kills": 2, "finished files changed": 0, "last run failed": 0}
    assert commands.finish("sample", stores[0])[0] == 0
    assert content(stores[1]) == content(stores[0])
    assert not list(stores[1].rglob("*.tmp"))


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_a_command_with_one_line_and_finished_files_are_kept(
    number: signal.Signals, status: int, word: str, commands: Commands, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    process = commands.start("sample", store)
    deadline = time.monotonic() + 60
    while not finished(store) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert [line for line in said.splitlines() if word in line] == [
        f"error: {word}. Finished work is kept. Run the same command again to continue."
    ]
    assert "Traceback" not in said
    assert finished(store)
    assert not list(store.rglob("*.tmp"))


def test_workers_write_the_same_bytes_as_one(
    recipe: StoreRecipe, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    for rank in (2, 0, 1):
        make(tmp_path / "store", recipe, Worker(rank, 3))
    assert content(tmp_path / "store") == uninterrupted


def test_workers_of_one_job_do_not_wait_for_each_other(store: Path) -> None:
    with Worker(0, 2).writing(store), Worker(1, 2).writing(store):
        pass


def test_a_file_with_the_name_of_a_lock_blocks_no_run(tmp_path: Path) -> None:
    (tmp_path / ".writer-x.lock").touch()
    with Worker().writing(tmp_path):
        pass


def test_a_worker_has_every_nth_block() -> None:
    owners = [[rank for rank in range(3) if Worker(rank, 3).has(block)] for block in range(7)]
    assert owners == [[0], [1], [2], [0], [1], [2], [0]]


@pytest.mark.parametrize(("rank", "count"), [("2", "2"), ("-1", "2"), ("a", "2"), ("0", "x")])
def test_an_impossible_rank_is_refused(rank: str, count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", count)
    with pytest.raises(InputError, match="RANK to be a whole number below WORLD_SIZE"):
        Worker.from_environment()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Worker(), Worker()),
        (Worker(1, 2), Worker()),
        (Worker(), Worker(1, 2)),
        (Worker(1, 3), Worker(0, 2)),
        (Worker(1, 2), Worker(1, 2)),
    ],
)
def test_a_second_run_waits_says_so_and_finds_nothing_left_to_do(
    first: Worker, second: Worker, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, lock = finished(store), FileLock(store / f".writer-{first.rank}-of-{first.count}.lock")
    lock.acquire()
    thread = threading.Thread(target=grade, args=(str(store),), kwargs={"worker": second})
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    lock.release()
    thread.join(30)
    assert not thread.is_alive()
    assert f"waiting: another run is writing to {str(store)!r}" in capsys.readouterr().err
    assert finished(store) == before


def test_a_full_disk_gives_a_one_line_error_and_the_next_run_continues(
    recipe: StoreRecipe, uninterrupted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fsync = [], os.fsync

    def full_after_a_while(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_after_a_while)
        with pytest.raises(
            InputError, match=r"^Expected .* to be writable, but got: No space left on device\. [^\n]*$"
        ):
            sample(str(tmp_path / "store"), recipe)
    kept = content(tmp_path / "store")
    assert 0 < len(finished(tmp_path / "store")) < 12
    assert all(uninterrupted[name] == data for name, data in kept.items())
    assert content(make(tmp_path / "store", recipe)) == uninterrupted


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("samples/00002.000-003.parquet", "sample"),
        ("grades/short/00001.000-003.parquet", "grade"),
        ("signals/hidden/question/00003.safetensors", "read"),
        ("samples/00002.000-003.json", "sample"),
    ],
)
def test_a_damaged_file_is_named_and_recreated(
    name: str,
    command: str,
    recipe: StoreRecipe,
    uninterrupted: dict[str, bytes],
    store: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = bytearray((store / name).read_bytes())
    data[len(data) // 2] ^= 1
    (store / name).write_bytes(data)
    others = {path: stamp for path, stamp in finished(store).items() if Path(path).stem != Path(name).stem}
    make(store, recipe)
    lines = [line for line in capsys.readouterr().err.splitlines() if "Replacing it." in line]
    assert len(lines) == 1
    assert lines[0].startswith(str(Path(name).with_suffix("")))
    assert content(store) == uninterrupted
    assert {path: stamp for path, stamp in finished(store).items() if path in others} == others


def test_adjacent_damaged_shards_are_recreated_unchanged(recipe: StoreRecipe, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store, replace(recipe, k=2))
    make(store, recipe)
    before = content(store)
    for name in ("00001.000-002", "00001.002-003"):
        (store / "samples" / f"{name}.parquet").write_bytes(b"")
    make(store, recipe)
    assert content(store) == before


def test_damaged_questions_are_written_again(recipe: StoreRecipe, uninterrupted: dict[str, bytes], store: Path) -> None:
    (store / "questions.parquet").write_bytes(b"nothing")
    assert content(make(store, recipe)) == uninterrupted


def test_temporary_files_of_a_killed_run_are_deleted_by_the_same_worker(store: Path) -> None:
    left = [store / "samples" / f".0000{block}.000-003.parquet.{'0' * 8}.tmp" for block in (0, 1)]
    for path in [*left, store / ".manifest.json.00000000.tmp"]:
        path.touch()
    grade(str(store), worker=Worker(1, 2))
    assert sorted(path.name for path in store.rglob("*.tmp")) == [
        ".00000.000-003.parquet.00000000.tmp",
        ".manifest.json.00000000.tmp",
    ]
    grade(str(store))
    assert not list(store.rglob("*.tmp"))


def out_of_memory_above(limit: int, of: Callable[[int], Any]) -> Callable[[int, Any], Any]:
    def work(size: int, counted: Any) -> Any:
        counted(1, 10)
        if size > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore lines")
        return of(size)

    return work


def test_batches_are_halved_while_memory_runs_out(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    done = retry_with_smaller_batch(
        out_of_memory_above(100, str), 320, "answers", lambda items, tokens: seen.append((items, tokens))
    )
    assert done == ("80", 80)
    assert [sum(column) for column in zip(*seen, strict=True)] == [1, 10]  # repeated work is counted once
    assert "out of memory: continuing with 160 answers at a time" in capsys.readouterr().err


def test_too_little_memory_for_one_item_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"process answers one at a time, but memory ran out: CUDA out of memory[^\n]*$"
    ):
        retry_with_smaller_batch(out_of_memory_above(0, str), 5, "answers", lambda items, tokens: None)


def test_sampling_continues_with_smaller_batches_and_records_it(
    recipe: StoreRecipe, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = TokenSampler.sample_grid

    def small_memory(self: TokenSampler, *arguments: Any) -> Any:
        if self.max_rows > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return draw(self, *arguments)

    monkeypatch.setattr(TokenSampler, "sample_grid", small_memory)
    store = sample(str(tmp_path / "store"), recipe)
    for part in store.samples.ranges():
        assert pq.read_schema(store.samples.file(part)).metadata[b"max_rows"] == b"5"
    fewer, many = (made.samples.read()["text"].to_pylist() for made in (store, Store.open(whole)))
    # rounding differs, so a uniform number near the boundary between two tokens may select the other one
    assert sum(a == b for a, b in zip(fewer, many, strict=True)) >= 63
    assert len(fewer) == 66


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("Expected this, but got that."), 2, "error: Expected this, but got that."),
        (KeyboardInterrupt(), 130, "error: interrupted. Finished work is kept"),
        (Terminated(), 143, "error: terminated. Finished work is kept"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 2, "error: 'runs': Permission denied. Finished"),
    ],
)
def test_a_failed_command_gives_the_reason_in_one_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    assert exit_status(command) == status
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1


def test_internal_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 / 0)


def test_a_store_path_below_a_file_gives_a_one_line_error(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, said = commands.finish("sample", tmp_path / "file" / "store")
    assert status == 2
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("error: ")]
