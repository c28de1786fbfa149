"""Compare the speed of `sample` on two Ray actors and on two local workers (as with `torchrun`)."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.result import report
from tests.helpers.killing import ENVIRONMENT, Commands, content

LOCAL = ({"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"})


def timed(commands: Commands, store: Path, environments: tuple[dict[str, str], ...], options: list[str]) -> list[float]:
    """Run `sample` in one process per environment. Return the start-up, work and total times in seconds.

    The work time is measured from the first finished shard to the last.
    """
    line, begun = [sys.executable, *commands.line("sample", store), *options], time.time()
    jobs = [subprocess.Popen(line, env=ENVIRONMENT | one, stderr=subprocess.DEVNULL) for one in environments]
    if any(job.wait() for job in jobs):
        raise RuntimeError(f"a process failed: {' '.join(line)}")
    times = [path.stat().st_mtime for path in (store / "samples").glob("*.json")]
    return [min(times) - begun, max(times) - min(times), time.time() - begun]


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=200)
    options = parser.parse_args()
    on_ray, local, same = [], [], []
    with tempfile.TemporaryDirectory() as name:
        commands = Commands(Path(name), 4 * options.blocks)
        for pair in range(options.pairs):
            stores = [Path(name) / f"{side}-{pair}" for side in ("ray", "local")]
            on_ray.append(timed(commands, stores[0], ({},), ["--engine", "ray", "--actors", "2"]))
            local.append(timed(commands, stores[1], LOCAL, []))
            same.append(content(stores[0]) == content(stores[1]))
    ratio = statistics.median(a[1] / b[1] for a, b in zip(on_ray, local, strict=True))
    names = ("start-up", "work", "total")
    sides = {
        side: {
            name: round(statistics.median(column), 1)
            for name, column in zip(names, zip(*runs, strict=True), strict=True)
        }
        for side, runs in (("ray", on_ray), ("local", local))
    }
    report(
        "ray_rate",
        round(ratio, 3),
        "at most 1.2 times the time of two local workers after start-up, and the same bytes",
        ratio <= 1.2 and all(same),
        seconds=sides,
        pairs=options.pairs,
        blocks=options.blocks,
        model="tiny random Llama",
    )


if __name__ == "__main__":
    main()
