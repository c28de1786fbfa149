"""Compare streamed and in-memory fits, and measure the cost of a streamed fit to 20 GB of features.

The cost is the run time and the maximum resident memory of `train.py`. The memory includes libraries and mapped pages
of the store's files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.result import report
from datamodules import FeatureDataModule, batches, streamed_features
from probes.fitting.quiet import quiet_lightning
from probes.registry import METHODS
from probes.report.report import Report
from tests.helpers.fitting import descend
from tests.helpers.synthetic import make_store

PROBES = ("ridge", "logistic", "difference_of_means", "linear")
CLASSES = {"ridge": "Ridge", "logistic": "Logistic", "difference_of_means": "DifferenceOfMeans", "linear": "Linear"}
#: Passes over all features: for checksums, finite rows, the fit (twice) and the plot of the layers.
PASSES = 5


class States:
    """Synthetic hidden states [question, layer, d_model], generated on demand when indexed by question.

    Args:
        accuracy: Accuracies, [question]. They shift the first coordinate in the upper half of the layers.
        layers: Number of layers.
        width: Width of a state.
    """

    def __init__(self, accuracy: NDArray[np.float64], layers: int, width: int) -> None:
        self.accuracy, self.shape = accuracy, (len(accuracy), layers, width)

    def __getitem__(self, questions: slice) -> NDArray[np.float32]:
        accuracy = self.accuracy[questions]
        rng = np.random.default_rng(questions.start)
        states = rng.standard_normal((len(accuracy), *self.shape[1:]), np.float32)
        states[:, self.shape[1] // 2 :, 0] += 4 * accuracy[:, None]
        return states


def compared(folder: Path) -> tuple[dict[str, float], bool]:
    """Fit the probes to a small store, and save them to subfolders.

    Returns the largest difference between in-memory and streamed confidences for each probe. Also returns whether the
    saved probes are the same for 1, 2 and 7 workers.
    """
    accuracy = np.random.default_rng(0).random(600)
    small = States(accuracy, 6, 48)[0 : len(accuracy)]
    make_store(folder / "small", small, accuracy)
    streamed_features.CHUNK_BYTES, batches.BUFFER_BYTES = 2**14, 2**18  # 19 chunks per layer, and three buffers
    differences, files = {}, []
    for name in PROBES:
        found = {}
        for workers in (0, 1, 2, 7):
            data = FeatureDataModule(str(folder / "small"), in_memory=not workers, num_workers=max(workers, 1))
            data.setup()
            torch.manual_seed(0)
            module = METHODS[name].load()()
            descend(module, data, epochs=20, every=10)
            made = Report(module, data, seed=0, n_resamples=100)
            made.probe().save(folder / name / str(workers))
            found[workers] = made.confidences[module.name]
        differences[name] = float((found[0] - found[1]).nan_to_num().abs().max())
        files += [(folder / name / "1" / file, folder / name) for file in ("config.json", "model.safetensors")]
    same = all((of / n / file.name).read_bytes() == file.read_bytes() for file, of in files for n in ("2", "7"))
    return differences, same


def read_seconds(files: list[Path]) -> float:
    """Return the time to read files from the disk, without the page cache."""
    buffer, spent = bytearray(2**24), 0.0
    for path in files:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            while file.readinto(buffer):
                pass
            spent += time.perf_counter() - start
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return spent


def train(store: Path, name: str, workers: int) -> tuple[float, float]:
    """Run `train.py` on a store with streamed features. Returns the peak memory in GiB and the time in seconds."""
    command = [sys.executable, "train.py", f"--model={CLASSES[name]}", "--data.recipe=null", "--data.grader=made"]
    command += [f"--data.store={store}", "--data.in_memory=false", f"--data.num_workers={workers}"]
    command += ["--trainer.logger=false", f"--runs={store.parent / 'runs'}", "--n_resamples=200"]
    command += ["--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=1"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_maxrss / 2**20, time.perf_counter() - start


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--layers", type=int, default=33)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--probes", nargs="+", default=["ridge"], choices=PROBES)
    options = parser.parse_args()
    quiet_lightning()
    value: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        value["largest difference"], value["same for 1, 2 and 7 workers"] = compared(Path(name))
        n = int(options.gigabytes * 1e9 / (4 * options.layers * options.width))
        accuracy = np.random.default_rng(0).random(n)
        states: Any = States(accuracy, options.layers, options.width)
        store = make_store(Path(name) / "store", states, accuracy, k=4, block_size=512)
        files = sorted((store.path / "signals").rglob("*.safetensors"))
        n_bytes = sum(file.stat().st_size for file in files)
        value["read_GB_per_s"] = n_bytes / 1e9 / read_seconds(files)
        value["GiB"], value["seconds"] = {}, {}
        for probe in options.probes:
            value["GiB"][probe], value["seconds"][probe] = train(store.path, probe, options.workers)
            print(json.dumps(value), file=sys.stderr)
    report(
        "streamed",
        value,
        "differences ≤ 1e-6, same for all numbers of workers, peak ≤ 1.5 GiB",
        max(value["largest difference"].values()) <= 1e-6
        and value["same for 1, 2 and 7 workers"]
        and max(value["GiB"].values()) <= 1.5,
        GB=n_bytes / 1e9,
        questions=n,
        read_limit_seconds=PASSES * n_bytes / 1e9 / value["read_GB_per_s"],
        passes=PASSES,
        **{key: getattr(options, key) for key in ("layers", "width", "workers")},
    )


if __name__ == "__main__":
    main()
