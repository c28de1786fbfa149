"""The commands of ``python -m probes``, as plain functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from extract.errors import InputError
from probes.comparison.out_of_fold import Comparison
from probes.comparison.page import page, verdict
from probes.comparison.pictures import comparison_pictures, predictions
from probes.comparison.record import FORMAT_VERSION, comparison_record, versions
from probes.comparison.transfer import question_sets, transfer_cells, transfer_page, transfer_picture


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
    if n_resamples < 1:
        raise InputError(f"Expected `n_resamples` to be at least 1, but got {n_resamples}. 2000 is the default.")
    comparison = Comparison(store, grader, probes, folds, seed)
    folder = new_folder(out or f"runs/compare-{Path(store).resolve().name}", "out")
    found = comparison.run()
    record = comparison_record(found, folds, n_resamples, seed)
    (folder / "plots").mkdir()
    pictures = comparison_pictures(found, record)
    for name, figure in pictures.items():
        figure.savefig(folder / "plots" / f"{name}.png")
    (folder / "comparison.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (folder / "comparison.md").write_text(page(record, list(pictures)), encoding="utf-8")
    pq.write_table(predictions(found), folder / "predictions.parquet")
    print(f"{verdict(record)}\n\nComparison: {folder / 'comparison.md'}")
    return folder


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
    if n_resamples < 1:
        raise InputError(f"Expected `n_resamples` to be at least 1, but got {n_resamples}. 2000 is the default.")
    sets, too_small = question_sets(stores, grader, probe)
    folder = new_folder(out or f"runs/transfer-{'-'.join(Path(store).resolve().name for store in stores)}", "out")
    record = {
        "format_version": FORMAT_VERSION,
        "identities": [one.data.store.sha256 for one in sets if len(stores) > 1] or [sets[0].data.store.sha256],
        "policy": sets[0].data.store.identity["policy"],
        "grader": sets[0].data.table.grader,
        "probe": probe,
        "folds": folds,
        "seed": seed,
        "versions": versions(),
        "too_small": too_small,
        "cells": [cell._asdict() for cell in transfer_cells(sets, probe, folds, seed, n_resamples)],
    }
    (folder / "plots").mkdir()
    transfer_picture(record).savefig(folder / "plots" / "transfer.png")
    (folder / "transfer.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (folder / "transfer.md").write_text(transfer_page(record), encoding="utf-8")
    print(f"Transfer: {folder / 'transfer.md'}")
    return folder


def new_folder(path: str, argument: str) -> Path:
    """Make a folder that is not there yet.

    Raises:
        InputError: It is there, or can't be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"Expected `{argument}` to be a new folder, but {path!r} exists. Give another --{argument}, or delete it."
        ) from None
    except OSError as error:
        raise InputError(
            f"Expected `{argument}` to be a folder that can be made, but {path!r} can't: {error.strerror}. Give another --{argument}."
        ) from error
    return folder
