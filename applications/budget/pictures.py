"""Pictures of a budget: success, and differences to the uniform allocation."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from applications.budget.methods import BASE_RATE, ORACLE, PLUG_IN, UNIFORM
from probes.report.plots import BLUE, GREY, INK, METHOD_COLOURS, RED, band, new_figure, styled

_COLOURS = {UNIFORM: GREY, BASE_RATE: METHOD_COLOURS[-1], ORACLE: INK}
_CONFIDENCE_COLOURS = (BLUE, RED, *METHOD_COLOURS[2:4])


def budget_pictures(record: dict[str, Any]) -> dict[str, Figure]:
    """Draw a picture for each setting with at least two budgets, and return them by name."""
    settings = {name: setting for name, setting in record["settings"].items() if len(setting["budgets"]) > 1}
    return {name: success_by_budget(setting, record["confidences"]) for name, setting in settings.items()}


@styled
def success_by_budget(setting: dict[str, Any], confidences: list[str]) -> Figure:
    """Plot the success, and its difference to the uniform allocation with 95 % bands, by budget.

    The lines of plug-in gains are dashed.
    """
    figure, (left, right) = new_figure(8.4, 3.6, ncols=2)
    budgets = setting["budgets"]
    colours = _COLOURS | {name: _CONFIDENCE_COLOURS[i % 4] for i, name in enumerate(confidences)}
    for one in setting["methods"]:
        name, gain = one["confidence"], one["gain"]
        label = ", ".join(filter(None, [name.replace("_", " "), gain])) + " (not attainable)" * (name == ORACLE)
        line = {"color": colours[name], "lw": 1.6, "ls": "--" if gain == PLUG_IN else "-", "marker": "o", "ms": 3.5}
        left.plot(budgets, [one["success"][str(budget)]["value"] for budget in budgets], label=label, **line)
        if name != UNIFORM:
            band(right, budgets, [one["difference"][str(budget)] for budget in budgets], alpha=0.12, **line)
    right.axhline(0, color=GREY, lw=1.6)
    left.set(ylabel="questions with a right answer")
    right.set(ylabel="difference to uniform, 95 % interval")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="mean number of answers per question")
        axis.grid(axis="y", color="#e4e4e4", lw=0.7)
        axis.set_axisbelow(True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure
