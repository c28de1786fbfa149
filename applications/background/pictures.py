"""Plots of background-temperature estimates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from applications.background.variability import METRICS
from probes.report.plots import GREY, INK, METHOD_COLOURS, RED, new_figure, styled

_COLOURS = [colour for colour in METHOD_COLOURS if colour not in (RED, GREY)]


def background_pictures(record: Mapping[str, Any]) -> dict[str, Figure]:
    """Return a dict from name to plot. The `recovery` plot is left out if there are too few outputs."""
    tested = any(reference["recovery"] for reference in record["references"].values())
    return {"curves": curves_picture(record)} | ({"recovery": recovery_picture(record)} if tested else {})


@styled
def curves_picture(record: Mapping[str, Any]) -> Figure:
    """Plot the mean of each metric against the temperature."""
    figure, grid = new_figure(7.2, 5.4, nrows=2, ncols=2, sharex=True)
    for axes, (name, metric) in zip(grid.flat, METRICS.items(), strict=True):
        cells = [cell for cell in record["cells"] if cell["metric"] == name]
        for cell, colour in zip(cells, _COLOURS * len(cells), strict=False):
            _band(
                axes, record["references"][cell["reference"]]["temperatures"], cell["curve"], colour, cell["reference"]
            )
            found = cell["temperature"]
            axes.axvspan(found["low"], found["high"], color=colour, alpha=0.12, lw=0)
            axes.axvline(found["value"], color=colour, lw=1, ls=":")
        value = cells[0]["tested"]
        axes.axhspan(value["low"], value["high"], color=RED, alpha=0.15, lw=0)
        axes.axhline(value["value"], color=RED, lw=1.2, label="tested system")
        axes.set(title=metric.label)
    for axes in grid[-1]:
        axes.set(xlabel="temperature of the reference")
    grid.flat[0].legend(fontsize=8)
    return figure


@styled
def recovery_picture(record: Mapping[str, Any]) -> Figure:
    """Plot the estimated temperatures of held-out outputs against the true temperatures."""
    figure, axes = new_figure(4.4, 4.2)
    found = [reference for reference in record["references"].values() if reference["recovery"]]
    for reference, colour in zip(found, _COLOURS * len(found), strict=False):
        _band(axes, reference["temperatures"], reference["recovery"]["estimates"], colour, reference["name"])
    ends = [min(one["temperatures"][0] for one in found), max(one["temperatures"][-1] for one in found)]
    axes.plot(ends, ends, color=INK, lw=1, ls="--", label="exact")
    axes.set(xlabel="true temperature", ylabel="estimated temperature")
    axes.legend(fontsize=8)
    return figure


def _band(axes: Axes, x: list[float], estimates: list[Mapping[str, float]], colour: str, label: str) -> None:
    value, low, high = (np.array([one[name] for one in estimates]) for name in ("value", "low", "high"))
    axes.plot(x, value, color=colour, lw=1.4, marker=".", ms=4, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
