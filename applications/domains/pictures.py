"""Plot of the accuracy and calibration of each cluster."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probes.report.plots import BLUE, GREY, INK, METHOD_COLOURS, RED, new_figure, styled

#: Number of words in the label of a cluster.
_N_WORDS = 3


@styled
def domains_picture(record: dict[str, Any]) -> Figure:
    """Draw a forest plot of the clusters.

    Blue (positive) and red (negative) mark significant differences and gaps. A difference compares a cluster with the
    other questions, and a gap compares a confidence with the accuracy.
    """
    clusters, names = record["clusters"], record["confidences"]
    order = sorted(range(len(clusters)), key=lambda one: -(clusters[one]["accuracy"]["value"] or 0))
    rows = [clusters[one] for one in order]
    titles = ["accuracy (dashed: all questions)", "difference from the other questions"]
    titles += [f"gap of {name}" for name in names]
    figure, axes = new_figure(3 + 2.4 * len(titles), 1.1 + 0.36 * len(rows), ncols=len(titles), sharey=True)
    columns = [[row["accuracy"] for row in rows], [row["minus_rest"] for row in rows]]
    columns += [[row["confidences"][name]["gap"] for row in rows] for name in names]
    for axis, title, column in zip(axes, titles, columns, strict=True):
        _forest(axis, column, coloured=axis is not axes[0])
        axis.axvline(record["all"]["accuracy"]["value"] if axis is axes[0] else 0, color=GREY, lw=1, ls="--", zorder=1)
        axis.set_xlabel(title)
    for name, colour in zip(names, METHOD_COLOURS[2:], strict=False):
        means = [row["confidences"][name]["mean"]["value"] for row in rows]
        style: Any = {"marker": "D", "ms": 4, "ls": "", "mfc": "none", "color": colour}
        axes[0].plot(np.array(means, dtype=float), range(len(rows)), label=f"mean confidence {name}", **style)
    for colour, label in ((RED, "significantly lower"), (BLUE, "significantly higher")):
        axes[0].plot([], [], color=colour, marker="o", ms=5, label=label)
    labels = [f"{one + 1}: " + ", ".join(clusters[one]["words"][:_N_WORDS]) for one in order]
    sizes = [f"{label} ({row['n_graded']})" for label, row in zip(labels, rows, strict=True)]
    axes[0].set_yticks(range(len(rows)), sizes, fontsize=8)
    axes[0].set_ylim(-0.6, len(rows) - 0.4)
    figure.legend(loc="outside upper center", fontsize=8, ncols=3)
    return figure


def _forest(axis: Axes, column: list[dict[str, Any]], coloured: bool) -> None:
    for height, found in enumerate(column):
        colour = INK if not coloured or not found["decision"] else RED if found["decision"] < 0 else BLUE
        if found["low"] is not None:
            axis.plot([found["low"], found["high"]], [height, height], color=colour, lw=1.6)
        if found["value"] is not None:
            axis.plot(found["value"], height, color=colour, marker="o", ms=5)
    axis.grid(axis="x", color="#e4e4e4", lw=0.7)
