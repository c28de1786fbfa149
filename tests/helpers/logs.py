"""Logs of other tools: files that the tools wrote, and altered copies of them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.experiments import ROOT

FOLDER = ROOT / "tests/data/imported"
INSPECT = FOLDER / "inspect.json"
(LM_EVAL,) = FOLDER.glob("samples_*.jsonl")
(LM_EVAL_RESULTS,) = FOLDER.glob("results_*.json")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def altered_inspect(folder: Path, alter: Callable[[dict[str, Any]], object]) -> Path:
    """Write a copy of the log of Inspect after `alter` has changed it in place."""
    log = json.loads(INSPECT.read_text(encoding="utf-8"))
    alter(log)
    path = folder / "log.json"
    path.write_text(json.dumps(log), encoding="utf-8")
    return path


def altered_lm_eval(
    folder: Path, alter: Callable[[list[dict[str, Any]], dict[str, Any]], object], with_results: bool = True
) -> Path:
    """Write a copy of the log of lm-evaluation-harness after `alter` has changed its lines and results in place."""
    rows, results = lines_of(LM_EVAL), json.loads(LM_EVAL_RESULTS.read_text(encoding="utf-8"))
    alter(rows, results)
    if with_results:
        (folder / LM_EVAL_RESULTS.name).write_text(json.dumps(results), encoding="utf-8")
    return write_lines(folder / LM_EVAL.name, rows)


def as_archive(log: dict[str, Any], path: Path, finished: bool = True) -> Path:
    """Write a log of Inspect as an `.eval` archive. An unfinished one has its header in the journal."""
    header = {name: value for name, value in log.items() if name != "samples"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json" if finished else "_journal/start.json", json.dumps(header))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    return path
