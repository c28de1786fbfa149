"""Commands on a tiny model that are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers.tiny import save_model, tiny_model, write_questions

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Commands:
    """`sample` and `read` on a tiny model and some questions, as processes."""

    def __init__(self, folder: Path, n_questions: int) -> None:
        self.folder = folder
        save_model(tiny_model(), folder / "model")
        write_questions(folder / "questions.jsonl", n_questions)

    def line(self, command: str, store: Path) -> list[str]:
        """The command's arguments."""
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

    def start(self, command: str, store: Path) -> subprocess.Popen[str]:
        """Start it, listening to Ctrl-C even where this process runs in the background and does not."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is handled here is not ignored there
        try:
            return subprocess.Popen(
                [sys.executable, *self.line(command, store)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def finish(self, command: str, store: Path, workers: int = 1) -> tuple[int, str]:
        """Run it to its end: status and what it said on standard error."""
        launcher = [sys.executable]
        if workers > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        done = subprocess.run(
            [*launcher, *self.line(command, store)], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr


def content(store: Path) -> dict[str, bytes]:
    """Every file by its name, but for locks."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def finished(store: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every file that is vouched for, and of what vouches for it."""
    stamps = {}
    for voucher in store.rglob("*.json"):
        for path in (voucher, voucher.with_suffix(".parquet"), voucher.with_suffix(".safetensors")):
            if path.is_file() and voucher.parent != store:
                stamps[str(path.relative_to(store))] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return stamps


def kill_often(commands: Commands, command: str, store: Path, kills: int, spread: float) -> dict[str, int]:
    """Start a command again and again, kill it at random moments of its work, then let it finish.

    Args:
        commands: The commands.
        command: Which one.
        store: The store.
        kills: How often.
        spread: Longest time in seconds from the first file that a run finishes to its end.

    Returns:
        Counts: kills while it worked, files finished before that were changed, runs that ended badly.
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
    """How many files that were finished before are others now."""
    return sum(after.get(name) != stamp for name, stamp in before.items())
