"""Pictures of a comparison of stores: accuracies and paired differences with their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probes.report.plots import BLUE, GREY, RED, new_figure, styled
from probes.report.templates import LEVEL


@styled
def models_picture(record: dict[str, Any]) -> Figure:
    """Plot the accuracies, and a forest plot of the paired differences. Significant differences are red."""
    stores, pairs = record["stores"], record["pairs"]
    height = 1.4 + 0.3 * (len(stores) + len(pairs))
    figure, (top, bottom) = new_figure(6.8, height, nrows=2, height_ratios=[len(stores) + 1, len(pairs) + 1])
    accuracies = [store["accuracy"]["clustered"] or store["accuracy"]["t"] for store in stores]
    forest(top, [store["name"] for store in stores], accuracies, [BLUE] * len(stores))
    top.set_xlabel(f"accuracy on {record['n_questions']} questions, 95 % intervals")
    colours = [RED if pair["p_holm"] < LEVEL else BLUE for pair in pairs]
    forest(bottom, [f"{pair['a']} − {pair['b']}" for pair in pairs], pairs, colours)
    bottom.axvline(0, color=GREY, lw=1, ls="--")
    bottom.set_xlabel("paired difference of accuracies (red: significant after Holm's correction)")
    return figure


def forest(
    axes: Axes, labels: Sequence[str], estimates: Sequence[Mapping[str, Any]], colours: Sequence[str]
) -> None:
    """Draw a forest plot: one row per estimate, with its value as a dot and its interval as a line."""
    for row, (estimate, colour) in enumerate(zip(estimates, colours, strict=True)):
        if estimate["low"] is not None:
            axes.plot([estimate["low"], estimate["high"]], [row, row], color=colour, lw=1.6)
        axes.plot(estimate["value"], row, color=colour, marker="o", ms=5)
    axes.set_yticks(range(len(labels)), labels=labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
