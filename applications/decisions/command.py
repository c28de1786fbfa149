"""The command ``python -m applications decide``."""

from collections.abc import Sequence
from pathlib import Path

from applications.decisions.pictures import risk_coverage_picture
from applications.decisions.record import (
    check_requests,
    decide_page,
    decide_record,
    decide_table,
    decide_verdict,
    read_questions,
)
from datamodules.table import load_table
from extract.store.store import Store
from probes.report.results import result_folder, write_files


def decide(
    store: str,
    confidences: Sequence[str],
    risk: Sequence[float] = (0.2,),
    level: float = 0.9,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Find confidence thresholds below which to abstain, so that the answers that are given have a guaranteed risk.

    The risk is the expected fraction of wrong answers among the questions at or above the threshold. With the
    probability `level` over the questions of the store, the returned threshold has at most the requested risk.

    Args:
        store: Folder of the store. It must contain samples and grades.
        confidences: Confidences of the questions: folders of saved probes that were trained on other questions, or
            FILE:COLUMN for columns of Parquet or CSV files, such as the out-of-fold predictions of `probes compare`.
        risk: One or more requested risks between 0 and 1. Each has its own threshold and guarantee.
        level: Probability with which each guarantee holds.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the page, record, table and pictures. The default is runs/decide-STORE.
        seed: Seed for the order of the questions in the test, the random halves and the resampling.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or there are too few questions.
    """
    with result_folder("decide", [store], out, seed, n_resamples) as (folder, final):
        check_requests(risk, level)
        opened = Store.open(store)
        decided = read_questions(opened, load_table(opened, grader), confidences)
        record = decide_record(decided, risk, level, n_resamples, seed)
        plots = {"risk_coverage": risk_coverage_picture(record)}
        files = {"decide.md": decide_page(record, list(plots)), "decide.json": record}
        write_files(folder, {**files, "decide.parquet": decide_table(decided, record)}, plots)
    print(f"{decide_verdict(record)}Decisions: {final / 'decide.md'}")
    return final
