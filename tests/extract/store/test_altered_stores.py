"""Test that altered stores are refused with one line that names the file.

Forged stores may give wrong numbers, but must do nothing worse.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import FeatureDataModule, load_table
from extract import InputError, Store
from extract.__main__ import COMMANDS
from extract.running.cli import run
from extract.store import files
from extract.store.answer_log import AnswerLog, read_log
from extract.store.files import write_file
from extract.store.shards import Block, SampleRange
from extract.store.verify import verify
from extract.viewing.inspection import describe
from tests.helpers import altered_stores
from tests.helpers.altered_stores import ALTERATIONS, FORGED, Alteration, forge_table, forge_value
from tests.helpers.altering import bad_json_contents, bomb


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return altered_stores.make_store(tmp_path_factory.mktemp("whole") / "store")


@pytest.fixture
def store(whole_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_store, tmp_path / "store"))


def load(store: Path) -> None:
    """Read the data that training needs."""
    FeatureDataModule(str(store), val_fraction=0.6).setup()


def refusal(read: Callable[[Path], Any], store: Path, named: str) -> str:
    """Return the error message for a store, and check that it is one short line that names the altered file."""
    with pytest.raises(InputError) as refused:
        read(store)
    message = str(refused.value)
    assert message.isprintable()
    assert named in message
    assert len(message) < 2000
    assert not (store.parent / "executed").exists()
    return message


@pytest.mark.slow
def test_an_intact_store_is_read(whole_store: Path, tmp_path: Path) -> None:
    load(whole_store)
    verify(str(whole_store))
    describe(Store.open(whole_store))


def test_loading_a_test_pickle_is_detected(tmp_path: Path) -> None:
    pickle.loads(bomb(tmp_path / "store"))
    assert (tmp_path / "executed").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_store_is_refused_by_training_and_by_verify(store: Path, name: str) -> None:
    named, alter = ALTERATIONS[name]
    alter(store)
    refusal(load, store, named)
    if not name.endswith((": missing", ": no sidecar")):
        refusal(lambda path: verify(str(path)), store, named)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_store_runs_no_code_writes_nothing_and_gives_no_traceback(store: Path, name: str) -> None:
    FORGED[name](store)
    before = sorted(store.parent.rglob("*"))
    for read in (load, lambda path: describe(Store.open(path)), lambda path: verify(str(path))):
        with contextlib.suppress(InputError):
            read(store)
    assert sorted(store.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets.clone().fill_(2**61),
        lambda offsets: -offsets,
        lambda offsets: offsets.flip(0),
        lambda offsets: offsets[:-1],
        lambda offsets: offsets[None],
        lambda offsets: offsets.double(),
    ],
    ids=["too large", "negative", "backwards", "one too few", "two axes", "not integers"],
)
def test_forged_offsets_are_refused(store: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    altered_stores.add_tokens(store)
    key = "2/entropy.offsets"
    altered_stores.forge_signal(
        "signals/tokens/*/*.safetensors", lambda tensors: tensors.update({key: change(tensors[key])})
    )(store)
    refusal(lambda path: Store.open(path).signals.read_ragged("tokens", "2/entropy"), store, key)


@pytest.mark.parametrize("settings", [b"{", b"[1]", b"null", b"\xff", b"[" * 10**5])
def test_forged_settings_of_an_asked_table_are_refused(store: Path, settings: bytes) -> None:
    asked, rows = Store.open(store).asked, [{"question_id": f"q{i}"} for i in range(8)]
    asked.write("sure", Block(0), rows, {})
    file = str(asked.file("sure", Block(0)).relative_to(store))
    forge_table(file, lambda table: table.replace_schema_metadata({**table.schema.metadata, b"how": settings}))(store)
    refusal(lambda path: Store.open(path).asked.read_shard("sure", Block(0)), store, "00000.parquet")


def test_an_answer_without_text_is_refused(store: Path) -> None:
    forge_value(altered_stores.SAMPLES, "text", None)(store)
    refusal(lambda path: Store.open(path).samples.read(), store, "00001.000-002.parquet")


@pytest.mark.parametrize(
    "row", ["[" * 10**5, *({"sample": 10**30}, {"text": None}, {"logprobs": [float("nan")]}, {"logprobs": [1e300]})]
)
def test_forged_lines_of_a_log_are_left_out(store: Path, row: str | dict[str, Any]) -> None:
    opened, samples = Store.open(store), SampleRange(0, 4, 6)
    good = {"question_id": "q0", "sample": 4, "text": "x", "logprobs": [-1.0]}
    with closing(AnswerLog(opened, samples)) as log:
        log.append([{**good, "sample": 5}])
        log._write(row if isinstance(row, str) else json.dumps([{**good, **row}]))
    assert [row["sample"] for row in read_log(opened, samples)] == [5]


@pytest.mark.slow
def test_tables_of_random_bytes_never_crash(whole_store: Path, tmp_path: Path) -> None:
    for seed in (373, 2235, *range(20)):  # the first two made pyarrow end the process
        rng = random.Random(seed)
        store = Path(shutil.copytree(whole_store, tmp_path / str(seed)))
        path = rng.choice(sorted(store.rglob("*.parquet")))
        content = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 2, 8])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        write_file(path, bytes(content))
        with contextlib.suppress(InputError):
            verify(str(store))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*bad_json_contents(), "another identity", "gone.parquet"])
def test_an_altered_manifest_is_refused_by_verify_which_alone_reads_it(store: Path, name: str) -> None:
    text = (store / "manifest.json").read_text()
    renamed = text.replace('"questions.parquet"', f'"{name}"').encode()
    other = text.replace(Store.open(store).sha256, "0" * 64).encode()
    content = {**bad_json_contents(), "another identity": other}.get(name, renamed)
    (store / "manifest.json").write_bytes(content)
    refusal(lambda path: verify(str(path)), store, "manifest")
    load(store)


def test_a_signal_is_hashed_once_however_many_keys_are_read(whole_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(files, "sha256_file", lambda path, hash=files.sha256_file: hashed.append(path) or hash(path))
    load(whole_store)
    assert sorted(path.stem for path in hashed if path.suffix == ".safetensors") == ["00000", "00001", "00002"]


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.signals.read("../hidden", "0/last_prompt"),
        lambda store: store.signals.read("hidden", "../0/last_prompt"),
        lambda store: store.signals.read("hidden", "7/last_prompt"),
        lambda store: store.grades.read("/etc"),
        lambda store: store.grades.write("../coin", store.samples.ranges()[0], [], ""),
        lambda store: store.asked.read("../sure"),
        lambda store: load_table(store, "../coin"),
    ],
    ids=["signal", "key", "layer", "grader", "grades to write", "baseline", "table"],
)
def test_a_name_that_leads_outside_the_store_is_refused(whole_store: Path, read: Callable[[Store], Any]) -> None:
    refusal(lambda path: read(Store.open(path)), whole_store, "Expected `")


def test_a_question_without_finite_features_is_left_out(store: Path) -> None:
    opened = Store.open(store)
    tensors = {key: opened.signals.read("hidden", key)[8:16].clone() for key in opened.signals.keys("hidden")}
    tensors["1/last_prompt"][2] = torch.nan
    opened.signals.write("hidden", Block(1), tensors)
    data = FeatureDataModule(str(store), val_fraction=0.6)
    data.setup()
    assert data.n_unusable == 1


def test_a_store_without_grades_or_with_those_of_two_graders_or_without_the_position_is_refused(store: Path) -> None:
    refusal(
        lambda path: FeatureDataModule(str(path), positions=["mean"], val_fraction=0.6).setup(), store, "`positions`"
    )
    shutil.copytree(store / "grades/coin", store / "grades/judge")
    refusal(load, store, "`grader` to be one of coin, judge")
    shutil.rmtree(store / "grades")
    refusal(load, store, "to contain grades, but it has none. Run `python -m extract grade")


COMMAND_CASES: dict[str, Alteration] = {
    name: ALTERATIONS[name][1]
    for name in ("samples: a pickle", "a foreign name", "identity: a list", "identity.json: a link outside")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMAND_CASES)
def test_commands_give_one_line_and_status_2(store: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    COMMAND_CASES[name](store)
    for command in ("verify", "inspect"):
        assert run(COMMANDS, "python -m extract", [command, "--store", str(store)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_program_itself_gives_one_line_and_status_2(store: Path) -> None:
    (store / "samples/00000.000-002.json").write_bytes(b"")
    arguments = [sys.executable, "-m", "extract", "inspect", "--store", str(store)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Expected")
    assert "00000.000-002" in done.stderr
    assert done.stderr.count("\n") == 1
