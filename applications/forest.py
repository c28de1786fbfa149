"""Forest plots of accuracies and of paired differences with their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probes.report.plots import BLUE, GREY, RED, new_figure, styled
from probes.report.templates import LEVEL


@styled
def paired_picture(
    accuracies: Mapping[str, Mapping[str, Any]], differences: Sequence[Mapping[str, Any]], label: str
) -> Figure:
    """Plot accuracies and their paired differences. Significant differences are red.

    Each entry of `differences` is a result of `paired_record`. It also contains the names of the compared systems (`a`
    and `b`) and the corrected p-value (`p_holm`).
    """
    rows = len(accuracies), len(differences)
    figure, (top, bottom) = new_figure(6.8, 1.4 + 0.3 * sum(rows), nrows=2, height_ratios=[n + 1 for n in rows])
    _forest(top, list(accuracies), list(accuracies.values()), [BLUE] * rows[0])
    top.set_xlabel(label)
    colours = [RED if one["p_holm"] < LEVEL else BLUE for one in differences]
    _forest(bottom, [f"{one['a']} − {one['b']}" for one in differences], differences, colours)
    bottom.axvline(0, color=GREY, lw=1, ls="--")
    bottom.set_xlabel("paired difference of accuracies (red: significant after the Holm correction)")
    return figure


def _forest(axes: Axes, labels: Sequence[str], estimates: Sequence[Mapping[str, Any]], colours: Sequence[str]) -> None:
    for row, (estimate, colour) in enumerate(zip(estimates, colours, strict=True)):
        if estimate["low"] is not None:
            axes.plot([estimate["low"], estimate["high"]], [row, row], color=colour, lw=1.6)
        axes.plot(estimate["value"], row, color=colour, marker="o", ms=5)
    axes.set_yticks(range(len(labels)), labels=labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
