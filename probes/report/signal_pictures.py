"""The command `pictures`: what the signals of a store show of right and wrong answers, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from datamodules.features import TARGETS
from datamodules.table import QuestionTable, load_table
from extract.errors import InputError
from extract.store.shards import Scope
from extract.store.store import Store
from probes.metrics.intervals import check_resamples, check_seed
from probes.report.entropy_profile import profile_picture, read_profile
from probes.report.layer_map import layer_heat_map, layer_map
from probes.report.results import new_folder, record_header, write_files
from probes.report.templates import render


def pictures(
    store: str,
    out: str | None = None,
    grader: str | None = None,
    probe: str = "ridge",
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Draw AUROC by layer and position, and the mean entropy profile of right and of wrong answers.

    Pictures of missing signals are left out and listed; pictures.json holds the numbers.

    Args:
        store: Folder of the store, with samples, grades and the signals `hidden` or `entropy_profile`.
        out: Folder for the page, its record and pictures; null takes runs/pictures-STORE.
        grader: Whose grades; null takes the only ones there are.
        probe: Closed form at every layer and position: ridge or difference_of_means.
        folds: Number of folds.
        seed: Seed of folds and resamples.
        n_resamples: Resamples of the questions behind each interval.

    Returns:
        The folder.

    Raises:
        InputError: Bad options, a store without these signals or without grades, or too few questions.
    """
    check_resamples(n_resamples)
    check_seed(seed)
    opened = Store.open(store)
    table = load_table(opened, grader)
    with new_folder(out or f"runs/pictures-{Path(store).resolve().name}") as (folder, final):
        plots, record = signal_pictures(opened, table, probe, folds, seed, n_resamples)
        page = render("report/pictures.md.j2", record=record, plots=list(plots))
        write_files(folder, {"pictures.md": page, "pictures.json": record}, plots)
    for what, command in record["missing"].items():
        print(f"Not drawn: {what}, which is missing. Run `{command}` and draw again.")
    print(f"Pictures: {final / 'pictures.md'}")
    return final


def signal_pictures(
    store: Store, table: QuestionTable, probe: str = "ridge", folds: int = 5, seed: int = 0, n_resamples: int = 2000
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Pictures by file name, without ending, of the signals that a store holds, and the numbers in them.

    Raises:
        InputError: As `pictures`.
    """
    missing: dict[str, str] = {}
    header = record_header(store, table, seed, n_resamples)
    record = {**header, "store": store.sha256, "model": store.model_id, "missing": missing}
    targets = [target for target in ("capability", "response") if _is_stored(store, "hidden", TARGETS[target], missing)]
    profiled = _is_stored(store, "entropy_profile", "sample", missing)
    if not targets and not profiled:
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold the signals `hidden` or `entropy_profile`, but it has "
            f"neither of all questions or answers. Run `{next(iter(missing.values()))}`."
        )
    plots: dict[str, Figure] = {}
    if targets:
        maps = [layer_map(store, table, target, probe, folds, seed, n_resamples) for target in targets]
        plots["layers"] = layer_heat_map(maps, store.model_id)
        record["layers"] = {map_.target: map_.record() for map_ in maps}
    if profiled:
        profile = read_profile(store, table, n_resamples, seed)
        plots["entropy_profile"] = profile_picture(profile, store.model_id)
        record["entropy_profile"] = profile._asdict()
    return plots, record


def _is_stored(store: Store, signal: str, scope: Scope, missing: dict[str, str]) -> bool:
    """Whether a store holds a signal of all rows; otherwise adds the command that reads it to `missing`."""
    if store.shards(scope) and not store.signals.missing(signal, scope):
        return True
    rows, option = ("answers", " --scope sample") if scope == "sample" else ("questions", "")
    missing[f"{signal} of the {rows}"] = f"python -m extract read --store {store.path} --signals [{signal}]{option}"
    return False
