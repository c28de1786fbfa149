"""The command ``python -m applications decide``."""

from collections.abc import Sequence
from pathlib import Path

from applications.decisions.pictures import risk_coverage_picture, routing_picture
from applications.decisions.record import (
    check_requests,
    decide_page,
    decide_record,
    decide_table,
    decide_verdict,
    read_questions,
)
from applications.decisions.routing import routings_record
from applications.decisions.saving import check_probe, save_decisions
from applications.models.panel import read_panel
from datamodules.table import load_table
from extract.errors import InputError
from extract.store.store import Store
from probes.report.results import result_folder, write_files


def decide(
    store: str,
    confidences: Sequence[str] = (),
    risk: Sequence[float] = (0.2,),
    level: float = 0.9,
    probe: str | None = None,
    strong: str | None = None,
    strong_price: float = 1.0,
    shared: bool = False,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Find confidence thresholds for abstention, with a guaranteed bound on the risk.

    The risk at a threshold is the expected error rate on the questions whose confidence is at least the threshold. The
    questions of the store are treated as a random sample. With a probability of at least `level`, the risk at the
    threshold found in this sample is at most the target risk.

    Args:
        store: Folder of the store. It must contain samples and grades.
        confidences: Sources of confidences: folders of saved probes, or FILE:COLUMN for columns of Parquet or CSV
            files, such as the out-of-fold predictions of `probes compare`. Saved probes must have been trained on other
            questions.
        risk: Target risks between 0 and 1. Each has its own threshold and guarantee.
        level: Probability that each guarantee holds.
        probe: Folder of a saved probe. The certified thresholds are stored in its config.json for use by
            `probes.abstain` and `probes.route`. `confidences` must be out-of-fold predictions of the same kind of
            probe. If the probe was not trained on the questions of `store`, you can pass its folder as `confidences`
            instead.
        strong: Folder of a store with more accurate answers to the same questions. The Markdown page then includes the
            accuracy and cost of routing. In routing, questions with a confidence below a threshold are answered from
            this store.
        strong_price: Price of a token from `strong`, relative to a token from `store`.
        shared: Whether to evaluate routing only on the questions that both stores have, if their questions differ.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the Markdown page, record, table and plots. The default is runs/decide-STORE.
        seed: Seed for resampling, random splits into halves, and the order of questions in each hypothesis test.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or there are too few questions.
    """
    with result_folder("decide", [store], out, seed, n_resamples) as (folder, final):
        check_requests(risk, level)
        if strong_price <= 0:
            raise InputError(f"Expected `strong_price` to be above 0, but got {strong_price}. Pass 1 for equal prices.")
        opened = Store.open(store)
        if probe is not None:
            check_probe(probe, confidences, opened)
        panel = None if strong is None else read_panel([store, strong], shared, grader)
        decided = read_questions(opened, load_table(opened, grader), confidences)
        record = decide_record(decided, risk, level, n_resamples, seed)
        plots = {"risk_coverage": risk_coverage_picture(record)}
        if panel is not None:
            of_questions = decided.rows, decided.confidences, strong_price
            record["routing"] = routings_record(panel, *of_questions, risk, level, n_resamples, seed)
            plots["routing"] = routing_picture(record["routing"])
        files = {"decide.md": decide_page(record, list(plots)), "decide.json": record}
        write_files(folder, {**files, "decide.parquet": decide_table(decided, record)}, plots)
    print(f"{decide_verdict(record)}Decisions: {final / 'decide.md'}")
    if probe is not None:
        print(f"Thresholds stored in {Path(probe) / 'config.json'}: {save_decisions(probe, record)}")
    return final
