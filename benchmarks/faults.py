"""Test how the `extract` commands handle kills, a full disk and several workers, using a tiny random model.

The files must be identical to those of an uninterrupted run, and no finished file may be written twice. The full disk
is a small tmpfs, so mounting must be allowed.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.result import report
from tests.helpers.killing import Commands, content, finished, kill_often


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a small tmpfs on a folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_disk(commands: Commands, folder: Path, uninterrupted: dict[str, bytes]) -> dict[str, Any]:
    """Run `sample` on a disk that is too small, check the files, free some space, and continue."""
    pages = sum(-(-len(data) // 4096) for data in uninterrupted.values())
    with small_disk(folder, 2 * pages) as disk:  # half of what is needed
        store = disk / "store"
        status, said = commands.finish("sample", store)
        lines = [line for line in said.splitlines() if line.startswith("error:")]
        whole = all(uninterrupted[name] == data for name, data in content(store).items())
        n_files = len(finished(store))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again, _ = commands.finish("sample", store)
        same = content(store) == uninterrupted
    return {
        "status": status,
        "lines": len(lines),
        "said": lines[0].replace(str(folder), "DISK") if lines else said[-300:],
        "finished files": n_files,
        "whole": whole,
        "goes on": again == 0 and same,
    }


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--questions", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands(folder, options.questions)
        commands.finish("sample", folder / "uninterrupted")
        sampled = content(folder / "uninterrupted")
        commands.finish("read", folder / "uninterrupted")
        uninterrupted = content(folder / "uninterrupted")

        killed = {
            "sample": kill_often(commands, "sample", folder / "killed", options.kills, spread=0.3),
            "read": kill_often(commands, "read", folder / "killed", options.kills, spread=0.03),
        }
        killed_same = content(folder / "killed") == uninterrupted
        workers = {}
        for count in (1, 2, 3):
            store = folder / f"workers-{count}"
            statuses = [commands.finish(command, store, count)[0] for command in ("sample", "read")]
            workers[str(count)] = statuses == [0, 0] and content(store) == uninterrupted
        disk = fill_disk(commands, folder / "disk", sampled)

    calm = all(not counts["finished files changed"] and not counts["last run failed"] for counts in killed.values())
    full = disk["status"] not in (0, None) and disk["lines"] == 1 and disk["whole"] and disk["goes on"]
    report(
        "faults",
        {
            "kills": killed,
            "bytes after kills as uninterrupted": killed_same,
            "same bytes by workers": workers,
            "full disk": disk,
        },
        "no finished file changed; the bytes of an uninterrupted run; one line and status 2 on a full disk",
        calm and killed_same and all(workers.values()) and full,
        questions=options.questions,
        files=len(uninterrupted),
        model="tiny random Llama",
    )


if __name__ == "__main__":
    main()
