"""Helpers for benchmarks: print a result, and compare the run times of two functions."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import torch


def report(name: str, value: Any, bar: str, holds: bool, **details: Any) -> None:
    """Print the result of a benchmark as one line of JSON.

    Args:
        name: Name of the benchmark.
        value: The measured value, or a dict of named values.
        bar: Description of the target.
        holds: Whether the target is met.
        **details: Other values that explain the result.
    """
    import transformers

    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    )
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(
        json.dumps(
            {
                "name": name,
                "value": value,
                "bar": bar,
                "holds": bool(holds),
                **details,
                "device": device,
                "versions": versions,
                "date": str(date.today()),
            }
        )
    )


def alternating(
    a: Callable[[], object], b: Callable[[], object], pairs: int, warm: int = 2
) -> tuple[float, float, float]:
    """Time two functions alternately in one process.

    Returns three medians over all pairs: the ratio of a's time to b's time, and both times in seconds.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(warm + pairs):
        for which, action in enumerate((a, b)):
            start = time.perf_counter()
            action()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if pair >= warm:
                times[which].append(time.perf_counter() - start)
    ratio = statistics.median(x / y for x, y in zip(*times, strict=True))
    return ratio, statistics.median(times[0]), statistics.median(times[1])
