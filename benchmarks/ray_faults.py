"""Kill actors of the Ray engine at random moments, fill the disk, and kill the whole cluster.

If only actors are killed, the job must recover without help. It must write the same files as an uninterrupted local
run, and never change a finished file. If the disk is full or the cluster is lost, the job must print one error line.
Rerunning the command must continue the job.
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
from pathlib import Path
from typing import Any

from benchmarks.faults import small_disk
from benchmarks.result import report
from tests.helpers.killing import ENVIRONMENT, Commands, changed, content, finished
from tests.helpers.ray_cluster import actors_of, children

ON_RAY = ["--engine", "ray", "--actors", "2"]


def start(commands: Commands, command: str, store: Path) -> subprocess.Popen[str]:
    """Start a command with the Ray engine, on a new Ray cluster."""
    line = [sys.executable, *commands.line(command, store), *ON_RAY]
    return subprocess.Popen(line, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def kill_actors(commands: Commands, command: str, store: Path, kills: int, spread: float) -> dict[str, int]:
    """Run a command with the Ray engine, and kill `kills` random actors, one at a time.

    Before each kill, wait until another file is finished, and then up to `spread` seconds more.
    """
    chance, n_kills, n_changed, before = random.Random(command), 0, 0, finished(store)
    job = start(commands, command, store)
    while job.poll() is None and n_kills < kills:
        actors = actors_of(job.pid)
        if len(finished(store)) > len(before) and actors:
            time.sleep(chance.uniform(0, spread))
            try:
                os.kill(chance.choice(actors), signal.SIGKILL)
            except ProcessLookupError:  # the actor of an earlier kill
                continue
            n_kills += 1
            after = finished(store)
            n_changed += changed(before, after)
            before = after
        time.sleep(0.05)
    said = job.communicate()[1]
    n_changed += changed(before, finished(store))
    lines = [line for line in said.splitlines() if "Traceback" in line or line.startswith("error:")]
    return {"kills": n_kills, "finished files changed": n_changed, "status": job.returncode, "errors": len(lines)}


def lose_cluster(commands: Commands, store: Path) -> dict[str, Any]:
    """Kill all processes of the cluster during `sample`, then run `sample` again."""
    job = start(commands, "sample", store)
    while job.poll() is None and not finished(store):
        time.sleep(0.01)
    lost = time.perf_counter()
    for process in [*children(job.pid), *actors_of(job.pid)]:
        os.kill(process, signal.SIGKILL)
    said = job.communicate()[1]
    seconds, kept = time.perf_counter() - lost, finished(store)
    again = start(commands, "sample", store)
    again.communicate()
    return {
        "status": job.returncode,
        "lines": [line for line in said.splitlines() if line.startswith("error:") or "Traceback" in line],
        "seconds": round(seconds, 1),
        "finished files": len(kept),
        "goes on": again.returncode == 0 and not changed(kept, finished(store)),
    }


def fill_disk(commands: Commands, folder: Path, uninterrupted: dict[str, bytes]) -> dict[str, Any]:
    """Run `sample` on a disk with half of the required space, add space, and run it again."""
    pages = sum(-(-len(data) // 4096) for data in uninterrupted.values())
    with small_disk(folder, 2 * pages) as disk:
        store = disk / "store"
        job = start(commands, "sample", store)
        said = job.communicate()[1]
        lines = [line.replace(str(folder), "DISK") for line in said.splitlines() if line.startswith("error:")]
        is_whole = all(uninterrupted[name] == data for name, data in content(store).items())
        n_files = len(finished(store))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again = start(commands, "sample", store)
        again.communicate()
        goes_on = again.returncode == 0 and content(store) == uninterrupted
    return {
        "status": job.returncode,
        "lines": lines,
        "finished files": n_files,
        "whole": is_whole,
        "goes on": goes_on,
    }


def main() -> None:
    """Run the Ray fault benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--questions", type=int, default=1600)
    parser.add_argument("--spread", type=float, default=0.3, help="maximum delay before a kill, in seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands(folder, options.questions)
        kills, same = dict[str, Any](), dict[str, bool]()
        sampled = dict[str, bytes]()
        for command in ("sample", "read"):
            commands.finish(command, folder / "local")
            kills[command] = kill_actors(commands, command, folder / "ray", options.kills, options.spread)
            same[command] = content(folder / "ray") == content(folder / "local")
            sampled = sampled or content(folder / "local")
        disk = fill_disk(commands, folder / "disk", sampled)
        gone = lose_cluster(commands, folder / "gone")

    expected = {"kills": options.kills, "finished files changed": 0, "status": 0, "errors": 0}
    calm = all(counts == expected for counts in kills.values()) and all(same.values())
    full = disk["status"] == 2 and len(disk["lines"]) == 1 and disk["whole"] and disk["goes on"]
    report(
        "ray_faults",
        {"kills": kills, "bytes as uninterrupted": same, "full disk": disk, "cluster gone": gone},
        "the job finishes by itself; bytes of a local run; no finished file changed; one line for a full disk and a "
        "lost cluster, and the same command continues",
        calm and full and gone["status"] == 2 and len(gone["lines"]) == 1 and gone["goes on"],
        questions=options.questions,
        model="tiny random Llama",
        actors=2,
    )


if __name__ == "__main__":
    main()
