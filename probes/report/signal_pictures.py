"""The command `pictures`: what the signals of a store show of right and wrong answers, layer by layer."""

from pathlib import Path

from matplotlib.figure import Figure

from datamodules.table import load_table
from extract.errors import InputError
from extract.store.shards import Scope
from extract.store.store import Store
from probes.metrics.intervals import check_resampling
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
    check_resampling(seed, n_resamples)
    opened = Store.open(store)
    table, model = load_table(opened, grader), opened.model_id
    missing: dict[str, str] = {}
    stored = set()
    for name, signal in (("capability", "hidden"), ("response", "hidden"), ("profile", "entropy_profile")):
        scope: Scope = "question" if name == "capability" else "sample"
        if opened.shards(scope) and not opened.signals.missing(signal, scope):
            stored.add(name)
        else:
            command = f"python -m extract read --store {store} --signals [{signal}] --scope {scope}"
            missing[f"{signal} of the {'questions' if scope == 'question' else 'answers'}"] = command
    if not stored:
        raise InputError(
            f"Expected the store {store!r} to hold the signals `hidden` or `entropy_profile`, but it has neither of "
            f"all questions or answers. Run `{missing['hidden of the questions']}`."
        )
    with new_folder(out or f"runs/pictures-{Path(store).resolve().name}") as (folder, final):
        record = record_header(opened, table, seed, n_resamples)
        record |= {"store": opened.sha256, "model": model, "missing": missing}
        plots: dict[str, Figure] = {}
        if targets := [target for target in ("capability", "response") if target in stored]:
            record["layers"] = {
                target: layer_map(opened, table, target, probe, folds, seed, n_resamples) for target in targets
            }
            plots["layers"] = layer_heat_map(record["layers"], model)
        if "profile" in stored:
            record["entropy_profile"] = read_profile(opened, table, n_resamples, seed)
            plots["entropy_profile"] = profile_picture(record["entropy_profile"], model)
        page = render("report/pictures.md.j2", record=record, plots=list(plots))
        write_files(folder, {"pictures.md": page, "pictures.json": record}, plots)
    for what, command in missing.items():
        print(f"Not drawn: {what}, which is missing. Run `{command}` and draw again.")
    print(f"Pictures: {final / 'pictures.md'}")
    return final
