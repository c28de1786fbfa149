"""Plots for comparisons of methods and for transfer between question sets."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from probes.comparison.out_of_fold import BEST, OutOfFold
from probes.comparison.record import scored
from probes.comparison.transfer import sets_of
from probes.metrics.functional.inputs import by_group
from probes.report.evaluate import Scored
from probes.report.plots import (
    BLUE,
    GREY,
    INK,
    METHOD_COLOURS,
    RED,
    annotate_cells,
    calibration_bins,
    new_figure,
    styled,
)
from probes.report.templates import method_label

_COLOURS_OF_KINDS = {"chosen": RED, "probe": BLUE, "baseline": GREY}
#: Methods that are drawn as curves if they are available.
_CURVES = (BEST, "text_embedding", "base_rate", "verbalized_isotonic", "p_true_isotonic", "length")
_CURVE_COLOURS = (RED, *(colour for colour in METHOD_COLOURS if colour != RED))


def comparison_pictures(out: OutOfFold, record: dict[str, Any]) -> dict[str, Figure]:
    """Draw the plots of a comparison and return them by name."""
    curves = {name: scored(out, name, half=False) for name in _CURVES if name in out.confidence}
    curves = {name: method.take(method.usable) for name, method in curves.items() if method.usable.any()}
    return {
        "methods": forest(record["methods"]),
        "risk_coverage": risk_coverage(curves),
        "calibration": calibration(curves),
    }


@styled
def forest(methods: dict[str, Any]) -> Figure:
    """Draw a forest plot of each method's AUROC and Brier skill with 95 % intervals, sorted by AUROC.

    Methods that use half of the answers have white markers.
    """
    shown = {name: figures for name, figures in methods.items() if figures["auroc"] is not None}
    order = sorted(shown, key=lambda name: float(shown[name]["auroc"]["value"]))
    figure, axes = new_figure(8.4, 0.8 + 0.27 * len(order), ncols=2, sharey=True)
    metrics = ("auroc", "capability AUROC", 0.5), ("brier_skill", "Brier skill", 0)
    for axis, (metric, label, neutral) in zip(axes, metrics, strict=True):
        for row, name in enumerate(order):
            estimate, colour = shown[name][metric], _COLOURS_OF_KINDS[shown[name]["kind"]]
            if estimate is not None:
                axis.plot([estimate["low"], estimate["high"]], [row, row], color=colour, lw=1.6)
                face = "white" if shown[name]["half"] else colour
                axis.plot([estimate["value"]], [row], color=colour, mfc=face, marker="o", ms=4.5)
        axis.axvline(neutral, color=GREY, lw=1, ls="--")
        axis.set(xlabel=f"{label}, 95 % interval")
        axis.grid(axis="x", color="#e4e4e4", lw=0.7)
    lowest = min((figures["brier_skill"]["low"] for figures in shown.values() if figures["brier_skill"]), default=0.0)
    axes[1].set_xlim(left=max(lowest - 0.05, -1))  # the axis is cut off at −1
    axes[0].set_yticks(range(len(order)), [_label(name, shown[name]) for name in order])
    axes[0].set_ylim(-0.8, len(order) - 0.2)
    for kind, colour in _COLOURS_OF_KINDS.items():
        label = "chosen on validation" if kind == "chosen" else kind
        axes[1].plot([], [], color=colour, marker="o", ms=4.5, label=label)
    if any(figures["half"] for figures in shown.values()):
        axes[1].plot([], [], color=GREY, mfc="white", marker="o", ms=4.5, label="uses half of the answers")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    return figure


def _label(name: str, figures: dict[str, Any]) -> str:
    """Return the label of a method, with the number of questions if it does not use all of them."""
    return method_label(name) + f" ({figures['n_questions']} questions)" * bool(figures["n_masked"])


@styled
def risk_coverage(methods: dict[str, Scored]) -> Figure:
    """Plot the risk (fraction of wrong answers) against the coverage (fraction of questions, most confident first)."""
    figure, axes = new_figure(4.8, 3.8)
    for (name, method), colour in zip(methods.items(), _CURVE_COLOURS, strict=False):
        wrong = 1 - method.accuracy
        _, group, counts = (-method.confidence).unique(return_inverse=True, return_counts=True)
        answered = counts.cumsum(0)
        n_wrong = by_group(wrong, group, len(counts)).cumsum(0)
        line: Any = {"color": colour, "lw": 2 if name == BEST else 1.3, "label": method_label(name)}
        axes.plot(answered / len(wrong), n_wrong / answered, **line)
    axes.set(xlim=(0, 1), xlabel="share of questions answered", ylabel="share of wrong answers", ylim=(0, None))
    axes.legend(loc="lower right", fontsize=8)
    return figure


@styled
def calibration(methods: dict[str, Scored], n_bins: int = 8) -> Figure:
    """Plot a reliability diagram for each method, with equal-mass bins and standard errors.

    In each panel, the area of a marker is proportional to the number of questions in its bin.
    """
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    figure, axes = new_figure(
        2.7 * columns, 2.6 * rows + 0.3, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat[len(methods) :]:
        axis.set_visible(False)
    for axis, (name, method), colour in zip(axes.flat, methods.items(), _CURVE_COLOURS, strict=False):
        x, y, error, counts = calibration_bins(method, n_bins, "mass")
        axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
        axis.errorbar(x, y, yerr=error, color=colour, fmt="none", lw=1.2, capsize=2)
        axis.scatter(x, y, s=[30 * count / max(counts) for count in counts], color=colour)
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.set_title(method_label(name), fontsize=9, color=INK)
    figure.supxlabel("confidence", fontsize=10)
    figure.supylabel("measured accuracy (± 1 standard error)", fontsize=10)
    return figure


@styled
def transfer_picture(record: dict[str, Any]) -> Figure:
    """Plot a heat map of the AUROC by training set and test set. Values whose intervals exclude 0.5 are in bold."""
    trains, tests = sets_of(record)
    values = np.full((len(trains), len(tests)), np.nan)
    excludes_half = np.zeros_like(values, dtype=bool)
    for cell in record["cells"]:
        if auroc := cell["auroc"]:
            place = trains.index(cell["train"]), tests.index(cell["test"])
            values[place], excludes_half[place] = auroc["value"], not auroc["low"] <= 0.5 <= auroc["high"]
    figure, axes = new_figure(1.6 + 0.85 * len(tests), 1.2 + 0.5 * len(trains))
    image = axes.imshow(values, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    annotate_cells(axes, image, values, 8, bold=excludes_half)
    axes.set_xticks(range(len(tests)), tests, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(trains)), trains, fontsize=8)
    axes.set(xlabel="tested on", ylabel="trained on")
    axes.set_title("AUROC (bold: the interval excludes 0.5)", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure
