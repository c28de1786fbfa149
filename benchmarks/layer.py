"""Measure the bytes read from disk and the memory growth when loading one layer of a 1 GB store."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import report
from extract.store.shards import Block

WIDTH = 1024  # float32 values per row


def make_store(folder: Path, layers: int, megabytes: int, block_size: int) -> None:
    """Make a store with random hidden states: `layers` layers of `megabytes` MiB each."""
    from extract import Decoding, Question, Store
    from extract.policy import Identity, ModelIdentity, Policy
    from extract.questions import questions_hash

    n = megabytes * 2**20 // (4 * WIDTH)
    questions = [Question(id=f"q{i}", dataset="made", text=f"Say {i}.", references=("x",)) for i in range(n)]
    model = ModelIdentity("made", None, "a" * 64, "float32", "b" * 64, "c" * 64)
    identity = Identity(Policy(model, Decoding()), questions_hash(questions), block_size)
    store = Store.create(folder, identity, questions)
    for block in range(store.questions.n_blocks):
        rows = torch.randn(layers, store.questions.n_rows(Block(block)), WIDTH)
        store.signals.write("hidden", Block(block), {f"{layer}/last_prompt": rows[layer] for layer in range(layers)})


def measure(folder: Path, key: str, small: Path) -> dict[str, float]:
    """Read one layer, and return three sizes in bytes.

    `layer` is the size of the layer, and `taken` is the total size of all tensors read for it. `grown` is the peak
    increase in this process's resident memory. A small store is read first, so that the reading code is already in
    memory.
    """
    from extract import Store
    from extract.store import signals

    taken: list[int] = []

    class Counting:
        """An open file that counts the bytes that are read from it."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._opened = signals_open(*args, **options)

        def __enter__(self) -> Any:
            self._file = self._opened.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._opened.__exit__(*error)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_slice(self, key: str) -> Any:
            return CountingSlice(self._file.get_slice(key))

    class CountingSlice:
        """A tensor in an open file."""

        def __init__(self, rows: Any) -> None:
            self._rows = rows

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rows, name)

        def __getitem__(self, place: slice) -> torch.Tensor:
            part: torch.Tensor = self._rows[place]
            taken.append(part.nbytes)
            return part

    # assigning to a class of safetensors is a type error
    signals_open, signals.safe_open = signals.safe_open, Counting  # type: ignore[misc, assignment]
    Store.open(small).signals.read("hidden", "0/last_prompt")
    taken.clear()
    store = Store.open(folder)
    _ = store.questions  # not part of the measurement
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    layer = store.signals.read("hidden", key)
    return {"layer": layer.nbytes, "taken": sum(taken), "grown": resident("VmHWM") - before}


def resident(name: str) -> int:
    """Return this process's resident memory in bytes: current if `name` is `VmRSS`, peak if it is `VmHWM`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not report {name}")


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument(
        "--read", type=Path, help="read one layer of this store, print the bytes read and the memory growth, and exit"
    )
    options = parser.parse_args()
    key = f"{options.layers // 2}/last_prompt"
    if options.read is not None:
        print(json.dumps(measure(options.read, key, options.read.with_name("small"))))
        return
    with tempfile.TemporaryDirectory() as name:
        make_store(Path(name) / "store", options.layers, options.megabytes, options.block_size)
        size = sum(path.stat().st_size for path in Path(name).rglob("*.safetensors"))
        make_store(Path(name) / "small", 1, 1, options.block_size)
        command = [sys.executable, "-m", "benchmarks.layer", "--read", f"{name}/store", "--layers", str(options.layers)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    ratios = {"tensor_bytes": found["taken"] / found["layer"], "resident_growth": found["grown"] / found["layer"]}
    report(
        "layer",
        ratios,
        "≤ 1.05 and ≤ 1.2 of the layer's bytes",
        ratios["tensor_bytes"] <= 1.05 and ratios["resident_growth"] <= 1.2,
        store_bytes=size,
        layer_bytes=found["layer"],
        layers=options.layers,
        block_size=options.block_size,
    )


if __name__ == "__main__":
    main()
