"""The pictures of a comparison, and its confidences as a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from matplotlib.figure import Figure
from torch import Tensor

from probes.comparison.figures import scored
from probes.comparison.out_of_fold import BEST, OutOfFold
from probes.metrics.functional import bin_index
from probes.report.evaluate import Scored, usable
from probes.report.plots import BLUE, GREY, INK, METHOD_COLOURS, RED, new_figure, styled

_COLOUR_OF = {"chosen": RED, "probe": BLUE, "baseline": GREY}
#: Methods drawn as curves, those of them that are there: all would hide each other.
_CURVES = (BEST, "text_embedding", "base_rate", "verbalized_isotonic", "p_true_isotonic", "length")


def comparison_pictures(out: OutOfFold, record: dict[str, Any]) -> dict[str, Figure]:
    """The pictures by file name, without ending."""
    drawn = {name: scored(out, name, half=False) for name in _CURVES if name in out.confidence}
    kept = {name: one.take(usable(one)) for name, one in drawn.items() if usable(one).any()}
    return {
        "methods": forest(record["methods"]),
        "risk_coverage": risk_coverage(kept),
        "calibration": calibration(kept),
    }


@styled
def forest(methods: dict[str, Any]) -> Figure:
    """AUROC and Brier skill of every method with 95 % intervals, the best at the top."""
    shown = {name: one for name, one in methods.items() if one["auroc"] is not None}
    order = sorted(shown, key=lambda name: float(shown[name]["auroc"]["value"]))
    figure, axes = new_figure(8.4, 0.8 + 0.27 * len(order), ncols=2, sharey=True)
    for axis, key, label in zip(axes, ("auroc", "brier_skill"), ("capability AUROC", "Brier skill"), strict=True):
        for place, name in enumerate(order):
            interval, colour = shown[name][key], _COLOUR_OF[shown[name]["kind"]]
            if interval is None:
                continue
            axis.plot([interval["low"], interval["high"]], [place, place], color=colour, lw=1.6)
            axis.plot([interval["value"]], [place], color=colour, marker="o", ms=4.5)
        axis.set(xlabel=f"{label}, 95 % interval")
        axis.grid(axis="x", color="#e4e4e4", lw=0.7)
        axis.set_axisbelow(True)
    axes[0].axvline(0.5, color=GREY, lw=1, ls="--")
    axes[1].axvline(0, color=GREY, lw=1, ls="--")
    lowest = min((one["brier_skill"]["low"] for one in shown.values() if one["brier_skill"] is not None), default=0.0)
    axes[1].set_xlim(left=max(lowest - 0.05, -1))  # what is worse than twice the constant's score is off the page
    axes[0].set_yticks(range(len(order)), [_label(name, shown[name]) for name in order])
    for kind, colour in _COLOUR_OF.items():
        axes[1].plot([], [], color=colour, marker="o", ms=4.5, label={"chosen": "chosen on validation"}.get(kind, kind))
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _label(name: str, figures: dict[str, Any]) -> str:
    """A method's name, with what it is scored on where that is not all."""
    said = [f"{figures['n_questions']} questions"] * bool(figures["n_masked"]) + ["half of the answers"] * figures[
        "half"
    ]
    return f"{name} ({', '.join(said)})" if said else name


@styled
def risk_coverage(methods: dict[str, Scored]) -> Figure:
    """Share of wrong answers among the most confident questions, by how many of them are answered."""
    figure, axes = new_figure(4.8, 3.8)
    for (name, one), colour in zip(methods.items(), _colours(methods), strict=True):
        coverage, risk = risk_curve(one)
        axes.plot(coverage, risk, color=colour, lw=2 if name == BEST else 1.3, label=name)
    axes.set(xlim=(0, 1), xlabel="share of questions answered", ylabel="share of wrong answers", ylim=(0, None))
    axes.legend(loc="lower right", fontsize=8)
    return figure


def risk_curve(scored: Scored) -> tuple[list[float], list[float]]:
    """Coverage and risk at every distinct confidence, from the highest down; questions that tie enter together."""
    wrong = 1 - scored.right.double() / scored.known.double()
    values, group = (-scored.confidence).unique(sorted=True, return_inverse=True)
    counts, total = (
        torch.zeros(len(values), dtype=torch.float64).index_add_(0, group, one).cumsum(0)
        for one in (torch.ones_like(wrong), wrong)
    )
    return (counts / len(wrong)).tolist(), (total / counts).tolist()


@styled
def calibration(methods: dict[str, Scored], n_bins: int = 8) -> Figure:
    """Mean accuracy in bins of equal mass of the confidence, with standard errors over questions, one panel a method."""
    columns = min(3, len(methods))
    rows = -(-len(methods) // columns)
    figure, axes = new_figure(
        2.7 * columns, 2.6 * rows + 0.3, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat[len(methods) :]:
        axis.set_visible(False)
    for axis, (name, one), colour in zip(axes.flat, methods.items(), _colours(methods), strict=False):
        x, y, error = _bins(one, n_bins)
        axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
        axis.errorbar(x, y, yerr=error, color=colour, marker="o", ms=4, lw=1.2, capsize=2)
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.set_title(name, fontsize=9, color=INK)
    figure.supxlabel("confidence", fontsize=10)
    figure.supylabel("measured accuracy (± 1 standard error)", fontsize=10)
    return figure


def _bins(one: Scored, n_bins: int) -> tuple[list[float], list[float], list[float]]:
    accuracy = one.right.double() / one.known.double()
    bins = bin_index(one.confidence, n_bins, "mass")
    held = [accuracy[bins == i] for i in bins.unique().tolist()]
    x = [float(one.confidence[bins == i].mean()) for i in bins.unique().tolist()]
    error = [float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0 for values in held]
    return x, [float(values.mean()) for values in held], error


def _colours(methods: dict[str, Scored]) -> list[str]:
    return [RED, *(colour for colour in METHOD_COLOURS if colour != RED)][: len(methods)]


def predictions(out: OutOfFold) -> pa.Table:
    """One row a question: its fold, counts, and every method's out-of-fold confidence (null where there is none)."""
    table, rows = out.data.table, out.questions

    def column(values: Tensor) -> list[float | None]:
        return [None if value != value else value for value in values[rows].tolist()]

    return pa.table(
        {
            "question_id": [table.ids[row] for row in rows.tolist()],
            "group": [table.groups[row] for row in rows.tolist()],
            "fold": out.fold[rows].tolist(),
            "right": table.right[rows].tolist(),
            "known": table.known[rows].tolist(),
            "held_right": table.held_right[rows].tolist(),
            "held_known": table.held_known[rows].tolist(),
            **{name: column(values) for name, values in out.confidence.items()},
        }
    )
