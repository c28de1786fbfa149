"""Run every benchmark in a separate process, and write a table of the results to runs/benchmarks.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = (
    "quality",
    "prompts",
    "comparison",
    "sequence",
    "prefixes",
    "planted",
    "audit",
    "budget",
    "coverage",
    "latent",
    "greedy",
    "draws",
    "logprobs",
    "parity",
    "harness",
    "confidence",
    "sampling",
    "grid",
    "hidden",
    "layer",
    "attach",
    "stream",
    "memory",
    "faults",
    "ray_faults",
    "served",
    "served_rate",
    "served_faults",
    "vllm",
    "serving",
    "scale",
    "ray_rate",
    "golds",
    "sets",
    "sweep",
    "closed_form",
    "solvers",
    "streamed",
    "trainer",
    "entropy_profile",
    "rollout",
    "read",
    "prefix",
    "signals",
    "passk",
    "vote",
    "models",
    "decisions",
    "novelty",
    "likelihood",
    "domains",
    "background",
)
PAGE = Path(__file__).parents[1] / "runs" / "benchmarks.md"


def run(name: str) -> dict[str, Any] | None:
    """Run a benchmark and return the last line of its output, or None if it failed."""
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    print(lines[-1] if lines else f"{name}: no output, status {done.returncode}", flush=True)
    return json.loads(lines[-1]) if done.returncode == 0 and lines else None


def page(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    rows = [
        f"| `python -m benchmarks.{r['name']}` | {short(r['value'])} | {r['bar']} | {'yes' if r['holds'] else '**no**'} | {r['device']} | {r['date']} |"
        for r in results
    ]
    versions = ", ".join(f"{name} {number}" for name, number in results[0]["versions"].items())
    return "\n".join(
        [
            "# Benchmarks",
            "",
            f"Written by `make bench` with {versions}. To compare two times, both are measured "
            "alternately in one process, and the ratio is the median over all pairs.",
            "",
            "| command | figure | bar | holds | device | date |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def short(value: Any) -> str:
    """Format a value for a table cell."""
    if isinstance(value, dict) and value.keys() == {"value", "low", "high"} and value["low"] is not None:
        return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {short(one)}" for key, one in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> int:
    """Run all benchmarks, and return 0 if every benchmark meets its target."""
    results = [run(name) for name in NAMES]
    finished = [result for result in results if result is not None]
    if finished:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(finished), encoding="utf-8")
    return 0 if len(finished) == len(NAMES) and all(result["holds"] for result in finished) else 1


if __name__ == "__main__":
    sys.exit(main())
