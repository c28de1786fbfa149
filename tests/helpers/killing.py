"""Helpers that kill commands on a tiny model at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers.forking import Forked
from tests.helpers.tiny import save_model, tiny_model, write_questions

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Commands:
    """The commands `sample` and `read`, as processes on a tiny model and a few questions."""

    def __init__(self, folder: Path, n_questions: int) -> None:
        self.folder = folder
        save_model(tiny_model(), folder / "model")
        write_questions(folder / "questions.jsonl", n_questions)

    def line(self, command: str, store: Path) -> list[str]:
        """Return the command line."""
        model = ["--store", str(store), "--model", str(self.folder / "model")]
        if command == "read":
            return ["-m", "extract", "read", *model]
        questions = ["--questions", str(self.folder / "questions.jsonl"), "--k", "4", "--block_size", "4"]
        return [
            "-m",
            "extract",
            "sample",
            *model,
            *questions,
            "--policy.max_new_tokens",
            "24",
            "--policy.temperature",
            "1",
        ]

    def start(self, command: str, store: Path) -> Forked:
        """Start the command so that it handles Ctrl-C even if this process runs in the background."""
        return Forked(self.line(command, store)[2:])

    def finish(self, command: str, store: Path, workers: int = 1) -> tuple[int, str]:
        """Run the command to its end, and return its exit status and standard error."""
        if workers == 1:
            process = self.start(command, store)
            said = process.communicate()[1]
            return int(process.returncode or 0), said
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        done = subprocess.run(
            [*launcher, *self.line(command, store)], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr


def content(store: Path) -> dict[str, bytes]:
    """Return the content of every file by name, except lock files."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def finished(store: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and modification time of every finished file and of its sidecar."""
    stamps = {}
    for voucher in store.rglob("*.json"):
        for path in (voucher, voucher.with_suffix(".parquet"), voucher.with_suffix(".safetensors")):
            if path.is_file() and voucher.parent != store:
                stamps[str(path.relative_to(store))] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return stamps


def kill_often(commands: Commands, command: str, store: Path, kills: int, spread: float) -> dict[str, int]:
    """Start a command and kill it at random moments, several times, then let it finish.

    Args:
        commands: The commands.
        command: Name of the command to run.
        store: The store.
        kills: Number of kills.
        spread: Maximum time in seconds between the first finished file of a run and the kill.

    Returns:
        Counts of kills during work, of finished files that were changed, and of runs that failed.
    """
    chance, n_kills, n_changed = random.Random(command), 0, 0
    before = finished(store)
    while n_kills < kills:
        process = commands.start(command, store)
        while process.poll() is None and len(finished(store)) == len(before):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, spread))
        n_kills += process.poll() is None
        if process.poll() is not None:
            raise RuntimeError(f"{command} ended before its kill {n_kills + 1}: {process.communicate()[1][-500:]}")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        n_changed += changed(before, after := finished(store))
        before = after
    status, _ = commands.finish(command, store)
    return {
        "kills": n_kills,
        "finished files changed": n_changed + changed(before, finished(store)),
        "last run failed": int(status != 0),
    }


def changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> int:
    """Return how many finished files have changed."""
    return sum(after.get(name) != stamp for name, stamp in before.items())
