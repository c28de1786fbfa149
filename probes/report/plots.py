"""The pictures of a report. Each function draws one figure and returns it; nothing is computed that a table lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from probes.metrics.functional import bin_index
from probes.metrics.intervals import Interval
from probes.report.evaluate import Scored

_Args = ParamSpec("_Args")
INK, BLUE, GREY, RED = "#222222", "#2463a8", "#8a8a8a", "#b8442c"
METHOD_COLOURS = ("#2463a8", "#b8442c", "#4d8a4b", "#8a63a8", "#8a8a8a", "#c28a1e")
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "legend.frameon": False,
}


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """A figure of a size in inches, and its axes."""
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    return figure, figure.subplots(**grid)


def styled(draw: Callable[_Args, Figure]) -> Callable[_Args, Figure]:
    """Draw a function's figure in the style of our pictures."""

    @wraps(draw)
    def styled(*args: _Args.args, **kwargs: _Args.kwargs) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


def annotate_cells(
    axes: Axes, image: AxesImage, values: NDArray[np.float64], fontsize: float, bold: NDArray[np.bool_] | None = None
) -> None:
    """Write the values of a heat map into its cells, except NaN.

    Args:
        axes: Axes of the heat map.
        image: What `imshow` returned.
        values: [row, column] the values.
        fontsize: Size of the numbers.
        bold: [row, column] whether a number is bold; None for none.
    """
    rgba = image.to_rgba(values)
    for (row, column), value in np.ndenumerate(values):
        if value == value:
            text, weight = (
                f"{value:.2f}".removeprefix("0"),
                "normal" if bold is None or not bold[row, column] else "bold",
            )
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                size=fontsize,
                weight=weight,
                color=_legible_on(rgba[row, column]),
            )


def _legible_on(colour: Any) -> str:
    """White or ink, whichever has the higher contrast (WCAG 2) on a colour of red, green and blue in [0, 1]."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.066 else INK  # 0.066: that of ink, and 0.05


def frame_cell(axes: Axes, row: int, column: int, colour: str) -> None:
    """Draw a frame around a cell of a heat map."""
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=colour, lw=1.8, zorder=5, clip_on=False))


def calibration_bins(scored: Scored, n_bins: int, by: str) -> tuple[list[float], list[float], list[float], list[int]]:
    """Confidence, accuracy, standard error of the accuracy, and count in each bin of the confidence that is not empty.

    Args:
        scored: Confidences and answers.
        n_bins: Number of bins.
        by: Bins of equal `width` or of equal `mass`.
    """
    accuracy = scored.right.double() / scored.known.double()
    bins = bin_index(scored.confidence, n_bins, by)
    members = [(scored.confidence[bins == i], accuracy[bins == i]) for i in bins.unique().tolist()]
    return (
        [float(confidence.mean()) for confidence, _ in members],
        [float(accuracy.mean()) for _, accuracy in members],
        [float(accuracy.std() / len(accuracy) ** 0.5) if len(accuracy) > 1 else 0.0 for _, accuracy in members],
        [len(accuracy) for _, accuracy in members],
    )


@styled
def reliability(method: str, scored: Scored, ece: Interval | None, n_bins: int = 10, what: str = "questions") -> Figure:
    """Mean measured accuracy in bins of the confidence, with standard errors over questions, above the bins' counts."""
    figure, (top, bottom) = new_figure(4.2, 4.8, nrows=2, sharex=True, height_ratios=[3.2, 1])
    top.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--", label="perfectly calibrated")
    x, y, error, counts = calibration_bins(scored, n_bins, "width")
    label = f"{method} (bars: ± 1 standard error)"
    top.errorbar(x, y, yerr=error, color=BLUE, marker="o", ms=5, lw=1.2, capsize=2, label=label)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="measured accuracy", title=f"Reliability of {method}")
    if ece is not None:
        top.text(0.97, 0.05, f"ECE {ece['value']:.3f}", ha="right", transform=top.transAxes, color=INK)
    top.legend(loc="upper left", fontsize=8)
    centres = [(i + 0.5) / n_bins for i in bin_index(scored.confidence, n_bins, "width").unique().tolist()]
    bottom.bar(centres, counts, width=0.9 / n_bins, color=BLUE, alpha=0.6)
    for centre, count in zip(centres, counts, strict=True):
        bottom.text(centre, count, str(count), ha="center", va="bottom", fontsize=8, color=INK)
    bottom.set(xlabel="confidence", ylabel=what, ylim=(0, max(counts) * 1.25))
    return figure


@styled
def roc(methods: dict[str, Scored], aurocs: dict[str, Interval | None], target: str = "capability") -> Figure:
    """ROC curves over answers: every question brings its share of right and of wrong answers."""
    figure, axes = new_figure(4.6, 4.6)
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    for (name, scored), colour in zip(methods.items(), METHOD_COLOURS, strict=False):
        x, y = roc_points(scored)
        figures = aurocs.get(name)
        label = (
            name if figures is None else f"{name}  {figures['value']:.2f} [{figures['low']:.2f}, {figures['high']:.2f}]"
        )
        axes.plot(x, y, color=colour, lw=1.6, label=label)
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel="share of wrong answers above the threshold",
        ylabel="share of right answers above the threshold",
        title="ROC, test split",
    )
    axes.legend(loc="lower right", fontsize=8, title=f"{target} AUROC", title_fontsize=8)
    return figure


def roc_points(scored: Scored) -> tuple[list[float], list[float]]:
    """Shares of wrong (x) and right (y) answers at or above each distinct score, from the origin."""
    accuracy = scored.right.double() / scored.known.double()
    values, group = (-scored.confidence).unique(sorted=True, return_inverse=True)
    shares = []
    for mass in (1 - accuracy, accuracy):
        by_score = torch.zeros(len(values), dtype=torch.float64).index_add_(0, group, mass)
        shares.append([0.0, *(by_score.cumsum(0) / by_score.sum()).tolist()])
    return shares[0], shares[1]


@styled
def by_layer(
    method: str,
    names: Sequence[str],
    aurocs: Sequence[Interval | None],
    briers: Sequence[Interval | None],
    chosen: str,
    references: dict[str, tuple[float, float]],
    target: str = "capability",
) -> Figure:
    """AUROC and Brier score of every layer's probe, with 95 % bands, beside baselines as lines.

    Args:
        method: Name of the probe.
        names: Feature names, ``layer/position``.
        aurocs: AUROC of each feature.
        briers: Brier score of each feature.
        chosen: Name of the feature that validation chose.
        references: AUROC and Brier of baselines by name.
        target: What the figures are about, capability or response.
    """
    labels = f"{target} AUROC", "Brier score" + (" (debiased)" if target == "capability" else "")
    figure, axes = new_figure(8.4, 3.4, ncols=2)
    positions = sorted({name.split("/")[1] for name in names})
    for column, (axis, intervals, label) in enumerate(zip(axes, (aurocs, briers), labels, strict=True)):
        for position, colour in zip(positions, METHOD_COLOURS, strict=False):
            rows = [
                (int(name.split("/")[0]), one)
                for name, one in zip(names, intervals, strict=True)
                if one is not None and name.split("/")[1] == position
            ]
            layers = [layer for layer, _ in rows]
            axis.fill_between(
                layers,
                [one["low"] for _, one in rows],
                [one["high"] for _, one in rows],
                color=colour,
                alpha=0.18,
                lw=0,
            )
            axis.plot(
                layers,
                [one["value"] for _, one in rows],
                color=colour,
                lw=1.5,
                marker=".",
                label=f"{method}, {position}",
            )
            for layer, one in rows:
                if f"{layer}/{position}" == chosen:
                    axis.plot(
                        [layer],
                        [one["value"]],
                        marker="o",
                        ms=8,
                        mfc="none",
                        mec=INK,
                        ls="",
                        label=f"chosen on validation: layer {layer}",
                    )
        for (name, values), style in zip(references.items(), (":", "--", "-."), strict=False):
            axis.axhline(values[column], color=GREY, lw=1, ls=style, label=name)
        axis.set(xlabel="layer (0: embeddings)", ylabel=label)
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=8)
    figure.suptitle("Test split, 95 % intervals over questions", fontsize=10)
    return figure


@styled
def accuracy_distribution(accuracy: Tensor, groups: Sequence[str]) -> Figure:
    """How many questions the model gets right how often, and the mean of each group."""
    figure, (left, right) = new_figure(8.4, 3.2, ncols=2)
    left.hist(accuracy.tolist(), bins=[(i - 0.5) / 10 for i in range(12)], color=BLUE, alpha=0.75, rwidth=0.9)
    left.set(
        xlabel="expected accuracy (share of right answers)",
        ylabel="questions",
        title=f"{len(accuracy)} questions, mean {float(accuracy.mean()):.2f}",
        xticks=[i / 5 for i in range(6)],
    )
    names = sorted(set(groups))
    of_group = [torch.tensor([float(a) for a, g in zip(accuracy, groups, strict=True) if g == name]) for name in names]
    order = sorted(range(len(names)), key=lambda i: float(of_group[i].mean()))
    labels = [f"{names[i] or 'all'} ({len(of_group[i])})" for i in order]
    right.boxplot(
        [of_group[i].tolist() for i in order],
        orientation="horizontal",
        tick_labels=labels,
        widths=0.55,
        medianprops={"color": RED},
        flierprops={"ms": 3, "mec": GREY},
    )
    right.plot(
        [float(of_group[i].mean()) for i in order],
        range(1, len(order) + 1),
        ls="",
        marker="D",
        ms=4,
        color=BLUE,
    )
    # no legend: its marker would stand among the outliers
    right.set(xlabel="expected accuracy (◆ mean, red line median)", xlim=(-0.03, 1.03), title="by group (questions)")
    return figure
