"""Two heat maps: validation AUROCs by signal and pooling, and the effect of token weights on the AUROC."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from extract.signals.pooling import POOLINGS
from probes.report.plots import INK, annotate_cells, frame_cell, new_figure, styled
from probes.training_free.grid import Grid
from probes.training_free.scores import TOKENS, UNWEIGHTED, Score

#: Maximum number of layers per signal. They are evenly spaced, and include the first and the last layer.
_LAYERS = 5
_COLUMNS = list(POOLINGS)


class Row(NamedTuple):
    """Row of a heat map. `values` and `chosen` have one entry per pooling method. Missing values are NaN."""

    block: str
    label: str
    values: NDArray[np.float64]
    chosen: NDArray[np.bool_]


def grid_pictures(grid: Grid) -> dict[str, Figure]:
    """Draw the `signals` plot and, if there are weighted scores, the `weightings` plot."""
    suffix = f"on {grid.parts['val'].n_questions} validation questions"
    title = f"AUROC of unweighted scores {suffix}"
    scale = f"AUROC (½: no information, below ½: wrong direction), at most {_LAYERS} layers per signal"
    rows = signal_rows(grid)
    pictures = {"signals": _heat_map(rows, title, scale, 0.5, most_rows=38, row_size=0.155, panel_size=4.1)}
    if rows := weighting_rows(grid):
        title = f"Effect of weights on the AUROC of token entropy {suffix}"
        scale = "AUROC − unweighted AUROC, same pooling"
        options: Any = {"most_rows": 60, "row_size": 0.115, "panel_size": 3.3, "numbers": False}
        pictures["weightings"] = _heat_map(rows, title, scale, 0.0, **options)
    return pictures


def signal_rows(grid: Grid) -> list[Row]:
    """Return the AUROCs of the unweighted scores, one row per signal, position and layer (at most five layers)."""
    keys_of: dict[tuple[str, str], dict[str, None]] = {}
    for name in grid.names:
        if not name.half:
            keys_of.setdefault((name.signal, name.position), {})[name.key] = None
    return [
        _row(grid, signal, position + (f", layer {key.split('/')[0]}" if len(keys) > 1 else ""), signal, key)
        for (signal, position), keys in keys_of.items()
        for key in _spaced(list(keys))
    ]


def weighting_rows(grid: Grid) -> list[Row]:
    """Return the AUROC of weighted token entropy minus that of unweighted token entropy, one row per weighting."""
    if grid.reference is None:
        return []
    key = grid.names[grid.reference].key
    unweighted = _row(grid, "", "", TOKENS, key).values
    rows = []
    for weighting in dict.fromkeys(name.weighting for name in grid.names if (name.signal, name.key) == (TOKENS, key)):
        if weighting != UNWEIGHTED:
            signal, _, name = weighting.rpartition("/")
            row = _row(grid, signal or TOKENS, name, TOKENS, key, weighting)
            rows.append(row._replace(values=row.values - unweighted))
    return rows


def _row(grid: Grid, block: str, label: str, signal: str, key: str, weighting: str = UNWEIGHTED) -> Row:
    values, chosen = np.full(len(_COLUMNS), np.nan), np.zeros(len(_COLUMNS), dtype=bool)
    for column, pooling in enumerate(_COLUMNS):
        row = grid.row_of.get(Score(signal, key, pooling, weighting))
        if row is not None:
            values[column], chosen[column] = float(grid.aurocs["val"].auroc[row]), row == grid.chosen
    return Row(block, label, values, chosen)


def _spaced(keys: Sequence[str]) -> list[str]:
    """Return at most `_LAYERS` evenly spaced keys, including the first and the last.

    >>> _spaced([f"{layer}/entropy" for layer in range(1, 31)])
    ['1/entropy', '8/entropy', '16/entropy', '23/entropy', '30/entropy']
    """
    if len(keys) <= _LAYERS:
        return list(keys)
    return [keys[round(i * (len(keys) - 1) / (_LAYERS - 1) + 1e-9)] for i in range(_LAYERS)]


@styled
def _heat_map(
    rows: Sequence[Row],
    title: str,
    scale: str,
    middle: float,
    most_rows: int,
    row_size: float,
    panel_size: float,
    numbers: bool = True,
) -> Figure:
    """Draw a heat map with one column per pooling function.

    Values above `middle` are blue, and values below it are red. A frame marks the score chosen on the
    validation split. `scale` is the label of the colour bar. `most_rows` is the approximate maximum number of rows and
    headings per panel. `row_size` is the height of a row and `panel_size` is the width of a panel, both in inches.
    """
    panels = _panels(rows, most_rows)
    height = max(map(_height, panels))
    size = panel_size * len(panels) + 0.4, 1.3 + row_size * height
    figure, axes = new_figure(*size, ncols=len(panels), squeeze=False)
    reach = max(0.05, float(np.nanmax(np.abs([row.values - middle for row in rows]), initial=0.0)))
    for axis, panel in zip(axes[0], panels, strict=True):
        values, labels, place = np.full((height, len(_COLUMNS)), np.nan), [""] * height, 0
        for block, members in groupby(panel, key=lambda row: row.block):
            heading = block.replace("_", " ")
            axis.text(-0.5, place + 0.1, heading, ha="left", va="center", fontsize=7.5, fontweight="bold", color=INK)
            for row in members:
                place += 1
                values[place], labels[place] = row.values, row.label
                for column in np.flatnonzero(row.chosen).tolist():
                    frame_cell(axis, place, column, INK)
            place += 1
        colours: Any = {"cmap": "RdBu", "vmin": middle - reach, "vmax": middle + reach}
        image = axis.imshow(values, aspect="auto", interpolation="nearest", **colours)
        if numbers:
            annotate_cells(axis, image, values, 5.5)
        axis.set_yticks(range(height), labels, fontsize=6.5 if numbers else 5.5)
        axis.set_xticks(range(len(_COLUMNS)), [name.replace("_", " ") for name in _COLUMNS], fontsize=7, rotation=90)
        axis.tick_params(length=0)
        axis.xaxis.tick_top()
        axis.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=34, pad=0.012)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)
    framed = "; framed: chosen on validation" if any(row.chosen.any() for row in rows) else ""
    bar.set_label(scale + framed, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure


def _panels(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Split rows into as few panels as possible. Rows under one heading stay together if they fit."""
    height = _height(rows)
    most = -(-height // -(-height // most))  # balance the panels
    panels: list[list[Row]] = [[]]
    for _, members in groupby(rows, key=lambda row: row.block):
        block = list(members)
        room = most - _height(panels[-1]) - 1
        if panels[-1] and (room < 3 or room < min(len(block), most // 2)):
            panels.append([])
        for row in block:
            if _height([*panels[-1], row]) > most + 4:  # prefer a slightly longer panel to an additional one
                panels.append([])
            panels[-1].append(row)
    return panels


def _height(rows: Sequence[Row]) -> int:
    """Return the number of rows plus the number of headings."""
    return len(rows) + len({row.block for row in rows})
