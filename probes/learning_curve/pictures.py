"""Plots of learning curves."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

from probes.report.plots import GREY, band, new_figure, styled

_LABELS = {"auroc": "capability AUROC", "brier_skill": "Brier skill"}


def curve_pictures(record: dict[str, Any]) -> dict[str, Figure]:
    """Draw the plots of learning curves and return them by name."""
    return {
        "questions": by(record, "n", "training questions"),
        "budgets": by(record, "budget", "graded training answers"),
    }


@styled
def by(record: dict[str, Any], x: str, label: str) -> Figure:
    """Plot AUROC and Brier skill against `x` (`n` or `budget`), with a line and a 95 % band for each k."""
    figure, axes = new_figure(8.4, 3.6, ncols=2)
    colours = matplotlib.colormaps["viridis"](np.linspace(0.85, 0.0, len(record["k"])))
    for axis, (metric, name) in zip(axes, _LABELS.items(), strict=True):
        for k, colour in zip(record["k"], colours, strict=True):
            cells = [cell for cell in record["cells"] if cell["k"] == k]
            style: Any = {"color": colour, "lw": 1.8, "marker": "o", "ms": 4, "label": f"k = {k}"}
            band(axis, [cell[x] for cell in cells], [cell[metric] for cell in cells], alpha=0.11, **style)
        axis.set(xscale="log", xlabel=label, ylabel=name)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(ScalarFormatter())
        if x == "n":
            axis.set_xticks(record["n"], [str(n) for n in record["n"]])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(axis="y", color="#e4e4e4", lw=0.7)
    if record["auroc_ceiling"]:
        axes[0].axhline(record["auroc_ceiling"]["value"], color=GREY, lw=1, ls=":", label="AUROC ceiling")
    axes[1].axhline(0, color=GREY, lw=1, ls="--", label="constant")
    handles, labels = axes[0].get_legend_handles_labels()
    constant, text = axes[1].get_legend_handles_labels()
    options: Any = {"loc": "outside upper center", "ncols": 8, "fontsize": 8, "title_fontsize": 8}
    figure.legend([*handles, constant[-1]], [*labels, text[-1]], title="k graded answers per question", **options)
    return figure
