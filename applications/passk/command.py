"""The command ``python -m applications passk``."""

from collections.abc import Sequence
from pathlib import Path

from applications.passk.pictures import passk_pictures
from applications.passk.record import load_graded, passk_page, passk_record, passk_summary
from applications.stores import open_stores
from probes.report.results import result_folder, write_files


def passk(
    store: str,
    confidences: Sequence[str] = (),
    k: Sequence[int] | None = None,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Estimate Pass@K, the probability that at least one of K answers is right.

    The command also scores predictions of Pass@K from confidences, extrapolates Pass@K beyond the number of sampled
    answers, and compares temperatures.

    Args:
        store: Folder of a store, or of a temperature grid. It must contain samples and grades.
        confidences: Confidences that predict Pass@K: folders of saved probes, or FILE:COLUMN for columns of Parquet or
            CSV files. A question's confidence must not depend on its grades.
        k: Values of K. Every question must have at least K graded answers. The default is 1, 4, 16 and 64,
            excluding values that are too large.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the Markdown page, record, table and plots. The default is runs/passk-STORE.
        seed: Seed for the bootstrap, the cross-validation folds and the split of the questions into halves.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid or required data are missing.
    """
    with result_folder("passk", [store], out, seed, n_resamples) as (folder, final):
        graded = load_graded(open_stores(store), grader)
        record, table = passk_record(graded, confidences, k, n_resamples, seed)
        plots = passk_pictures(record)
        files = {"passk.md": passk_page(record, list(plots)), "passk.json": record, "passk.parquet": table}
        write_files(folder, files, plots)
    print(f"{passk_summary(record)}\nPass@K: {final / 'passk.md'}")
    return final
