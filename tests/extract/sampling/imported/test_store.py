"""Tests of imported stores: repeated and interrupted imports, damaged files, local copies, probes and applications."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import train
from applications.models.command import models
from applications.passk.command import passk
from applications.voting.command import vote
from extract.__main__ import COMMANDS
from extract.commands import grade, read, sample
from extract.errors import InputError
from extract.recipe import StoreRecipe
from extract.running.cli import run
from extract.sampling.imported.command import import_log
from extract.store.grades import Grades
from extract.store.identity import member_stores
from extract.store.store import Store
from extract.store.verify import verify
from probes import load_probe
from tests.helpers.logs import INSPECT, LM_EVAL, write_lines


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the time of all data files."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def answers_to(n: int, k: int, seed: int = 0) -> list[dict[str, object]]:
    """Return the lines of a file with k answers to each of n questions."""
    right = np.random.default_rng(seed).random((n, k)) < np.linspace(0.1, 0.9, n)[:, None]
    return [
        {
            "id": f"q{i}",
            "text": f"Say {i}",
            "references": ["x"],
            "answer": "x" if right[i, j] else "no",
            "score": int(right[i, j]),
        }
        for i in range(n)
        for j in range(k)
    ]


def test_importing_the_same_log_again_writes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "new" / "store"
    import_log(str(store), str(INSPECT), "inspect")
    before = files(store)
    import_log(str(store), str(INSPECT.with_suffix(".eval")), "inspect")
    after = files(store)
    assert {name: content for name, (content, _) in after.items()} == {
        name: content for name, (content, _) in before.items()
    }
    assert [name for name in before if before[name] != after[name]] in ([], ["manifest.json"])
    assert [path.name for path in store.parent.iterdir()] == ["store"]


def test_another_log_in_the_same_store_is_refused(tmp_path: Path) -> None:
    rows = answers_to(3, 2)
    path = write_lines(tmp_path / "answers.jsonl", rows)
    import_log(str(tmp_path / "store"), str(path), "jsonl")
    with pytest.raises(InputError, match="differs in .*policy.request.tool: found 'jsonl', expected 'lm_eval'"):
        import_log(str(tmp_path / "store"), str(LM_EVAL), "lm-eval")
    write_lines(path, [{**rows[0], "score": 1 - int(str(rows[0]["score"]))}, *rows[1:]])
    with pytest.raises(InputError, match="differs in policy.request.answers: found '[0-9a-f]+', expected"):
        import_log(str(tmp_path / "store"), str(path), "jsonl")


def test_an_interrupted_import_leaves_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Grades.write

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Grades, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        import_log(str(tmp_path / "store"), str(INSPECT), "inspect")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)  # as after a kill
    with pytest.raises(KeyboardInterrupt):
        import_log(str(tmp_path / "store"), str(INSPECT), "inspect")
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name.startswith(".store.")
    assert member_stores(tmp_path) == []
    monkeypatch.setattr(Grades, "write", written)
    store = import_log(str(tmp_path / "store"), str(INSPECT), "inspect")
    assert not unfinished.exists()
    verify(str(store.path))
    assert store.grades.missing("inspect_match") == []


def test_damaged_and_deleted_files_are_written_again(tmp_path: Path) -> None:
    store = import_log(str(tmp_path / "store"), str(INSPECT), "inspect")
    before = {name: content for name, (content, _) in files(store.path).items()}
    (part,) = store.samples.ranges()
    store.samples.file(part).write_bytes(b"damaged")
    store.grades.file("inspect_match", part).unlink()
    import_log(str(store.path), str(INSPECT), "inspect")
    assert {name: content for name, (content, _) in files(store.path).items()} == before


@pytest.mark.slow
def test_the_command_line_imports_a_log_and_refuses_to_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, options = str(tmp_path / "store"), ["--source", "inspect", "--path", str(INSPECT)]
    assert run(COMMANDS, "extract", ["import", *options, "--store", store]) == 0
    assert run(COMMANDS, "extract", ["sample", "--store", store, "--n_questions", "2"]) == 2
    assert "sampler: found 'imported-1', expected 'local-2'" in capsys.readouterr().err
    with pytest.raises(InputError, match="`sampler` to draw answers, but got 'imported'"):
        sample(str(tmp_path / "other"), StoreRecipe(sampler="imported", n_questions=2))


def test_answers_without_references_can_only_use_the_scores_of_the_log(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "references"} for row in answers_to(3, 2)]
    store = import_log(str(tmp_path / "store"), str(write_lines(tmp_path / "a.jsonl", rows)), "jsonl")
    assert store.grades.names() == ["score"]
    with pytest.raises(InputError, match="to have references, but 3 of 3 have none, for example 'q0'"):
        grade(str(store.path), "short")


@pytest.mark.slow
def test_applications_accept_an_unknown_temperature(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "answers.jsonl", answers_to(30, 6))
    store = import_log(str(tmp_path / "store"), str(path), "jsonl")
    folder = passk(str(store.path), k=[1, 2], out=str(tmp_path / "passk"), n_resamples=100)
    record = json.loads((folder / "passk.json").read_text(encoding="utf-8"))
    assert record["stores"][0]["temperature"] is None
    assert "temperature unknown, top-p unknown, top-k unknown, unknown token limit" in (folder / "passk.md").read_text(
        encoding="utf-8"
    )
    folder = vote(str(store.path), out=str(tmp_path / "vote"), n_resamples=100)
    assert json.loads((folder / "vote.json").read_text(encoding="utf-8"))["temperatures"] == [None]


@pytest.mark.slow
def test_stores_of_two_files_are_compared(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        path = write_lines(tmp_path / f"{name}.jsonl", answers_to(30, 3, seed))
        import_log(str(tmp_path / name), str(path), "jsonl")
    folder = models([str(tmp_path / "a"), str(tmp_path / "b")], out=str(tmp_path / "models"), n_resamples=100)
    assert json.loads((folder / "models.json").read_text(encoding="utf-8"))["n_questions"] == 30


def test_a_local_copy_reads_signals_and_a_probe_is_trained_on_them(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "answers.jsonl", answers_to(60, 4))
    store = import_log(str(tmp_path / "store"), str(path), "jsonl")
    with pytest.raises(InputError, match="signals from a local copy of 'unknown', but it has none"):
        read(str(store.path))
    read(str(store.path), model=str(tiny_folder))
    read(str(store.path), ["tokens"], "sample", model=str(tiny_folder))
    assert "tokenized the texts of 240 answers, because their token ids are unknown" in capsys.readouterr().err
    options = [
        f"--data.store={store.path}",
        "--data.recipe=null",
        "--data.grader=score",
        f"--runs={tmp_path / 'runs'}",
        "--n_resamples=20",
    ]
    folder = train.run(options)
    assert "`unknown` (known by name only) answered" in (folder / "report.md").read_text(encoding="utf-8")
    probe = load_probe(folder / "probe")
    assert probe.config["decoding"]["temperature"] is None
    assert Store.open(store.path).reader is not None
