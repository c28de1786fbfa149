"""What others hand over: altered stores and probes are refused by one line that names the problem, and run nothing."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import FeatureDataModule, load_table
from extract import InputError, Store
from extract.__main__ import COMMANDS
from extract.commands import verify
from extract.running.cli import run
from extract.store.files import write_file
from extract.store.shards import Block
from probes import load_probe
from tests.helpers import altered_probes, altered_stores

STORES, PROBES = [*altered_stores.ALTERATIONS.items()], [*altered_probes.ALTERATIONS.items()]


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return altered_stores.make_store(tmp_path_factory.mktemp("whole") / "store")


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_store, tmp_path / "store"))


def train(store: Path) -> None:
    """Read what training reads."""
    FeatureDataModule(str(store), val_fraction=0.6).setup()


def refusal(read: Callable[[Any], Any], folder: Path, named: str, case: str) -> str:
    """The message with which reading a folder is refused: one line that names what was altered. Nothing is run."""
    try:
        read(folder)
    except InputError as error:
        message = str(error)
    except Exception as error:  # a traceback is what must not be; say of which case
        error.add_note(case)
        raise
    else:
        raise AssertionError(f"{case}: not refused")
    assert message.isprintable(), f"{case}: not one line: {message!r}"
    assert named in message, f"{case}: does not name {named!r}: {message}"
    assert len(message) < 2000, case
    assert not (folder.parent / "executed").exists(), f"{case}: the pickle was run"
    return message


def test_what_is_whole_is_not_refused(whole_store: Path, tmp_path: Path) -> None:
    train(whole_store)
    verify(str(whole_store))
    for seed in range(12):
        probe = load_probe(altered_probes.make_probe(tmp_path / str(seed), random.Random(seed)))
        assert 0 < float(probe.confidence(torch.zeros(8))) < 1


def test_there_are_enough_classes_and_every_pickle_would_tell(tmp_path: Path) -> None:
    assert len(STORES) > 20
    assert len(PROBES) > 20
    import pickle

    pickle.loads(altered_stores.bomb(tmp_path / "store"))
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("seed", range(212))
def test_an_altered_store_is_refused(store: Path, seed: int) -> None:
    name, alter = STORES[seed % len(STORES)]
    named = alter(store, random.Random(seed))
    refusal(train, store, named, f"{name}, seed {seed}, training")
    refusal(lambda path: verify(str(path)), store, named, f"{name}, seed {seed}, verify")


@pytest.mark.parametrize("seed", range(228))
def test_an_altered_probe_is_refused(tmp_path: Path, seed: int) -> None:
    name, alter = PROBES[seed % len(PROBES)]
    probe = altered_probes.make_probe(tmp_path / "probe", random.Random(seed))
    named = alter(probe, random.Random(seed))
    refusal(load_probe, probe, named, f"{name}, seed {seed}")


@pytest.mark.parametrize("seed", range(8))
def test_an_altered_manifest_is_refused_by_verify_which_alone_reads_it(store: Path, seed: int) -> None:
    altered_stores.bad_manifest(store, random.Random(seed))
    refusal(lambda path: verify(str(path)), store, "manifest", f"manifest, seed {seed}")
    train(store)


@pytest.mark.parametrize("seed", [373, 2235, *range(30)])
def test_other_bytes_under_a_voucher_that_fits_are_refused_or_make_sense_and_never_crash(
    store: Path, seed: int
) -> None:
    rng = random.Random(seed)  # of the first two, pyarrow ended the process when it was asked for a column's metadata
    path = rng.choice(sorted(store.rglob("*.parquet")))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 2, 8])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    write_file(path, bytes(content))
    with contextlib.suppress(InputError):
        verify(str(store))


def test_a_text_that_fills_the_memory_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.store.parquet._LARGEST", 2**20)
    altered_stores.edit_rows(lambda rows, rng: [row.update(text="a" * 2**18) for row in rows])(store, random.Random(0))
    assert max(path.stat().st_size for path in (store / "samples").iterdir()) < 2**15
    refusal(train, store, "more than the 1048576 bytes", "repeated text")


def test_a_signal_is_checked_once_however_many_keys_are_read(
    whole_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from extract.store import files

    hashed: list[Path] = []
    monkeypatch.setattr(files, "sha256_file", lambda path, hash=files.sha256_file: hashed.append(path) or hash(path))
    train(whole_store)
    assert sorted(path.stem for path in hashed) == ["00000", "00001", "00002"]


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.signals.read("../hidden", "0/last_prompt"),
        lambda store: store.signals.read("hidden", "../0/last_prompt"),
        lambda store: store.signals.read("hidden", "7/last_prompt"),
        lambda store: store.grades.read("/etc"),
        lambda store: store.grades.write("../coin", store.samples.ranges()[0], [], ""),
        lambda store: load_table(store, "../coin"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(whole_store: Path, read: Callable[[Store], Any]) -> None:
    refusal(lambda path: read(Store.open(path)), whole_store, "Expected `", "name")


@pytest.mark.parametrize("probe", ["a/b c", "../x/y", "a//b", "a/..", "-a/b", "a/b\0c", "x" * 5000, ""])
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused(probe: str) -> None:
    with pytest.raises(InputError, match="Expected `probe` to be"):
        load_probe(probe)


def test_a_row_that_is_nan_as_a_whole_is_missing_and_one_that_is_so_in_part_is_named(store: Path) -> None:
    opened = Store.open(store)
    tensors = {key: opened.signals.read("hidden", key)[8:16].clone() for key in opened.signals.keys("hidden")}
    tensors["1/last_prompt"][2] = torch.nan
    opened.signals.write("hidden", Block(1), tensors)
    data = FeatureDataModule(str(store), val_fraction=0.6)
    data.setup()
    assert data.n_unusable == 1
    tensors["1/last_prompt"][4, 3] = torch.inf
    opened.signals.write("hidden", Block(1), tensors)
    message = refusal(train, store, "signals/hidden/question/00001.safetensors", "NaN")
    assert "'1/last_prompt' is not finite in row 4 (question 'q12')" in message


def test_a_store_without_grades_or_with_those_of_two_graders_or_without_the_position_is_refused(store: Path) -> None:
    refusal(
        lambda path: FeatureDataModule(str(path), positions=["mean"], val_fraction=0.6).setup(),
        store,
        "`positions`",
        "position",
    )
    shutil.copytree(store / "grades/coin", store / "grades/judge")
    refusal(train, store, "`grader` to be one of coin, judge", "two graders")
    shutil.rmtree(store / "grades")
    refusal(train, store, "to hold grades, but it has none. Run `python -m extract grade", "no grades")


@pytest.mark.parametrize("name", ["a pickle", "foreign file", "header lies", "identity that is none", "link outside"])
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_command_gives_one_line_and_status_2(
    store: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    rng = random.Random(5)
    if name == "header lies" and command == "inspect":  # which reads no signal
        name = "missing column"
    altered_stores.ALTERATIONS[name](store, rng)
    assert run(COMMANDS, "python -m extract", [command, "--store", str(store)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_program_itself_gives_one_line_and_status_2(store: Path) -> None:
    (store / "samples/00000.000-002.json").write_bytes(b"")
    for command in ("verify", "inspect"):
        arguments = [sys.executable, "-m", "extract", command, "--store", str(store)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert done.stderr.startswith("error: Expected")
        assert "00000.000-002" in done.stderr
        assert done.stderr.count("\n") == 1
