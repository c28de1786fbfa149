"""The commands of ``python -m probes``, as plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datamodules.table import load_table
from extract.store.store import Store
from probes.comparison.out_of_fold import Comparison
from probes.comparison.page import comparison_page, comparison_verdict, transfer_page
from probes.comparison.pictures import comparison_pictures, transfer_picture
from probes.comparison.record import comparison_record, predictions
from probes.comparison.transfer import question_sets, transfer_record
from probes.metrics.intervals import check_resamples, check_seed
from probes.report.results import new_folder, write_files
from probes.training_free.grid import make_grid
from probes.training_free.heat_map import grid_pictures
from probes.training_free.record import grid_record, signals_page, signals_verdict


def compare(
    store: str,
    out: str | None = None,
    probes: Sequence[str] | None = None,
    grader: str | None = None,
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Compare every probe and baseline on a store, out of fold, with intervals and corrected tests.

    Baselines that ask the model are in the table once `python -m extract ask` has put their answers into the store.

    Args:
        store: Folder of the store, with samples, grades and the signal `hidden`.
        out: Folder for the page, its record, predictions and pictures; null takes runs/compare-STORE.
        probes: Names of the probes; null takes all.
        grader: Whose grades; null takes the only ones there are.
        folds: Number of folds.
        seed: Seed of folds, training and resamples.
        n_resamples: Resamples of the questions behind each interval.

    Returns:
        The folder.

    Raises:
        InputError: Bad options, a store that lacks samples, grades or hidden states, or too few questions.
    """
    check_resamples(n_resamples)
    check_seed(seed)
    with new_folder(out or f"runs/compare-{Path(store).resolve().name}") as (folder, final):
        found = Comparison(store, grader, probes, folds, seed).run()
        record = comparison_record(found, folds, n_resamples, seed)
        pictures = comparison_pictures(found, record)
        files = {"comparison.md": comparison_page(record, list(pictures)), "comparison.json": record}
        write_files(folder, {**files, "predictions.parquet": predictions(found)}, pictures)
    print(f"{comparison_verdict(record)}\n\nComparison: {final / 'comparison.md'}")
    return final


def transfer(
    stores: Sequence[str],
    out: str | None = None,
    probe: str = "logistic",
    grader: str | None = None,
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Train a probe on each store, or on each group of questions of one store, and test it on each.

    Args:
        stores: Folders of stores of one model; with a single one, its groups of questions are the sets.
        out: Folder for the page, its record and its picture; null takes runs/transfer-STORE.
        probe: Name of the probe.
        grader: Whose grades; null takes the only ones there are.
        folds: Number of folds where a set is tested by its own probes.
        seed: Seed of folds, training and resamples.
        n_resamples: Resamples of the questions behind each interval.

    Returns:
        The folder.

    Raises:
        InputError: Bad options, stores of different models, or less than two sets of 20 questions.
    """
    check_resamples(n_resamples)
    check_seed(seed)
    default = f"runs/transfer-{'-'.join(Path(store).resolve().name for store in stores)}"
    with new_folder(out or default) as (folder, final):
        sets, masked = question_sets(stores, grader, probe)
        record = transfer_record(sets, masked, probe, folds, n_resamples, seed)
        files = {"transfer.md": transfer_page(record), "transfer.json": record}
        write_files(folder, files, {"transfer": transfer_picture(record)})
    print(f"Transfer: {final / 'transfer.md'}")
    return final


def signals(
    store: str,
    out: str | None = None,
    grader: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Score answers by every token signal, pooled and weighted in every way, without training, against right and wrong.

    What is best is chosen on one part of the questions and tested on the other, beside answer length.

    Args:
        store: Folder of the store, with samples, grades and token signals of the answers.
        out: Folder for the page, its record, the table of all scores and pictures; null takes runs/signals-STORE.
        grader: Whose grades; null takes the only ones there are.
        test_fraction: Share of the questions that test.
        seed: Seed of the split, the draws and the resamples.
        n_resamples: Resamples of the questions behind each interval.

    Returns:
        The folder.

    Raises:
        InputError: Bad options, a store that lacks samples, grades or token signals, or too few questions.
    """
    check_resamples(n_resamples)
    check_seed(seed)
    with new_folder(out or f"runs/signals-{Path(store).resolve().name}") as (folder, final):
        kept = Store.open(store)
        grid = make_grid(kept, load_table(kept, grader), test_fraction, seed, 5 * n_resamples)
        record = grid_record(grid, n_resamples, seed)
        pictures = grid_pictures(grid)
        files = {"signals.md": signals_page(record, list(pictures)), "report.json": record}
        write_files(folder, {**files, "grid.parquet": grid.as_table()}, pictures)
    print(f"{signals_verdict(record)}\n\nSignals: {final / 'signals.md'}")
    return final
