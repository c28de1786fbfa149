"""The pictures of a grid: AUROC by signal and pooling, and what weights add to it, on the questions that chose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from extract.signals.pooling import POOLINGS
from probes.report.plots import INK, new_figure, styled
from probes.training_free.grid import Grid
from probes.training_free.scores import PLAIN, TOKENS, Score

#: Layers of a signal that are drawn where there are more: a few, evenly spaced, the last one among them.
_LAYERS = 5
_COLUMNS = list(POOLINGS)


class Row(NamedTuple):
    """A row of a heat map.

    Attributes:
        block: What it stands among.
        label: What it is called there.
        values: [pooling] in the order of `POOLINGS`; NaN where there is none.
        chosen: [pooling] whether this is the score that validation chose.
    """

    block: str
    label: str
    values: NDArray[np.float64]
    chosen: NDArray[np.bool_]


class Look(NamedTuple):
    """How a heat map is laid out.

    Attributes:
        title: What stands above it.
        scale: What stands below its colours.
        middle: The value that is white.
        most_rows: Rows and headings of a panel.
        row: Inches of a row.
        panel: Inches of a panel with its labels.
        numbers: Whether the values stand in the cells.
    """

    title: str
    scale: str
    middle: float
    most_rows: int
    row: float
    panel: float
    numbers: bool


def grid_pictures(grid: Grid) -> dict[str, Figure]:
    """The pictures by file name, without ending; the second one only where there are weights."""
    n = grid.parts["val"].n_questions
    signals = Look(
        f"AUROC of unweighted scores on validation ({n} questions)",
        f"AUROC (½: no information; below: the wrong way round); {_LAYERS} layers of signals that have more",
        0.5,
        most_rows=38,
        row=0.155,
        panel=4.1,
        numbers=True,
    )
    pictures = {"signals": heat_map(signal_rows(grid), signals)}
    if rows := weighting_rows(grid):
        weightings = Look(
            f"What weights add to the AUROC of token entropy on validation ({n} questions)",
            "AUROC with these weights − without, pooled alike",
            0.0,
            most_rows=60,
            row=0.115,
            panel=3.3,
            numbers=False,
        )
        pictures["weightings"] = heat_map(rows, weightings)
    return pictures


def signal_rows(grid: Grid) -> list[Row]:
    """AUROCs, one row a key of a signal; of signals with many layers a few of them."""
    layers: dict[tuple[str, str], list[str]] = {}
    for name in grid.names:
        if not name.half:
            own = layers.setdefault((name.signal, name.position), [])
            if name.key not in own:
                own.append(name.key)
    return [
        _row(grid, signal, position if len(keys) == 1 else f"{position}, layer {key.split('/')[0]}", signal, key, PLAIN)
        for (signal, position), keys in layers.items()
        for key in _spaced(keys)
    ]


def weighting_rows(grid: Grid) -> list[Row]:
    """Differences to the same pooling without weights, one row a weighting of the token entropy; nothing without weights."""
    if grid.reference is None:
        return []
    key = grid.names[grid.reference].key
    plain = _row(grid, "", "", TOKENS, key, PLAIN).values
    rows = []
    for weighting in dict.fromkeys(one.weighting for one in grid.names if (one.signal, one.key) == (TOKENS, key)):
        if weighting != PLAIN:
            signal, _, name = weighting.partition("/")
            block, label = (signal, name) if name else (TOKENS, weighting)
            row = _row(grid, block, label, TOKENS, key, weighting)
            rows.append(row._replace(values=row.values - plain))
    return rows


def _row(grid: Grid, block: str, label: str, signal: str, key: str, weighting: str) -> Row:
    auroc, chosen = np.full(len(_COLUMNS), np.nan), np.zeros(len(_COLUMNS), dtype=bool)
    for column, pooling in enumerate(_COLUMNS):
        place = grid.places.get(Score(signal, key, pooling, weighting))
        if place is not None:
            auroc[column], chosen[column] = float(grid.found["val"].auroc[place]), place == grid.chosen
    return Row(block, label, auroc, chosen)


def _spaced(layers: Sequence[str]) -> list[str]:
    """A few keys, evenly spaced, the first and the last among them.

    >>> _spaced([f"{layer}/entropy" for layer in range(1, 31)])
    ['1/entropy', '8/entropy', '16/entropy', '23/entropy', '30/entropy']
    """
    if len(layers) <= _LAYERS:
        return list(layers)
    return [layers[round(i * (len(layers) - 1) / (_LAYERS - 1) + 1e-9)] for i in range(_LAYERS)]


@styled
def heat_map(rows: Sequence[Row], look: Look) -> Figure:
    """Values by row and pooling, blue above the middle and red below it; the chosen score is framed."""
    panels = _panels(rows, look.most_rows)
    height = max(map(_height, panels))
    figure, axes = new_figure(look.panel * len(panels) + 0.4, 1.3 + look.row * height, ncols=len(panels), squeeze=False)
    away = np.abs(np.concatenate([row.values for row in rows]) - look.middle)
    reach = max(0.05, float(np.nanmax(away, initial=0.0)))
    for axis, panel in zip(axes[0], panels, strict=True):
        image = _draw(axis, panel, height, reach, look)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=34, pad=0.012)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)
    framed = "; framed: chosen on validation" if any(row.chosen.any() for row in rows) else ""
    bar.set_label(look.scale + framed, fontsize=8)
    figure.suptitle(look.title, fontsize=11)
    return figure


def _panels(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Rows side by side in as many panels as are needed, of about equal height, blocks whole where that is near enough."""
    height = _height(rows)
    most = -(-height // -(-height // most))  # as many in each panel
    panels: list[list[Row]] = [[]]
    for _, members in groupby(rows, key=lambda row: row.block):
        block = list(members)
        room = most - _height(panels[-1]) - 1
        if panels[-1] and (room < 3 or room < min(len(block), most // 2)):
            panels.append([])
        for row in block:
            if _height([*panels[-1], row]) > most + 4:  # rather a little longer than one more panel
                panels.append([])
            panels[-1].append(row)
    return panels


def _height(rows: Sequence[Row]) -> int:
    """Rows and the headings of their blocks."""
    return len(rows) + len({row.block for row in rows})


def _draw(axis: Axes, rows: Sequence[Row], height: int, reach: float, look: Look) -> Any:
    """One panel, its blocks under their headings; gives what a colour bar needs."""
    shown, labels, place = np.full((height, len(_COLUMNS)), np.nan), [""] * height, 0
    for block, members in groupby(rows, key=lambda row: row.block):
        title = block.replace("_", " ")
        axis.text(-0.5, place + 0.1, title, ha="left", va="center", fontsize=7.5, fontweight="bold", color=INK)
        for row in members:
            place += 1
            shown[place], labels[place] = row.values, row.label
            for column in np.flatnonzero(row.chosen):
                axis.add_patch(Rectangle((column - 0.5, place - 0.5), 1, 1, fill=False, ec=INK, lw=1.6, zorder=5))
        place += 1
    low, high = look.middle - reach, look.middle + reach
    image = axis.imshow(shown, cmap="RdBu", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    for (y, x), value in np.ndenumerate(shown):
        if look.numbers and value == value:
            colour = "white" if abs(value - look.middle) > 0.62 * reach else INK
            axis.text(x, y, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=5.5, color=colour)
    axis.set_yticks(range(height), labels, fontsize=6.5 if look.numbers else 5.5)
    axis.set_xticks(range(len(_COLUMNS)), [name.replace("_", " ") for name in _COLUMNS], fontsize=7, rotation=90)
    axis.tick_params(length=0)
    axis.xaxis.tick_top()
    axis.spines[:].set_visible(False)
    return image
