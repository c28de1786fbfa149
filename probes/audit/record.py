"""The record, Markdown page and plot of an audit."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from datamodules.table import QuestionTable, split_rows
from extract.errors import InputError
from extract.store.store import Store
from probes.audit.smoothing import aurocs, cross_validate
from probes.audit.sources import SOURCES, read_sources
from probes.comparison.folds import fold_of_questions
from probes.metrics.significance import add_holm
from probes.report.evaluate import Scored, ceiling, estimate
from probes.report.plots import BLUE, GREY, RED, new_figure, styled
from probes.report.results import record_header
from probes.report.templates import LEVEL, render

#: Minimum number of questions in total, and in each fold.
LEAST_QUESTIONS, LEAST_PER_FOLD = 20, 4


def audit_record(
    store: Store, table: QuestionTable, n_folds: int = 5, n_resamples: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Measure how well each of the `SOURCES` predicts the accuracies of the questions.

    Returns:
        The content of audit.json. For `sources` and `masked`, see `audit_sources`. `leaks` lists the potential leaks
        whose corrected p-value is below 0.05.
    """
    right, known = torch.from_numpy(table.right), torch.from_numpy(table.known)
    questions = (known >= 2).nonzero()[:, 0]
    if n_folds < 2:
        raise InputError(f"Expected `folds` to be at least 2, but got {n_folds}. The default is 5.")
    if reason := _too_few(table.accuracy[questions.numpy()], n_folds):
        raise InputError(
            f"Expected at least {_least(n_folds)} questions that have at least two graded answers each and "
            f"differ in accuracy, but {reason}. Use fewer folds, or sample and grade more answers."
        )
    fold = fold_of_questions(split_rows(table, questions, [1 / n_folds] * n_folds, seed), len(known))
    features, masked = read_sources(store)
    grades = Scored(torch.full(known.shape, torch.nan), right, known, fold=fold)
    sources, too_few = audit_sources(features, grades, n_resamples, seed)
    return {
        **record_header(store, table, seed, n_resamples),
        "folds": n_folds,
        "n_questions": len(questions),
        "n_questions_left_out": len(known) - len(questions),
        "n_answers": int(known[questions].sum()),
        "accuracy": float(np.mean(table.accuracy[questions])),
        "position": "store" if any(question.row is None for question in store.questions) else "source",
        "auroc_ceiling": ceiling(right[questions], known[questions]),
        "sources": sources,
        "leaks": leaks(sources),
        "masked": masked | too_few,
    }


def audit_sources(
    features: Mapping[str, NDArray[np.float64]], grades: Scored, n_resamples: int, seed: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Audit each source. The Holm correction is applied separately to potential leaks and to all other sources.

    Args:
        features: Dict from each source to its features, [question, feature]; NaN if missing.
        grades: Answer counts and folds of all questions. Excluded questions have fold −1.

    Returns:
        - A dict from each audited source to the result of `audit_source`, with the additional keys `leak` and `p_holm`.
        - A dict from each excluded source to the reason.
    """
    assert grades.fold is not None
    sources, masked = dict[str, Any](), dict[str, str]()
    for name, values in features.items():
        matrix = torch.from_numpy(values)
        rows = (grades.fold >= 0) & matrix.isfinite().all(1)
        scored = grades.take(rows)
        if reason := _too_few(scored.accuracy.numpy(), len(grades.fold[grades.fold >= 0].unique())):
            masked[name] = reason
        else:
            sources[name] = {"leak": SOURCES[name].leak, **audit_source(matrix[rows], scored, n_resamples, seed)}
    for leak in (True, False):
        add_holm([figures for figures in sources.values() if figures["leak"] == leak])
    return sources, masked


def leaks(sources: Mapping[str, Any]) -> list[str]:
    """Return the potential leaks whose corrected p-value is below 0.05."""
    return [name for name, found in sources.items() if found["leak"] and found["p_holm"] < LEVEL]


def _least(n_folds: int) -> int:
    return max(LEAST_QUESTIONS, LEAST_PER_FOLD * n_folds)


def _too_few(accuracy: NDArray[np.float64], n_folds: int) -> str:
    """Return the reason why the accuracies cannot be audited, or an empty string if they can."""
    if len(accuracy) < _least(n_folds):
        return f"there are only {len(accuracy)} usable questions"
    return "" if np.ptp(accuracy) > 0 else f"all {len(accuracy)} usable questions have an accuracy of {accuracy[0]:.3f}"


def audit_source(features: Tensor, grades: Scored, n_resamples: int, seed: int) -> dict[str, Any]:
    r"""Predict accuracies from features, and compute the out-of-fold AUROC, its 95 % interval and a one-sided p-value.

    Let A be the observed AUROC. The p-value comes from permutations of the accuracies. It is the fraction of
    permutations with an AUROC of at least A. The observed order counts as one more permutation.

    The interval comes from a bootstrap that treats the predictions as fixed. In fact, they depend on the accuracies in
    other folds. Such a bootstrap underestimates the variance, by a factor of two if the features are uninformative. To
    correct the interval, the distance of each bound from A is multiplied by

    .. math:: \sqrt{1 + \min\{1, (2 s / (A - \tfrac12))^2\}}

    where s is the standard deviation of the AUROC over the permutations.

    `features` has shape [question, feature].

    Returns:
        A dict with `auroc` (`value`, `low`, `high`), `p`, `n_questions` and `n_features`. `low` and `high` are None if
        too few questions have a right answer, or too few have a wrong answer.
    """
    assert grades.fold is not None
    predicted, permuted = cross_validate(features, grades.accuracy, grades.fold, n_resamples, seed)
    value = float(aurocs(predicted[None], grades.accuracy[None], grades.fold))
    distance, spread = abs(value - 0.5), 2 * float(permuted.std())
    factor = math.sqrt(2 if distance <= spread else 1 + (spread / distance) ** 2)
    found = estimate(grades._replace(confidence=predicted), "auroc", n_resamples, seed)
    bounds = {end: found and min(max(value + factor * (found[end] - value), 0.0), 1.0) for end in ("low", "high")}
    return {
        "auroc": {"value": value, **bounds},
        "p": (1 + int((permuted >= value - 1e-9).sum())) / (1 + n_resamples),
        "n_questions": len(features),
        "n_features": features.shape[1],
    }


def audit_page(record: dict[str, Any], plots: Collection[str]) -> str:
    """Render the record as a Markdown page. `plots` contains the names of the plots."""
    context = {"labels": SOURCES, "verdict": audit_verdict(record), "level": LEVEL, "plots": plots}
    return render("audit/audit.md.j2", record=record, **context)


def audit_verdict(record: dict[str, Any]) -> str:
    """Render a short summary of the audit."""
    sources = record["sources"]
    best = max(sources, key=lambda name: float(sources[name]["auroc"]["value"]))
    return render("audit/verdict.md.j2", record=record, labels=SOURCES, best=best)


@styled
def audit_picture(record: dict[str, Any]) -> Figure:
    """Plot the AUROC of each source with its 95 % interval. Leaks are drawn in red."""
    sources = record["sources"]
    figure, axes = new_figure(6.4, 1.1 + 0.32 * len(sources))
    kinds = {"leak": RED, "no leak found": BLUE, "never counted as a leak": GREY}
    leak, no_leak, other = kinds
    for row, (name, found) in enumerate(reversed(sources.items())):
        colour = kinds[leak if name in record["leaks"] else no_leak if found["leak"] else other]
        auroc = found["auroc"]
        if auroc["low"] is not None:
            axes.plot([auroc["low"], auroc["high"]], [row, row], color=colour, lw=1.6)
        axes.plot([auroc["value"]], [row], color=colour, marker="o", ms=5)
    axes.axvline(0.5, color=GREY, lw=1, ls="--")
    axes.set_yticks(range(len(sources)), [SOURCES[name].label for name in reversed(sources)])
    axes.set(xlabel="out-of-fold AUROC, 95 % interval")
    axes.grid(axis="x", color="#e4e4e4", lw=0.7)
    for kind, colour in kinds.items():
        axes.plot([], [], color=colour, marker="o", ms=5, label=kind)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure
