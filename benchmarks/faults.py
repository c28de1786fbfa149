"""Kills, a full disk, and several workers: the same bytes as an undisturbed run, and no finished file written twice.

Runs the real commands on a tiny random model. The full disk is a small tmpfs, for which mounting has to be allowed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.result import report
from benchmarks.tiny import save_model, tiny_model, write_questions

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


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A tmpfs at a folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_disk(commands: Commands, folder: Path, undisturbed: dict[str, bytes]) -> dict[str, Any]:
    """Sample onto a disk that is too small, look at what is there, make room, and go on."""
    pages = sum(-(-len(data) // 4096) for data in undisturbed.values())
    with small_disk(folder, 2 * pages) as disk:  # half of what is needed
        store = disk / "store"
        status, said = commands.finish("sample", store)
        lines = [line for line in said.splitlines() if line.startswith("error:")]
        whole = all(undisturbed[name] == data for name, data in content(store).items())
        n_files = len(finished(store))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again, _ = commands.finish("sample", store)
        same = content(store) == undisturbed
    return {
        "status": status,
        "lines": len(lines),
        "said": lines[0].replace(str(folder), "DISK") if lines else said[-300:],
        "finished files": n_files,
        "whole": whole,
        "goes on": again == 0 and same,
    }


def main() -> None:
    """Print what held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--questions", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands(folder, options.questions)
        commands.finish("sample", folder / "undisturbed")
        sampled = content(folder / "undisturbed")
        commands.finish("read", folder / "undisturbed")
        undisturbed = content(folder / "undisturbed")

        killed = {
            "sample": kill_often(commands, "sample", folder / "killed", options.kills, spread=0.3),
            "read": kill_often(commands, "read", folder / "killed", options.kills, spread=0.03),
        }
        killed_same = content(folder / "killed") == undisturbed
        workers = {}
        for count in (1, 2, 3):
            store = folder / f"workers-{count}"
            statuses = [commands.finish(command, store, count)[0] for command in ("sample", "read")]
            workers[str(count)] = statuses == [0, 0] and content(store) == undisturbed
        disk = fill_disk(commands, folder / "disk", sampled)

    calm = all(not counts["finished files changed"] and not counts["last run failed"] for counts in killed.values())
    full = disk["status"] not in (0, None) and disk["lines"] == 1 and disk["whole"] and disk["goes on"]
    report(
        "faults",
        {
            "kills": killed,
            "bytes after kills as undisturbed": killed_same,
            "same bytes by workers": workers,
            "full disk": disk,
        },
        "no finished file changed; the bytes of an undisturbed run; one line and status 2 on a full disk",
        calm and killed_same and all(workers.values()) and full,
        questions=options.questions,
        files=len(undisturbed),
        model="tiny random Llama",
    )


if __name__ == "__main__":
    main()
