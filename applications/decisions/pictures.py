"""Plots of certified thresholds, and of routing."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probes.report.plots import GREY, INK, METHOD_COLOURS, new_figure, styled
from probes.report.templates import method_label


@styled
def risk_coverage_picture(record: Mapping[str, Any]) -> Figure:
    """Plot the measured risk against the coverage."""
    figure, axes = new_figure(5.8, 4.0)
    base = record["base_risk"]["value"]
    axes.axhline(base, color=GREY, lw=1, ls="--", label=f"random order ({base:.2f})")
    for (name, found), colour in zip(record["confidences"].items(), METHOD_COLOURS * 9, strict=False):
        coverage = [point["coverage"] for point in found["curve"]]
        value, low, high = (
            [point["risk"]["value" if point["risk"][end] is None else end] for point in found["curve"]]
            for end in ("value", "low", "high")
        )
        axes.fill_between(coverage, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(coverage, value, color=colour, lw=1.5, label=method_label(name))
        for one in found["thresholds"]:
            if one["threshold"] is not None:
                axes.plot(one["coverage"]["value"], one["measured_risk"]["value"], color=colour, marker="o", ms=7)
    for number, request in enumerate(record["requests"]):
        axes.axhline(request["risk"], color=INK, lw=0.7, ls=":", label="" if number else "target risk")
        axes.text(1.01, request["risk"], f"{request['risk']:g}", va="center", fontsize=8, color=INK)
    _explain(axes, record["confidences"], f"certified at level {record['level']:g}")
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="coverage (fraction of questions answered)")
    axes.set_ylabel("risk (fraction of wrong answers)")
    axes.legend(fontsize=8, loc="lower right")
    return figure


@styled
def routing_picture(routing: Mapping[str, Any]) -> Figure:
    """Plot accuracy against the mean cost per question."""
    figure, axes = new_figure(5.8, 4.0)
    cheap, strong = routing["alone"]
    ends = [cheap["cost"], strong["cost"]], [one["accuracy"]["value"] for one in (cheap, strong)]
    axes.plot(*ends, color=GREY, lw=1, ls="--", marker="s", ms=5, label="random routing")
    for one, offset, side in ((cheap, (6, -11), "left"), (strong, (0, 7), "center")):
        at, style = (one["cost"], one["accuracy"]["value"]), {"textcoords": "offset points", "fontsize": 8}
        axes.annotate(f"only {one['name']}", at, xytext=offset, ha=side, **style)
    for (name, found), colour in zip(routing["confidences"].items(), METHOD_COLOURS * 9, strict=False):
        cost = [point["cost"] for point in found["curve"]]
        value, low, high = ([point["accuracy"][end] for point in found["curve"]] for end in ("value", "low", "high"))
        axes.fill_between(cost, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(cost, value, color=colour, lw=1.5, marker=".", ms=4, label=f"routing by {method_label(name)}")
        for one in found["thresholds"]:
            if one["certified"]:
                axes.plot(
                    one["certified"]["cost"], one["certified"]["accuracy"]["value"], color=colour, marker="o", ms=7
                )
    oracle = next(iter(routing["confidences"].values()))["oracle"]
    value = [point["accuracy"]["value"] for point in oracle]
    cost = [point["cost"] for point in oracle[: value.index(max(value)) + 1]]  # stop where routing no longer helps
    axes.plot(cost, value[: len(cost)], color=INK, lw=1, ls=":", label="oracle")
    _explain(axes, routing["confidences"], "certified threshold")
    axes.set(xlabel="mean cost per question (tokens)", ylabel="accuracy")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _explain(axes: Axes, confidences: Mapping[str, Any], certified: str) -> None:
    colour = METHOD_COLOURS[0] if len(confidences) == 1 else INK
    axes.fill_between([], [], color=colour, alpha=0.15, lw=0, label="95 % interval")
    axes.plot([], [], color=colour, marker="o", ms=7, ls="", label=certified)
