"""The commands of ``python -m probes``, as plain functions."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from datamodules.features import TARGETS
from datamodules.table import load_table
from extract.errors import InputError
from extract.registry import fill_names
from extract.store.shards import Scope
from extract.store.store import Store
from probes.comparison.out_of_fold import Comparison
from probes.comparison.pictures import comparison_pictures, transfer_picture
from probes.comparison.record import comparison_page, comparison_record, comparison_verdict, predictions
from probes.comparison.transfer import transfer_page, transfer_record
from probes.registry import PROBES
from probes.report.entropy_profile import profile_picture, read_profile
from probes.report.layer_map import layer_heat_map, layer_map
from probes.report.results import record_header, result_folder, write_files
from probes.report.templates import render
from probes.training_free.grid import make_grid
from probes.training_free.heat_map import grid_pictures
from probes.training_free.record import grid_record, signals_page, signals_verdict


@fill_names(probes=PROBES)
def compare(
    store: str,
    out: str | None = None,
    probes: Sequence[str] | None = None,
    grader: str | None = None,
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Compare probes and baselines on a store, out of fold, with confidence intervals and corrected tests.

    Baselines that ask the model are included if `python -m extract ask` has stored their answers.

    Args:
        store: Folder of the store, with samples, grades and the signal `hidden`.
        out: New folder for the page, record, predictions and pictures; null takes runs/compare-STORE.
        probes: Names of the probes, of {probes}; null takes all.
        grader: Grader whose grades are used; null takes the only one.
        folds: Number of folds.
        seed: Seed of the folds, training and resamples.
        n_resamples: Number of resamples of the questions for each interval.

    Returns:
        The folder.

    Raises:
        InputError: If an option is invalid, samples, grades or hidden states are missing, or questions are too few.
    """
    with result_folder("compare", [store], out, seed, n_resamples) as (folder, final):
        confidences = Comparison(store, grader, probes, folds, seed).run()
        record = comparison_record(confidences, folds, n_resamples, seed)
        pictures = comparison_pictures(confidences, record)
        files = {"comparison.md": comparison_page(record, list(pictures)), "comparison.json": record}
        write_files(folder, {**files, "predictions.parquet": predictions(confidences)}, pictures)
    print(f"{comparison_verdict(record)}\nComparison: {final / 'comparison.md'}")
    return final


@fill_names(probes=PROBES)
def transfer(
    stores: Sequence[str],
    out: str | None = None,
    probe: str = "logistic",
    grader: str | None = None,
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Train a probe on each of several question sets and test it on all of them.

    Args:
        stores: Folders of stores of one model, one per set. For a single store, its question groups are the sets.
        out: New folder for the page, record and picture; null takes runs/transfer-STORE.
        probe: Name of the probe, one of {probes}.
        grader: Grader whose grades are used; null takes the only one.
        folds: Number of folds for testing a probe on its own training set.
        seed: Seed of the folds, training and resamples.
        n_resamples: Number of resamples of the questions for each interval.

    Returns:
        The folder.

    Raises:
        InputError: If an option is invalid, models differ, or there are fewer than two sets of 20 questions.
    """
    with result_folder("transfer", stores, out, seed, n_resamples) as (folder, final):
        record = transfer_record(stores, grader, probe, folds, n_resamples, seed)
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
    """Score answers by all pooled and weighted token signals, without training, and test the best scores.

    The best scores are chosen on one part of the questions and tested on the other, against answer length and others.

    Args:
        store: Folder of the store, with samples, grades and token signals of the answers.
        out: New folder for the page, record, table of all scores and pictures; null takes runs/signals-STORE.
        grader: Grader whose grades are used; null takes the only one.
        test_fraction: Fraction of the questions for the test.
        seed: Seed of the split, draws and resamples.
        n_resamples: Number of resamples of the questions for each interval.

    Returns:
        The folder.

    Raises:
        InputError: If an option is invalid, samples, grades or token signals are missing, or questions are too few.
    """
    with result_folder("signals", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        grid = make_grid(opened, load_table(opened, grader), test_fraction, seed, 5 * n_resamples)
        record, pictures = grid_record(grid, n_resamples, seed), grid_pictures(grid)
        files = {"signals.md": signals_page(record, list(pictures)), "report.json": record}
        write_files(folder, {**files, "grid.parquet": grid.as_table()}, pictures)
    print(f"{signals_verdict(record)}\nSignals: {final / 'signals.md'}")
    return final


def pictures(
    store: str,
    out: str | None = None,
    grader: str | None = None,
    probe: str = "ridge",
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Draw AUROC by layer and position, and the mean entropy profiles of right and of wrong answers.

    Pictures of missing signals are omitted and listed. pictures.json has the numbers.

    Args:
        store: Folder of the store, with samples, grades and the signals `hidden` or `entropy_profile`.
        out: New folder for the page, record and pictures; null takes runs/pictures-STORE.
        grader: Grader whose grades are used; null takes the only one.
        probe: Probe for each layer and position: ridge or difference_of_means.
        folds: Number of folds.
        seed: Seed of the folds and resamples.
        n_resamples: Number of resamples of the questions for each interval.

    Returns:
        The folder.

    Raises:
        InputError: If an option is invalid, grades or both signals are missing, or questions are too few.
    """
    needs: list[tuple[str, Scope]] = [("hidden", "question"), ("hidden", "sample"), ("entropy_profile", "sample")]
    with result_folder("pictures", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        table, model = load_table(opened, grader), opened.model_id
        missing = [(signal, scope) for signal, scope in needs if opened.signals.missing(signal, scope)]
        commands = {
            f"{signal} of the {'questions' if scope == 'question' else 'answers'}": (
                f"python -m extract read --store {store} --signals [{signal}] --scope {scope}"
            )
            for signal, scope in missing
        }
        if missing == needs:
            raise InputError(
                f"Expected the store {store!r} to have the signals `hidden` or `entropy_profile`, but neither covers "
                f"all questions or answers. Run `{commands['hidden of the questions']}`."
            )
        record = record_header(opened, table, seed, n_resamples)
        record |= {"store": opened.sha256, "model": model, "missing": commands}
        plots: dict[str, Figure] = {}
        if targets := [target for target in ("capability", "response") if ("hidden", TARGETS[target]) not in missing]:
            maps = {target: layer_map(opened, table, target, probe, folds, seed, n_resamples) for target in targets}
            record["layers"], plots["layers"] = maps, layer_heat_map(maps, model)
        if ("entropy_profile", "sample") not in missing:
            profile = read_profile(opened, table, n_resamples, seed)
            record["entropy_profile"], plots["entropy_profile"] = profile, profile_picture(profile, model)
        page = render("report/pictures.md.j2", record=record, plots=list(plots))
        write_files(folder, {"pictures.md": page, "pictures.json": record}, plots)
    for what, command in commands.items():
        print(f"Not drawn: {what}, which is missing. Run `{command}` and draw again.")
    print(f"Pictures: {final / 'pictures.md'}")
    return final
