"""Plots of the fraction of questions with a right answer against the budget."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from applications.budget.methods import BASE_RATE, ORACLE, PLUG_IN, UNIFORM
from probes.report.plots import BLUE, GREY, INK, METHOD_COLOURS, RED, new_figure, styled

_COLOURS = {UNIFORM: GREY, BASE_RATE: METHOD_COLOURS[-1], ORACLE: INK}
_CONFIDENCE_COLOURS = (BLUE, RED, *METHOD_COLOURS[2:4])


def budget_pictures(record: dict[str, Any]) -> dict[str, Figure]:
    """Plot each setting that has at least two budgets. Return the plots by setting."""
    settings = {name: setting for name, setting in record["settings"].items() if len(setting["budgets"]) > 1}
    return {name: success_by_budget(setting, record["confidences"]) for name, setting in settings.items()}


@styled
def success_by_budget(setting: dict[str, Any], confidences: list[str]) -> Figure:
    """Plot each method's success rate, and its difference from uniform allocation, against the budget.

    Dashed lines show methods whose gains are computed by `plug_in_gains`.
    """
    figure, (left, right) = new_figure(8.4, 3.8, ncols=2)
    budgets, methods = np.array(setting["budgets"]), setting["methods"]
    colours = _COLOURS | {name: _CONFIDENCE_COLOURS[i % 4] for i, name in enumerate(confidences)}
    for number, one in enumerate(methods):
        name, gain = one["confidence"], one["gain"]
        label = ", ".join(filter(None, [name.replace("_", " "), gain])) + " (not attainable)" * (name == ORACLE)
        style: Any = {"color": colours[name], "lw": 1.5, "ls": "--" if gain == PLUG_IN else "-", "marker": "o", "ms": 4}
        left.plot(budgets, [interval["value"] for interval in one["success"].values()], label=label, **style)
        if name != UNIFORM:
            low, value, high = (
                np.array([interval[end] for interval in one["difference"].values()]) for end in ("low", "value", "high")
            )
            places = budgets * 2 ** (0.07 * (number - len(methods) / 2))
            right.errorbar(places, value, yerr=np.clip([value - low, high - value], 0, None), elinewidth=1, **style)
    right.axhline(0, color=GREY, lw=1.5)
    left.set(ylabel="questions with a right answer")
    right.set(ylabel="difference from uniform, 95 % interval")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="mean number of answers per question")
        axis.grid(axis="y", color="#e4e4e4", lw=0.7)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, handlelength=3.5)
    return figure
