"""Plots of Pass@K."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter
from scipy.stats import chi2

from probes.report.plots import BLUE, GREY, INK, METHOD_COLOURS, RED, band, new_figure, styled
from probes.report.templates import method_label

_MODELS = {"beta_binomial": ("beta-binomial", RED), "zero_inflated": ("zero-inflated", "#4d8a4b")}


def passk_pictures(record: dict[str, Any]) -> dict[str, Figure]:
    """Return the plots by name."""
    stores = record["stores"]
    named = {"" if len(stores) == 1 else f"-t{store['temperature']:g}": store for store in stores}
    plots = {f"curve{ending}": curve_picture(store) for ending, store in named.items()}
    profiles = {
        f"zero_share{ending}": profile_picture(store["extrapolation"])
        for ending, store in named.items()
        if store["extrapolation"] and store["extrapolation"]["profile"]
    }
    if record["temperatures"] and record["temperatures"]["budgets"]:
        plots = {"temperatures": temperature_picture(record), **plots}
    return plots | profiles


def _drawn(intervals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace missing interval bounds with the estimates themselves."""
    return [{end: found["value"] if at is None else at for end, at in found.items()} for found in intervals]


@styled
def curve_picture(store: dict[str, Any]) -> Figure:
    """Plot measured Pass@K, the bands predicted from confidences, and the extrapolations of two models."""
    curve, found = store["curve"], store["extrapolation"]
    titles = ["predicted by confidences, 95 % predictive bands"] * bool(curve["predicted"])
    titles += ["fitted models, 95 % intervals" if found else "95 % intervals over questions"]
    figure, axes = new_figure(4.2 * len(titles), 3.6, ncols=len(titles), sharey=True, squeeze=False)
    n_measured = len(curve["measured"])
    for axis, title in zip(axes[0], titles, strict=True):
        line: Any = {"color": INK, "lw": 2.2, "zorder": 4, "label": "measured"}
        band(axis, curve["k"][:n_measured], _drawn(curve["measured"]), **line)
        _scale(axis, curve["k"][-1])
        axis.set_title(title, fontsize=10)
    for (name, predicted), colour in zip(curve["predicted"].items(), METHOD_COLOURS, strict=False):
        band(axes[0, 0], curve["k"], predicted, color=colour, lw=1.5, label=method_label(name))
    if found:
        most = curve["k"][n_measured - 1]
        axes[0, -1].axvline(most, color=GREY, lw=1, ls=":", label=f"extrapolation beyond {most} answers")
    for model, (name, colour) in _MODELS.items() if found else ():
        band(axes[0, -1], found["k"], found[model]["pass_at_k"], color=colour, lw=1.5, ls="--", label=name)
    axes[0, 0].set_ylabel("Pass@K")
    for axis in axes[0]:
        axis.legend(loc="lower right", fontsize=8)
    return figure


def _scale(axis: Axes, most: int) -> None:
    """Make the x axis logarithmic, from 1 to `most` answers, with labels at powers of 4."""
    axis.set(xscale="log", xlim=(1, most), ylim=(0, 1.02), xlabel="answers per question, K")
    axis.xaxis.set_major_locator(LogLocator(base=4))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(axis="y", color="#e4e4e4", lw=0.7)


@styled
def profile_picture(extrapolation: dict[str, Any]) -> Figure:
    """Plot the deviance against π₀, the share of questions that are never answered correctly."""
    figure, axes = new_figure(4.6, 3.2)
    profile, found = extrapolation["profile"], extrapolation["zero_inflated"]["zero_share"]
    axes.axvspan(found["low"], found["high"], color=BLUE, alpha=0.12, lw=0, label="95 % interval")
    axes.plot(profile["zero_share"], profile["deviance"], color=BLUE, lw=1.8, label="profile likelihood")
    critical = float(chi2.ppf(0.95, 1))
    axes.axhline(critical, color=GREY, lw=1, ls="--")
    axes.axvline(found["value"], color=BLUE, lw=1, ls=":")
    axes.set(xlabel="share π₀ of questions that are never answered correctly", ylabel="deviance")
    axes.set(xlim=(0, max(profile["zero_share"])), ylim=(0, 4 * critical))
    axes.legend(loc="upper center", fontsize=8)
    return figure


@styled
def temperature_picture(record: dict[str, Any]) -> Figure:
    """Plot the pass rate at each temperature against the number of answers."""
    figure, axes = new_figure(5.6, 3.8)
    grid = record["temperatures"]
    budgets = [budget["k"] for budget in grid["budgets"]]
    colours = matplotlib.colormaps["viridis"](np.linspace(0.9, 0.1, len(grid["temperatures"])))
    for i, (temperature, colour) in enumerate(zip(grid["temperatures"], colours, strict=True)):
        values = [budget["of_single"][i]["value"] for budget in grid["budgets"]]
        axes.plot(budgets, values, color=colour, lw=1, marker=".", label=f"T = {temperature:g}")
    lines = (("of_best", "best single, chosen on other questions", INK), ("of_split", "split evenly", RED))
    for key, label, colour in lines:
        intervals = _drawn([budget[key] for budget in grid["budgets"]])
        band(axes, budgets, intervals, color=colour, lw=2, marker="o", ms=4, label=label)
    axes.set(xscale="log", xlabel="answers per question", ylabel="pass rate")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="#e4e4e4", lw=0.7)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure
