"""Tests of merging stores with the same identity: nothing may be lost, mixed or written twice."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from extract import Decoding, InputError, Question, Store
from extract.__main__ import COMMANDS
from extract.errors import Damaged
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions.question import questions_hash
from extract.running.cli import run
from extract.running.worker import Worker
from extract.samplers import SAMPLERS
from extract.store.answer_log import AnswerLog, read_log
from extract.store.merge import merge
from extract.store.shards import Block, SampleRange
from extract.store.verify import find_problems, write_manifest
from tests.helpers import altered_stores
from tests.helpers.forking import CONTEXT

pytestmark = pytest.mark.slow

HOW = {"model": "tiny", "prompts": ["Are you sure?"]}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def keep_only(store: Path, n_kept: int, rank: int) -> None:
    """Delete the files that another machine would have made: those of all blocks that belong to other ranks."""
    for path in store.rglob("[0-9]*"):
        if int(path.name[:5]) % n_kept != rank:
            path.unlink()
    (store / "manifest.json").unlink()


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of 3 blocks with samples, grades, signals and model-based baselines. Tests must not change it."""
    folder = altered_stores.add_tokens(altered_stores.make_store(tmp_path_factory.mktemp("made") / "store"))
    store = Store.open(folder)
    for place in store.shards("question"):
        costs = {"prompt_tokens": 9, "completion_tokens": 2, "attempts": 1, "text": "0.5", "mass": None, "value": 0.5}
        rows = [{"question_id": id_, **costs} for id_ in store.questions.ids(place)]
        store.asked.write("sure", place, rows, HOW)
    write_manifest(store)
    return folder


@pytest.fixture
def whole(made_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_once, tmp_path / "whole"))


@pytest.fixture
def halves(tmp_path: Path, whole: Path) -> list[str]:
    """Return the same store as made by two machines, with blocks 0 and 2 and with block 1."""
    for rank in range(2):
        keep_only(shutil.copytree(whole, tmp_path / f"half-{rank}"), 2, rank)
    return [str(tmp_path / f"half-{rank}") for rank in range(2)]


def test_merged_halves_have_the_bytes_of_the_whole(tmp_path: Path, whole: Path, halves: list[str]) -> None:
    before = [contents(Path(half)) for half in halves]
    (store,) = merge(str(tmp_path / "new"), halves)
    assert contents(tmp_path / "new") == contents(whole)
    assert list(find_problems(store)) == []
    assert [contents(Path(half)) for half in halves] == before
    merge(halves[0], [halves[1]])  # into one of them
    assert contents(Path(halves[0])) == contents(whole)


def test_a_second_merge_copies_nothing(tmp_path: Path, halves: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    merge(str(tmp_path / "new"), halves)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "new").rglob("*.parquet")}
    capsys.readouterr()
    merge(str(tmp_path / "new"), halves)
    assert capsys.readouterr().err.count("merge: copied 0 files from") == 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "new").rglob("*.parquet")} == before


def test_two_workers_merge_their_own_blocks(tmp_path: Path, whole: Path, halves: list[str]) -> None:
    merge(str(tmp_path / "new"), halves, Worker(1, 2))
    assert {path.name[:5] for path in (tmp_path / "new").rglob("[0-9]*")} == {"00001"}
    merge(str(tmp_path / "new"), halves, Worker(0, 2))
    assert contents(tmp_path / "new") == contents(whole)


def test_additional_samples_and_graders_are_merged(tmp_path: Path, whole: Path) -> None:
    other = Path(shutil.copytree(whole, tmp_path / "other"))
    for path in [*other.glob("samples/*.002-004.*"), *other.glob("grades/coin/*.002-004.*")]:
        path.unlink()
    shutil.rmtree(other / "signals/tokens")
    (other / "grades/coin").rename(other / "grades/dice")
    store = Store.open(other)
    for part in store.grades.ranges("dice"):
        rows = [
            {"question_id": id_, "sample": j, "right": True, "answer": "x"}
            for id_ in store.questions.ids(part)
            for j in range(2)
        ]
        store.grades.write("dice", part, rows, "a die")
    (merged,) = merge(str(whole), [str(other)])
    assert merged.grades.names() == ["coin", "dice"]
    assert merged.samples.read().num_rows == 80
    assert list(find_problems(merged)) == []


def test_other_identities_are_refused_before_anything_is_copied(tmp_path: Path, whole: Path, halves: list[str]) -> None:
    questions = list(Store.open(whole).questions)
    model = ModelIdentity("tiny", None, "a" * 64, "float32", "b" * 64, "c" * 64)
    identity = Identity(Policy(model, Decoding(max_new_tokens=3, seed=1)), questions_hash(questions), block_size=8)
    Store.create(tmp_path / "seeded", identity, questions)
    before = contents(Path(halves[0]))
    with pytest.raises(InputError, match="seed: found 0, expected 1"):
        merge(halves[0], [halves[1], str(tmp_path / "seeded")])
    assert contents(Path(halves[0])) == before
    with pytest.raises(InputError, match="seed: found 0, expected 1"):
        merge(str(tmp_path / "new"), [halves[1], str(tmp_path / "seeded")])
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="not to contain the target store"):
        merge(halves[0], [halves[0]])
    with pytest.raises(InputError, match="has no identity.json"):
        merge(halves[0], [str(tmp_path / "none")])
    with pytest.raises(InputError, match="at least one store"):
        merge(halves[0], [])


def rewrite(store: Store, part: SampleRange, **changes: Any) -> None:
    rows = store.samples.read(part).select(
        ["question_id", "sample", "token_ids", "text", "logprobs", "finish_reason", "prompt_tokens"]
    )
    store.samples.write(part, [{**row, **changes} for row in rows.to_pylist()])


def test_different_answers_for_one_sample_are_refused_with_the_file_name(tmp_path: Path, whole: Path) -> None:
    other = Path(shutil.copytree(whole, tmp_path / "other"))
    rewrite(Store.open(other), SampleRange(1, 0, 2), text="something else")
    before = contents(whole)
    with pytest.raises(InputError, match=r"but 1 differ: samples/00001.000-002.parquet\. In one of the stores, delete"):
        merge(str(whole), [str(other)])
    assert contents(whole) == before


def test_shards_that_share_samples_are_refused(tmp_path: Path, whole: Path) -> None:
    other = Path(shutil.copytree(whole, tmp_path / "other"))
    for ending in ("parquet", "json"):
        for name in ("00000.000-002", "00000.002-004"):
            (other / f"samples/{name}.{ending}").unlink()
    store = Store.open(other)
    rows = Store.open(whole).samples.read(SampleRange(0, 0, 2)).drop(["n_tokens"]).to_pylist()
    store.samples.write(SampleRange(0, 1, 3), [{**row, "sample": row["sample"] + 1} for row in rows])
    with pytest.raises(InputError, match="but 00000.000-002 and 00000.001-003 overlap"):
        merge(str(whole), [str(other)])


def test_a_damaged_file_is_not_copied(tmp_path: Path, halves: list[str]) -> None:
    file = Path(halves[1]) / "samples/00001.000-002.parquet"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match="checksum differs"):
        merge(str(tmp_path / "new"), halves)
    assert not (tmp_path / "new/samples/00001.000-002.parquet").exists()
    file.write_bytes(b"half")
    with pytest.raises(Damaged, match="it has 4 bytes instead of"):
        merge(str(tmp_path / "new"), halves)


def test_signals_and_tables_with_other_settings_are_refused(tmp_path: Path, halves: list[str]) -> None:
    other = Store.open(halves[1])
    shutil.rmtree(other.path / "signals/hidden")
    other.signals.write("hidden", Block(1), {"0/last_prompt": torch.zeros(8, 4)})
    with pytest.raises(InputError, match="'hidden' signal to have the same layers"):
        merge(halves[0], [halves[1]])
    shutil.rmtree(other.path / "signals/hidden")
    shutil.rmtree(other.path / "asked")
    rows = [
        {
            "question_id": id_,
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "attempts": 1,
            "text": "1",
            "mass": None,
            "value": 1.0,
        }
        for id_ in other.questions.ids(Block(1))
    ]
    other.asked.write("sure", Block(1), rows, {**HOW, "model": "large"})
    with pytest.raises(InputError, match="model: found 'tiny', expected 'large'"):
        merge(halves[0], [halves[1]])


def test_the_stores_of_a_grid_are_merged_by_name(tmp_path: Path, whole: Path, halves: list[str]) -> None:
    for i, half in enumerate(halves):
        (tmp_path / f"grid-{i}").mkdir()
        for name in ("t0.0", "t0.7")[: 2 - i]:
            shutil.copytree(half, tmp_path / f"grid-{i}" / name)
    merged = merge(str(tmp_path / "grid"), [str(tmp_path / "grid-0"), str(tmp_path / "grid-1")])
    assert [store.path.name for store in merged] == ["t0.0", "t0.7"]
    assert contents(tmp_path / "grid/t0.0") == contents(whole)
    with pytest.raises(InputError, match="contains one store per temperature"):
        merge(str(tmp_path / "grid"), [halves[0]])
    with pytest.raises(InputError, match="`store` to be a grid folder, like .* but"):
        merge(halves[0], [str(tmp_path / "grid")])


@pytest.mark.processes
def test_a_killed_merge_continues(tmp_path: Path, whole: Path, halves: list[str]) -> None:
    new = tmp_path / "new"
    child = CONTEXT.Process(target=merge_slowly, args=(str(new), halves))
    child.start()
    try:
        while not list(new.glob("signals/*/*/*.json")):
            assert child.is_alive()
    finally:
        child.kill()
        child.join()
    assert contents(new) != contents(whole)
    assert run(COMMANDS, "extract", ["merge", "--store", str(new), "--others", f"[{','.join(halves)}]"]) == 0
    assert contents(new) == contents(whole)


def merge_slowly(target: str, sources: list[str]) -> None:
    sync = os.fsync
    os.fsync = lambda fd: (time.sleep(0.02), sync(fd))
    merge(target, sources)


# Answers of a served model, of which some are still in logs


def served(folder: Path) -> Store:
    questions = [Question(id=f"q{i}", dataset="made", text=f"Say {i}.", references=("x",)) for i in range(4)]
    model = ModelIdentity("served", None, None, None, None, None)
    policy = Policy(model, Decoding(max_new_tokens=3), request={})
    return Store.create(folder, Identity(policy, questions_hash(questions), 2, SAMPLERS["server"].version), questions)


def row(question: str, sample: int, text: str) -> dict[str, Any]:
    told = dict.fromkeys(("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens"))
    return {"question_id": question, "sample": sample, "text": text, "finish_reason": "stop", **told}


def log(store: Store, part: SampleRange, rows: list[dict[str, Any]]) -> None:
    opened = AnswerLog(store, part)
    opened.append(rows)
    opened.close()


def logged(store: Store, part: SampleRange) -> list[tuple[str, int, str]]:
    return [(row["question_id"], row["sample"], row["text"]) for row in read_log(store, part)]


def test_answers_of_unfinished_shards_are_merged_once(tmp_path: Path) -> None:
    a, b = served(tmp_path / "a"), served(tmp_path / "b")
    log(a, SampleRange(0, 0, 2), [row("q0", 0, "a")])
    log(b, SampleRange(0, 0, 2), [row("q0", 0, "other"), row("q1", 1, "b")])
    log(b, SampleRange(1, 0, 2), [row("q2", 0, "b")])
    with b.samples.log_file(SampleRange(1, 0, 2)).open("a") as file:
        file.write('[{"question_id": "q3", "sam')  # an incomplete line
    before = contents(b.path)
    for _ in range(2):
        (merged,) = merge(str(a.path), [str(b.path)])
        assert logged(merged, SampleRange(0, 0, 2)) == [("q0", 0, "a"), ("q1", 1, "b")]
        assert logged(merged, SampleRange(1, 0, 2)) == [("q2", 0, "b")]
    assert contents(b.path) == before


def test_logged_answers_that_are_finished_elsewhere_are_dropped_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = served(tmp_path / "a"), served(tmp_path / "b")
    part, rows = SampleRange(0, 0, 1), [row("q0", 0, "whole"), row("q1", 0, "whole")]
    a.samples.write(part, rows)
    log(b, part, [row("q0", 0, "b")])
    merge(str(a.path), [str(b.path)])
    assert "ignored 1 answers in" in (said := capsys.readouterr().err)
    assert "because 00000.000-001 is finished in" in said
    merge(str(b.path), [str(a.path)])
    assert Store.open(b.path).samples.read()["text"].to_pylist() == ["whole", "whole"]
    assert "00000.000-001 is now finished" in capsys.readouterr().err
    log(b, SampleRange(1, 0, 2), [row("q2", 0, "b")])
    log(a, SampleRange(1, 1, 3), [row("q2", 1, "a")])
    with pytest.raises(InputError, match="00001.000-002 and 00001.001-003 overlap"):
        merge(str(a.path), [str(b.path)])
