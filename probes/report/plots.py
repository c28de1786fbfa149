"""Plots of a training report, and the style and helper functions of all plots."""

from collections.abc import Mapping, Sequence
from typing import Any

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
from probes.metrics.functional.inputs import by_group
from probes.report.evaluate import Scored
from probes.report.templates import method_label

INK, BLUE, GREY, RED = "#222222", "#2463a8", "#8a8a8a", "#b8442c"
METHOD_COLOURS = (BLUE, RED, "#4d8a4b", "#8a63a8", GREY, "#c28a1e")
#: Decorator that applies the common style to a plotting function.
styled = matplotlib.rc_context(
    {
        "font.size": 10,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "legend.frameon": False,
    }
)


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """Create a figure and its axes. `width` and `height` are in inches."""
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    return figure, figure.subplots(**grid)


def annotate_cells(
    axes: Axes, image: AxesImage, values: NDArray[np.float64], fontsize: float, bold: NDArray[np.bool_] | None = None
) -> None:
    """Write the values [row, column] of a heat map into its cells, except NaN."""
    rgb = image.to_rgba(values)[..., :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    # below this luminance, white text has more contrast than dark text (WCAG 2)
    dark = linear @ (0.2126, 0.7152, 0.0722) < 0.213
    for cell, value in np.ndenumerate(values):
        if value == value:
            weight = "bold" if bold is not None and bold[cell] else "normal"
            style: Any = {"size": fontsize, "weight": weight, "color": "white" if dark[cell] else INK}
            axes.text(cell[1], cell[0], f"{value:.2f}".removeprefix("0"), ha="center", va="center", **style)


def frame_cell(axes: Axes, row: int, column: int, colour: str) -> None:
    """Draw a frame around a cell of a heat map."""
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=colour, lw=1.8, zorder=5, clip_on=False))


def calibration_bins(scored: Scored, n_bins: int, by: str) -> tuple[list[float], list[float], list[float], list[int]]:
    """Return each bin's mean confidence, mean accuracy, standard error of the mean accuracy, and number of rows.

    See `bin_index` for `by`.
    """
    accuracy = scored.accuracy
    bins = bin_index(scored.confidence, n_bins, by)
    members = [bins == i for i in bins.unique()]
    counts = [int(rows.sum()) for rows in members]
    errors = [float(accuracy[rows].std() / n**0.5) if n > 1 else 0.0 for rows, n in zip(members, counts, strict=True)]
    confidences, accuracies = (
        [float(values[rows].mean()) for rows in members] for values in (scored.confidence, accuracy)
    )
    return confidences, accuracies, errors, counts


@styled
def reliability(
    method: str, scored: Scored, ece: dict[str, Any] | None, n_bins: int = 10, rows: str = "questions"
) -> Figure:
    """Plot the mean accuracy in each confidence bin, with standard errors and row counts."""
    figure, (top, bottom) = new_figure(4.2, 4.8, nrows=2, sharex=True, height_ratios=[3.2, 1])
    top.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--", label="perfectly calibrated")
    x, y, error, counts = calibration_bins(scored, n_bins, "width")
    label = f"{method_label(method)}\n(bars: ± 1 standard error)"
    top.errorbar(x, y, yerr=error, color=BLUE, fmt="o", ms=5, lw=1.2, capsize=2, label=label)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="measured accuracy", title="Reliability, test split")
    if ece is not None:
        top.text(0.97, 0.05, f"ECE {ece['value']:.3f}", ha="right", transform=top.transAxes, color=INK)
    top.legend(loc="upper left", fontsize=8)
    centres = [(i + 0.5) / n_bins for i in bin_index(scored.confidence, n_bins, "width").unique().tolist()]
    bars = bottom.bar(centres, counts, width=0.9 / n_bins, color=BLUE, alpha=0.6)
    bottom.bar_label(bars, fontsize=8, color=INK)
    bottom.set(xlabel="confidence", ylabel=rows, ylim=(0, max(counts) * 1.25))
    return figure


@styled
def roc(methods: dict[str, Scored], figures: dict[str, Any], target: str = "capability") -> Figure:
    """Plot the ROC curves of the methods. The legend shows their AUROCs from `figures`."""
    figure, axes = new_figure(4.6, 4.6)
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    for (name, scored), colour in zip(methods.items(), METHOD_COLOURS, strict=False):
        accuracy = scored.accuracy
        distinct, group = (-scored.confidence).unique(return_inverse=True)
        shares = by_group(torch.stack([1 - accuracy, accuracy]), group, len(distinct)).cumsum(-1)
        points = torch.nn.functional.pad(shares / shares[:, -1:], (1, 0))  # curves start at the origin
        auroc = figures[name]["auroc"]
        label = f"{method_label(name)}  {auroc['value']:.2f} [{auroc['low']:.2f}, {auroc['high']:.2f}]"
        axes.plot(*points.numpy(), color=colour, lw=1.6, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="ROC, test split")
    axes.set(xlabel="share of wrong answers above the threshold", ylabel="share of right answers above the threshold")
    axes.legend(loc="lower right", fontsize=8, title=f"{target} AUROC", title_fontsize=8)
    return figure


def band(
    axes: Axes, x: Sequence[int], intervals: Sequence[Mapping[str, Any] | None], alpha: float = 0.2, **line: Any
) -> None:
    """Plot a line with its 95 % band. Points without an interval are left out."""
    points = [(place, interval) for place, interval in zip(x, intervals, strict=True) if interval is not None]
    places = [place for place, _ in points]
    low, high, value = ([interval[end] for _, interval in points] for end in ("low", "high", "value"))
    axes.fill_between(places, low, high, color=line["color"], alpha=alpha, lw=0)
    axes.plot(places, value, **line)


@styled
def by_layer(
    method: str,
    names: Sequence[str],
    intervals: Mapping[str, Sequence[Mapping[str, Any] | None]],
    chosen: Sequence[int],
    figures: Sequence[Mapping[str, Any] | None],
    references: dict[str, tuple[float, float]],
    target: str = "capability",
) -> Figure:
    """Plot the AUROC and the Brier score of a probe by layer, with 95 % bands.

    Args:
        names: Name of each feature, in the form ``layer/position``.
        intervals: Dict from `auroc` and `brier` to the intervals of the features.
        chosen: Layers that the probe reads.
        figures: AUROC and Brier score of the probe, drawn as circles, or as lines if the probe reads several layers.
        references: AUROC and Brier score of up to two baselines, by name, drawn as horizontal lines.
    """
    figure, axes = new_figure(8.4, 3.4, ncols=2)
    labels = f"{target} AUROC", "Brier score" + (" (debiased)" if target == "capability" else "")
    places = [(int(layer), position) for layer, position in (name.split("/")[:2] for name in names)]
    positions = sorted({position for _, position in places})
    for column, (axis, values, label) in enumerate(zip(axes, intervals.values(), labels, strict=True)):
        for position, colour in zip(positions, METHOD_COLOURS, strict=False):
            rows = [i for i, place in enumerate(places) if place[1] == position]
            line: Any = {"color": colour, "lw": 1.5, "marker": ".", "label": f"single layer, {position}"}
            band(axis, [places[i][0] for i in rows], [values[i] for i in rows], **line)
        own = figures[column]
        if own is not None and len(chosen) == 1:
            circle = {"s": 64, "facecolors": "none", "edgecolors": INK}
            axis.scatter(chosen[0], own["value"], label=f"chosen on validation: layer {chosen[0]}", **circle)
        elif own is not None:
            line = {"color": INK, "lw": 2.5, "label": f"average of layers {chosen[0]} to {chosen[-1]}"}
            axis.plot([chosen[0], chosen[-1]], [own["value"]] * 2, **line)
        for (name, reference), style in zip(references.items(), (":", "--"), strict=False):
            axis.axhline(reference[column], color=GREY, lw=1, ls=style, label=method_label(name))
        axis.set(xlabel="layer (0: embeddings)", ylabel=label)
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=8)
    figure.suptitle(f"{method_label(method)} on the test split, 95 % intervals over questions", fontsize=10)
    return figure


@styled
def accuracy_distribution(accuracy: Tensor, groups: Sequence[str]) -> Figure:
    """Plot a histogram of the questions' accuracies, and a box plot for each group of questions."""
    figure, (left, right) = new_figure(8.4, 3.2, ncols=2)
    left.hist(accuracy.tolist(), bins=[(i - 0.5) / 10 for i in range(12)], color=BLUE, alpha=0.75, rwidth=0.9)
    left.set_title(f"{len(accuracy)} questions, mean {float(accuracy.mean()):.2f}")
    left.set(xlabel="expected accuracy (share of right answers)", ylabel="questions", xticks=[i / 5 for i in range(6)])
    group_of, values = np.array(groups), accuracy.numpy()
    of_group = {name: values[group_of == name] for name in sorted(set(groups))}
    of_group = dict(sorted(of_group.items(), key=lambda item: item[1].mean()))
    labels = [f"{name or 'all'} ({len(members)})" for name, members in of_group.items()]
    style: Any = {"widths": 0.55, "medianprops": {"color": RED}, "flierprops": {"ms": 3, "mec": GREY}}
    style["meanprops"] = {"marker": "D", "ms": 4, "mfc": BLUE, "mec": BLUE}
    right.boxplot([*of_group.values()], orientation="horizontal", tick_labels=labels, showmeans=True, **style)
    # a legend's markers would look like outliers
    right.set(xlabel="expected accuracy (◆ mean, red line median)", xlim=(-0.03, 1.03), title="by group (questions)")
    return figure
