"""Measure the peak memory of `sample` and `read` for 480 and for 48,000 questions, on a tiny random model."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.result import report
from tests.helpers.tiny import save_model, tiny_model, write_questions


def peak_mb(arguments: list[str]) -> float:
    """Run Python with the given arguments, and return its peak resident memory in MB (10⁶ bytes)."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Run the memory benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=480)
    parser.add_argument("--large", type=int, default=48_000)
    options = parser.parse_args()
    peaks: dict[str, dict[int, float]] = {"sample": {}, "read": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(tiny_model(), folder / "model")
        for n in (options.small, options.large):
            questions, store = write_questions(folder / f"{n}.jsonl", n), folder / f"store-{n}"
            common = ["--store", str(store), "--model", str(folder / "model")]
            sampling = ["--questions", str(questions), "--k", "2", "--policy.max_new_tokens", "4"]
            peaks["sample"][n] = peak_mb(["-m", "extract", "sample", *common, *sampling])
            peaks["read"][n] = peak_mb(["-m", "extract", "read", *common])
    ratios = {command: of[options.large] / of[options.small] for command, of in peaks.items()}
    report(
        "memory",
        ratios,
        "equal within 10 %",
        all(0.9 <= ratio <= 1.1 for ratio in ratios.values()),
        peak_mb=peaks,
        model="tiny random Llama",
    )


if __name__ == "__main__":
    main()
