"""Functions that implement the commands of ``python -m probes``."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from datamodules.features import TARGETS
from datamodules.table import load_table
from extract.errors import InputError
from extract.registry import fill_names
from extract.store.shards import Scope
from extract.store.store import Store
from probes.audit.record import audit_page, audit_picture, audit_record, audit_verdict
from probes.comparison.left_out import left_out_picture
from probes.comparison.out_of_fold import Comparison
from probes.comparison.pictures import comparison_pictures, transfer_picture
from probes.comparison.record import comparison_page, comparison_record, comparison_verdict, predictions
from probes.comparison.transfer import transfer_page, transfer_record
from probes.learning_curve.curve import CLOSED_FORM, LearningCurve
from probes.learning_curve.pictures import curve_pictures
from probes.learning_curve.record import curve_page, curve_record, curve_verdict
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
    """Compare probes and baselines on a store, with confidence intervals and significance tests.

    Model-based baselines are included if `python -m extract ask` has been run.

    Args:
        store: Folder of the store. It must contain samples, grades and the `hidden` signal.
        out: New folder for the results. The default is runs/compare-STORE.
        probes: Names of the probes to compare: {probes}. The default is all of them.
        grader: Grader whose grades are used. Required if the store has several graders.
        folds: Number of folds.
        seed: Seed for the folds, training and resampling.
        n_resamples: Number of bootstrap resamples for each interval.

    Raises:
        InputError: If an option is invalid, or if data are missing or insufficient.
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
    probe: str = "layer_average",
    grader: str | None = None,
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Train a probe on each question set and test it on every set.

    In addition, each set is left out in turn. A probe is trained on all other sets and tested on the left-out set, with
    and without back-off. Back-off shifts the confidences of novel questions towards the base rate. The base rate is the
    fraction of training and validation answers that are right.

    Args:
        stores: Folders of the stores, one per question set. All answers must come from the same model. If there is only
            one store, each of its question groups is a question set.
        out: New folder for the results. The default is runs/transfer-STORE. STORE stands for the names of all stores,
            joined with hyphens.
        probe: Name of the probe. Choose from {probes}.
        grader: Grader whose grades are used. Required if a store has several graders.
        folds: Number of cross-validation folds for testing a probe on its own training set.
        seed: Seed for the folds, training and resampling.
        n_resamples: Number of bootstrap resamples for each interval.

    Raises:
        InputError: If an option is invalid, if models differ, or if fewer than two sets have at least 20 questions.
    """
    with result_folder("transfer", stores, out, seed, n_resamples) as (folder, final):
        record = transfer_record(stores, grader, probe, folds, n_resamples, seed)
        plots = {"transfer": transfer_picture(record)}
        if record["left_out"]:
            plots["left_out"] = left_out_picture(record["left_out"])
        files = {"transfer.md": transfer_page(record, list(plots)), "transfer.json": record}
        write_files(folder, files, plots)
    print(f"Transfer: {final / 'transfer.md'}")
    return final


@fill_names(probes=CLOSED_FORM)
def curve(
    store: str,
    out: str | None = None,
    probe: str = "layer_average",
    n: Sequence[int] | None = None,
    k: Sequence[int] | None = None,
    grader: str | None = None,
    folds: int = 5,
    subsets: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Measure how a probe improves with more training questions and with more answers per question.

    The report also shows whether a budget of graded answers is better spent on more questions or on more answers per
    question.

    Args:
        store: Folder of the store. It must contain samples, grades and the `hidden` signal.
        out: New folder for the results. The default is runs/curve-STORE.
        probe: Name of the probe. Choose from {probes}.
        n: Numbers of training questions. By default, N and those of N/2, N/4, … that are at least 40, where N is the
            number of questions outside a test fold.
        k: Numbers of graded answers per training question. The default is 1, 2, 5, 10, … and all answers.
        grader: Grader whose grades are used. Required if the store has several graders.
        folds: Number of folds.
        subsets: Number of random subsets for each combination of `n` and `k`.
        seed: Seed for the folds, subsets and resampling.
        n_resamples: Number of bootstrap resamples for each interval.

    Raises:
        InputError: If an option is invalid, if data are missing or insufficient, or if the probe cannot be fitted.
    """
    with result_folder("curve", [store], out, seed, n_resamples) as (folder, final):
        fitted = LearningCurve(store, grader, probe, n, k, folds, subsets, seed).run()
        record = curve_record(fitted, n_resamples, seed)
        pictures = curve_pictures(record)
        write_files(folder, {"curve.md": curve_page(record, list(pictures)), "curve.json": record}, pictures)
    print(f"{curve_verdict(record)}\nLearning curves: {final / 'curve.md'}")
    return final


def signals(
    store: str,
    out: str | None = None,
    grader: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Score answers by their token signals, without training, and test the best scores.

    Each score pools a signal over the tokens of an answer. The best scores are chosen on the validation questions and
    evaluated on the test questions.

    Args:
        store: Folder of the store. It must contain samples, grades and token signals for the answers.
        out: New folder for the results. The default is runs/signals-STORE.
        grader: Grader whose grades are used. Required if the store has several graders.
        test_fraction: Fraction of the questions to use for testing.
        seed: Seed for the split, permutations and resampling.
        n_resamples: Number of bootstrap resamples for each interval.

    Raises:
        InputError: If an option is invalid, or if data are missing or insufficient.
    """
    with result_folder("signals", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        grid = make_grid(opened, load_table(opened, grader), test_fraction, seed, 5 * n_resamples)
        record, pictures = grid_record(grid, n_resamples, seed), grid_pictures(grid)
        files = {"signals.md": signals_page(record, list(pictures)), "report.json": record}
        write_files(folder, {**files, "grid.parquet": grid.as_table()}, pictures)
    print(f"{signals_verdict(record)}\nSignals: {final / 'signals.md'}")
    return final


def audit(
    store: str,
    out: str | None = None,
    grader: str | None = None,
    folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Report how well each property of the questions, such as the length, predicts the measured accuracy.

    Four properties are leaks if they predict the accuracy: the answer options (without the question), the right
    option's letter and relative length (together), the question's length, and its position in the question set. The
    audit needs no hidden states.

    Args:
        store: Folder of the store. It must contain samples and grades.
        out: New folder for the results. The default is runs/audit-STORE.
        grader: Grader whose grades are used. Required if the store has several graders.
        folds: Number of folds.
        seed: Seed for the folds, permutations and resampling.
        n_resamples: Number of bootstrap resamples for each interval, and number of permutations for each p-value.

    Raises:
        InputError: If an option is invalid, if grades are missing or too few, or if all questions have the same
            accuracy.
    """
    with result_folder("audit", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        record = audit_record(opened, load_table(opened, grader), folds, n_resamples, seed)
        plots = {"audit": audit_picture(record)}
        write_files(folder, {"audit.md": audit_page(record, plots), "audit.json": record}, plots)
    print(f"{audit_verdict(record)}\nAudit: {final / 'audit.md'}")
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
    """Plot the AUROC by layer and position, and the mean entropy profiles of right and wrong answers.

    The plotted numbers are saved in pictures.json.

    Args:
        store: Folder of the store. It must contain samples, grades, and the `hidden` or `entropy_profile` signal.
        out: New folder for the results. The default is runs/pictures-STORE.
        grader: Grader whose grades are used. Required if the store has several graders.
        probe: Probe to fit at each layer and position: ridge or difference_of_means.
        folds: Number of folds.
        seed: Seed for the folds and resampling.
        n_resamples: Number of bootstrap resamples for each interval.

    Raises:
        InputError: If an option is invalid, if the grades are missing, if both signals are missing, or if there are
            too few questions.
    """
    needs: list[tuple[str, Scope]] = [("hidden", "question"), ("hidden", "sample"), ("entropy_profile", "sample")]
    with result_folder("pictures", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        table, model = load_table(opened, grader), opened.model_id
        missing = [(signal, scope) for signal, scope in needs if opened.signals.missing(signal, scope)]
        commands = {
            f"{signal} for {'questions' if scope == 'question' else 'answers'}": (
                f"python -m extract read --store {store} --signals '[{signal}]' --scope {scope}"
            )
            for signal, scope in missing
        }
        if missing == needs:
            raise InputError(
                f"Expected the store {store!r} to contain the `hidden` or `entropy_profile` signal, but both are "
                f"missing or incomplete. Run `{commands['hidden for questions']}`."
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
        verdict = render("report/best_layers.md.j2", record=record)
        page = render("report/pictures.md.j2", record=record, verdict=verdict, plots=list(plots))
        write_files(folder, {"pictures.md": page, "pictures.json": record}, plots)
    for what, command in commands.items():
        print(f"Missing signal: {what}. Its plot was not drawn. Run `{command}`, then try again with a new --out.")
    print(f"{verdict}Plots: {final / 'pictures.md'}")
    return final
