"""The picture of a layer map: a cell for every layer and position, the best one framed."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from probes.report.layer_map import LayerMap
from probes.report.plots import RED, annotate_cells, frame_cell, new_figure, styled

#: Inches that a number in a cell takes, and most inches of a picture.
_CELL, _WIDEST = 0.3, 14.0
#: What a cell looks like that has no value.
_UNREAD = "#ececec"
#: One hue, without its ends: white would be no value, and on black no frame is seen.
_RAMP = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.06, 0.96, 256)))


@styled
def layer_heat_map(maps: list[LayerMap], model: str) -> Figure:
    """AUROC by layer (x) and position (y), a panel a target, on one scale of colours that begins at chance.

    Args:
        maps: One or two maps.
        model: Name of the model, for the title.
    """
    layers = sorted({layer for one in maps for layer in one.layers})
    values = torch.cat([one.auroc.flatten() for one in maps])
    values = values[values.isfinite()]
    scale = min(0.5, float(values.min())), max(0.51, float(values.max()))
    heights = [len(one.positions) for one in maps]
    width = min(max(_CELL * len(layers) + 2.2, 6.8), _WIDEST)
    wide, numbers = width > 9, (width - 2.2) / len(layers) >= 0.9 * _CELL
    figure, axes = new_figure(
        width,
        max(2.2, 0.3 * sum(heights) + (0.5 if wide else 0.65) * len(maps) + 0.7),
        nrows=len(maps),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    for axis, one in zip(axes[:, 0], maps, strict=True):
        drawn = _panel(axis, one, layers, scale, wide, numbers)
    gaps = any(len(one.layers) < len(layers) for one in maps)
    axes[-1, 0].set_xlabel(f"layer (0: embeddings{'; grey: not read' * gaps})")
    bar = figure.colorbar(drawn, ax=list(axes[:, 0]), aspect=14, pad=0.015, fraction=0.05)
    bar.set_label("AUROC (0.5: chance)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    probe = {"ridge": "ridge probes (λ = 1)", "difference_of_means": "difference of means"}[maps[0].probe]
    figure.suptitle(
        f"{model}: {probe}, out of fold ({maps[0].n_folds} folds by question)", fontsize=11 if wide else 9.5
    )
    return figure


def _panel(axis: Axes, one: LayerMap, layers: list[int], scale: tuple[float, float], wide: bool, numbers: bool) -> Any:
    """Draw one map with its best cell framed; gives what a colour bar needs."""
    shown = np.full((len(one.positions), len(layers)), np.nan)
    places = [layers.index(layer) for layer in one.layers]
    shown[:, places] = one.auroc.numpy()
    drawn = axis.imshow(shown, cmap=_RAMP, vmin=scale[0], vmax=scale[1], aspect="auto", interpolation="nearest")
    if numbers:
        annotate_cells(axis, drawn, shown, 7.5)
    frame_cell(axis, one.best[0], places[one.best[1]], RED)
    step = max(1, -(-len(layers) // 45))
    ticks = range(0, len(layers), step)
    axis.set_xticks(list(ticks), [str(layers[i]) for i in ticks], fontsize=8)
    axis.tick_params(axis="x", labelbottom=True)
    axis.set_yticks(range(len(one.positions)), [name.replace("_", " ") for name in one.positions], fontsize=9)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_facecolor(_UNREAD)
    axis.set_xticks([i - 0.5 for i in range(1, len(layers))], minor=True)
    axis.set_yticks([i - 0.5 for i in range(1, len(one.positions))], minor=True)
    axis.grid(which="minor", color="white", lw=1)
    axis.tick_params(which="minor", length=0)
    axis.set_title(_caption(one, " " if wide else "\n"), fontsize=9, loc="left")
    return drawn


def _caption(one: LayerMap, between: str) -> str:
    """What a panel is about, how much there is of it, and after a space or a line break its best cell, as the best of many."""
    of = (
        f"{one.n_rows:,} answers to {one.n_questions:,} questions"
        if one.target == "response"
        else f"{one.n_rows:,} questions"
    )
    missing = f" ({one.n_missing:,} without states left out)" if one.n_missing else ""
    position, layer = one.best
    value = f"{one.auroc[position, layer]:.2f}"
    if one.interval is not None:
        value += f" [{one.interval['low']:.2f}, {one.interval['high']:.2f}]"
    best = f"framed: best of {int(one.auroc.isfinite().sum())}, layer {one.layers[layer]}, {value}, not corrected for the choice"
    return f"{one.target}, {of}{missing};{between}{best}"
