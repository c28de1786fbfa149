"""Run every benchmark in turn, each in a process of its own; a line of JSON for each."""

from __future__ import annotations

import subprocess
import sys

NAMES = ("quality", "hidden", "greedy", "draws", "logprobs", "confidence")

if __name__ == "__main__":
    failed = 0
    for name in NAMES:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, text=True, check=False
        )
        lines = done.stdout.strip().splitlines()
        print(lines[-1] if lines else f"{name}: no output (status {done.returncode})", flush=True)
        failed += done.returncode != 0 or not lines or '"holds": true' not in lines[-1]
    sys.exit(min(failed, 1))
