"""Write the result folder of a command: Markdown page, JSON record, Parquet tables and plots."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.store.store import Store
from probes.metrics.intervals import check_resampling

FORMAT_VERSION = 1
_PACKAGES = "confidence-probes lightning torch transformers torchmetrics numpy scikit-learn safetensors".split()


@contextmanager
def result_folder(
    command: str, stores: Sequence[str], out: str | None, seed: int, n_resamples: int = 2000
) -> Iterator[tuple[Path, Path]]:
    """Yield a temporary folder and its final path. The folder is moved there on success, and removed on failure.

    `out` defaults to runs/COMMAND-STORE.

    Raises:
        InputError: If `seed` or `n_resamples` is out of range, or if the final path exists or is not writable.
    """
    check_resampling(seed, n_resamples)
    final = Path(out or f"runs/{command}-{'-'.join(Path(store).resolve().name for store in stores)}")
    path = str(final)
    if final.exists():
        raise InputError(
            f"Expected `out` to be a new folder, but {path!r} already exists. Delete it or pass a different --out."
        )
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        reason = f"creating {path!r} failed: {error.strerror}"
        raise InputError(f"Expected `out` to be a writable path, but {reason}. Pass a different --out.") from error
    try:
        yield unfinished, final
        unfinished.chmod(0o755)
        unfinished.rename(final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_files(
    folder: Path, files: Mapping[str, str | dict[str, Any] | pa.Table], plots: Mapping[str, Figure]
) -> None:
    """Write texts, JSON records and Parquet tables to a folder, and plots to ``plots/NAME.png`` and ``NAME.pdf``."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        plot.savefig(folder / "plots" / f"{name}.png")
        with matplotlib.rc_context({"pdf.fonttype": 42}):  # many journals refuse Type 3 fonts
            plot.savefig(folder / "plots" / f"{name}.pdf")
    for name, content in files.items():
        if isinstance(content, pa.Table):
            pq.write_table(content, folder / name)
        else:
            text = content if isinstance(content, str) else json.dumps(content, indent=1, allow_nan=False) + "\n"
            (folder / name).write_text(text, encoding="utf-8")


def record_header(store: Store, table: QuestionTable, seed: int, n_resamples: int = 0) -> dict[str, Any]:
    """Return the header of a command's record. `n_resamples` is 0 if the command does not resample questions."""
    return {
        "format_version": FORMAT_VERSION,
        "identity": store.sha256,
        "policy": store.identity["policy"],
        "datasets": sorted({question.dataset for question in store.questions}),
        "grader": table.grader,
        "seed": seed,
        "n_resamples": n_resamples,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of all packages that affect the results."""
    return {package: version(package) for package in _PACKAGES}
