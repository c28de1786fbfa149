"""The command `pictures`: what a store's signals say of right and wrong answers, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from datamodules.table import QuestionTable, load_table
from extract.errors import InputError
from extract.store.shards import Scope
from extract.store.store import Store
from probes.fitting.options import check_resamples, check_seed
from probes.report.layer_map import layer_map
from probes.report.layer_picture import layer_heat_map
from probes.report.profile_pictures import profile_picture, read_profile
from probes.report.results import new_folder, write_files

#: Targets of the map with the scope at which hidden states have to be there.
_MAPS: dict[str, Scope] = {"capability": "question", "response": "sample"}


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

    What was not read is left out, and said; beside the pictures, pictures.json holds their numbers.

    Args:
        store: Folder of the store, with samples, grades and the signals `hidden` or `entropy_profile`.
        out: Folder for the pictures; null takes runs/pictures-STORE.
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
    kept = Store.open(store)
    table = load_table(kept, grader)
    with new_folder(out or f"runs/pictures-{Path(store).resolve().name}") as (folder, final):
        drawn, record = signal_pictures(kept, table, probe, folds, seed, n_resamples)
        write_files(folder, {"pictures.json": record, **{f"{name}.png": figure for name, figure in drawn.items()}})
    for what, command in record["missing"].items():
        print(f"Not drawn: {what}, which was not read. Run `{command}` and draw anew.")
    print("\n".join(f"Picture: {final / name}.png" for name in drawn))
    return final


def signal_pictures(
    store: Store, table: QuestionTable, probe: str = "ridge", folds: int = 5, seed: int = 0, n_resamples: int = 2000
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """The pictures of what was read by file name, without ending, and the numbers in them.

    Raises:
        InputError: As `pictures`.
    """
    model = store.model_id
    drawn: dict[str, Figure] = {}
    record: dict[str, Any] = {"store": store.sha256, "model": model, "grader": table.grader, "missing": {}}
    maps = {target: scope for target, scope in _MAPS.items() if _is_read(store, "hidden", scope, record["missing"])}
    profiled = _is_read(store, "entropy_profile", "sample", record["missing"])
    if not maps and not profiled:
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold the signals `hidden` or `entropy_profile`, but it has neither of all questions or answers. Run `{next(iter(record['missing'].values()))}`."
        )
    if maps:
        found = [layer_map(store, table, target, probe, folds, seed, n_resamples) for target in maps]
        drawn["layers"] = layer_heat_map(found, model)
        record["layers"] = {one.target: one.record() for one in found}
    if profiled:
        entropies = read_profile(store, table, n_resamples, seed)
        drawn["entropy_profile"] = profile_picture(entropies, model)
        record["entropy_profile"] = entropies.record()
    return drawn, record


def _is_read(store: Store, signal: str, scope: Scope, missing: dict[str, str]) -> bool:
    """Whether a signal is there for all rows; notes the command that reads it where it is not."""
    if store.shards(scope) and not store.signals.missing(signal, scope):
        return True
    option = " --scope sample" if scope == "sample" else ""
    what = f"{signal} of the {'answers' if scope == 'sample' else 'questions'}"
    missing[what] = f"python -m extract read --store {store.path} --signals [{signal}]{option}"
    return False
