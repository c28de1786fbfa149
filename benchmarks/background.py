"""Time `python -m applications background-temperature`, and measure the coverage of its intervals."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from applications.background.command import background_temperature
from applications.background.estimation import estimate_temperature, interval
from benchmarks.result import report
from tests.helpers.softmax_systems import SoftmaxSystem


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--outputs", type=int, default=100, help="number of outputs per prompt from each timed system")
    parser.add_argument("--temperatures", type=int, default=33)
    parser.add_argument("--systems", type=int, default=100, help="number of simulated systems for measuring coverage")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        system = SoftmaxSystem(n_prompts=options.prompts, n_tokens=32)
        temperatures = np.linspace(0, 1, options.temperatures).tolist()
        grid = system.make_grid(folder / "grid", temperatures, options.outputs, limit=32)
        tested = system.make_store(folder / "tested", 0.07, options.outputs, limit=32, seed=1).path
        start = time.perf_counter()
        background_temperature(str(tested), [str(grid)], out=str(folder / "out"))
        seconds = time.perf_counter() - start
    covered = sum(covers(seed, options.prompts) for seed in range(options.systems))
    report(
        "background",
        {"seconds": round(seconds, 1), "covered": covered},
        "≤ 60 s, and ≥ 90 % of the intervals cover the true temperature",
        seconds <= 60 and covered >= 0.9 * options.systems,
        **vars(options),
    )


def covers(seed: int, n_prompts: int) -> bool:
    """Simulate a system at a random temperature. Return whether the estimated interval contains this temperature."""
    temperature = float(np.random.default_rng([seed, 1]).uniform(0.03, 0.97))
    systems = SoftmaxSystem(seed, n_prompts).systems(temperature, 32, 32)
    found = interval(estimate_temperature(systems, 1000, 0).mean_temperature(), n_prompts)
    return found["low"] <= temperature <= found["high"]


if __name__ == "__main__":
    main()
