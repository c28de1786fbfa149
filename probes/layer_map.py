"""Where inside a model it shows whether it is right: AUROC of one probe for every layer and position, out of fold.

Every cell is the same closed form with nothing chosen, so that cells differ in what they read and in nothing else. The
best of them is the best of many, and is said to be: to choose a layer, `train.py` and `compare` ask validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from datamodules import QuestionTable
from datamodules.features import TARGETS
from datamodules.names import feature_names
from extract.errors import InputError, nearest
from extract.store import Store
from probes import solvers
from probes.comparison.folds import folds
from probes.functional import capability_auroc
from probes.intervals import Interval, bootstrap, by_question
from probes.module import standardiser
from probes.plots import INK, RED, new_figure, styled

#: Solvers by the probe's name, from features [1, row, d_model] and target [row] to weights [1, 1, d_model] and biases [1, 1].
SOLVERS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "ridge": lambda features, target: solvers.ridge(features, target, torch.ones_like(target), [1.0]),
    "difference_of_means": lambda features, target: solvers.difference_of_means(
        features, target, torch.ones_like(target)
    ),
}
#: What is predicted, and at which positions it is read.
_POSITIONS = {"capability": ("last_prompt",), "response": ("first_answer", "mean_answer", "last_answer")}
#: Inches that a number in a cell takes.
_CELL = 0.3


class Tested(NamedTuple):
    """The rows (questions or answers) that are tested, each by a probe that never saw its question.

    Attributes:
        right: [row] right answers.
        known: [row] graded answers.
        question: [row] int64, row of the question table.
        fold: [row] int64, number of the fold that tests it; −1 for a row that is not used.
    """

    right: Tensor
    known: Tensor
    question: Tensor
    fold: Tensor


@dataclass(frozen=True)
class LayerMap:
    """AUROC of a probe for every layer and position.

    Attributes:
        target: What is predicted, capability or response.
        probe: Name of the probe.
        positions: Names of the positions, [position].
        layers: Numbers of the layers, [layer].
        auroc: [position, layer] float64; NaN where there is no value.
        best: Position and layer of the highest one, as indices.
        interval: AUROC of that one with its 95 % interval over questions, which knows nothing of the choice; None
            where there is no interval.
        n_folds: Number of folds.
        n_questions: Questions that were tested.
        n_rows: Questions or answers that were tested.
        n_missing: Questions or answers with grades that were left out because a state is missing.
    """

    target: str
    probe: str
    positions: list[str]
    layers: list[int]
    auroc: Tensor
    best: tuple[int, int]
    interval: Interval | None
    n_folds: int
    n_questions: int
    n_rows: int
    n_missing: int

    def record(self) -> dict[str, Any]:
        """The map as plain JSON types."""
        position, layer = self.best
        cells = [[None if value != value else value for value in row] for row in self.auroc.tolist()]
        counts = {name: getattr(self, name) for name in ("n_folds", "n_questions", "n_rows", "n_missing")}
        best = {"position": self.positions[position], "layer": self.layers[layer], "auroc": self.interval}
        n_cells = int(self.auroc.isfinite().sum())
        map_ = {"positions": self.positions, "layers": self.layers, "auroc": cells}
        return {"probe": self.probe, **map_, "best": {**best, "of": n_cells, "corrected": False}, **counts}


def layer_map(
    store: Store,
    table: QuestionTable,
    target: str,
    probe: str = "ridge",
    n_folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> LayerMap:
    """Fit one probe to every layer and position of the signal `hidden`, and test each out of fold.

    Args:
        store: The store, with hidden states of the questions (capability) or of the answers (response).
        table: Its grades.
        target: capability or response.
        probe: ridge (λ = 1) or difference_of_means.
        n_folds: Number of folds.
        seed: Seed of folds and resamples.
        n_resamples: Resamples behind the interval of the best one.

    Raises:
        InputError: Unknown probe, hidden states that were not read, or too few questions.
    """
    if probe not in SOLVERS:
        raise InputError(
            f"Expected `probe` to be one of {', '.join(SOLVERS)}, but got {probe!r}.{nearest(probe, SOLVERS)}"
        )
    scope = TARGETS[target]
    held = {key.split("/")[1] for key in store.signal_keys("hidden", scope)}
    positions = [name for name in _POSITIONS[target] if name in held] or list(_POSITIONS[target])
    keys = feature_names(store, "hidden", scope, positions, None)
    rows = _tested(table, target, n_folds, seed)
    scores = torch.stack(
        [
            out_of_fold(store.read_signal("hidden", key, scope).float(), rows, probe)
            for key in tqdm(keys, desc=f"layers ({target})", unit=" probes")
        ]
    )
    every = scores.isfinite().all(0)  # all cells are about the same rows
    if not every.any():
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold hidden states of graded {scope}s, but none has one at every layer. Look at it with `python -m extract verify`."
        )
    right, known, question, fold = (column[every] for column in rows)
    aurocs = [float(capability_auroc(one[every], right, known, strata=fold)) for one in scores]
    layers = sorted({int(key.split("/")[0]) for key in keys})
    auroc = torch.full((len(positions), len(layers)), torch.nan, dtype=torch.float64)
    for key, value in zip(keys, aurocs, strict=True):
        auroc[positions.index(key.split("/")[1]), layers.index(int(key.split("/")[0]))] = value
    of_rows, n_questions = question.unique(return_inverse=True)[1], len(question.unique())
    position, layer = divmod(int(auroc.nan_to_num(-1).argmax()), len(layers))
    best = scores[keys.index(f"{layers[layer]}/{positions[position]}"), every]
    interval = bootstrap(
        by_question(lambda weights: capability_auroc(best, right, known, weights, fold), of_rows),
        n_questions,
        n_resamples,
        seed,
    )
    n_missing = int((rows.fold >= 0).sum()) - len(right)
    return LayerMap(
        target, probe, positions, layers, auroc, (position, layer), interval, n_folds, n_questions, len(right), n_missing
    )


def _tested(table: QuestionTable, target: str, n_folds: int, seed: int) -> Tested:
    """Rows of a target with their folds; questions with fewer than two known grades are in none.

    Raises:
        InputError: As `folds`.
    """
    fold_of = torch.full((len(table.ids),), -1)
    questions = torch.from_numpy(np.flatnonzero(table.known >= 2))
    for fold in folds(table, questions, n_folds, seed, least_val=1):
        fold_of[fold.rows["test"]] = fold.number
    if TARGETS[target] == "question":
        every = torch.arange(len(table.ids))
        return Tested(torch.from_numpy(table.right), torch.from_numpy(table.known), every, fold_of)
    answers = table.answers
    known, question = torch.from_numpy(answers.known), torch.from_numpy(answers.question)
    return Tested(torch.from_numpy(answers.right), known, question, fold_of[question].where(known > 0, -1))


def out_of_fold(features: Tensor, rows: Tested, probe: str = "ridge") -> Tensor:
    """Scores [row] of probes that saw no answer to the row's question; NaN for rows that are not used or without features.

    Args:
        features: [row, d_model] float32; a row that is missing is NaN.
        rows: What the rows are.
        probe: One of `SOLVERS`.
    """
    used = (rows.fold >= 0) & features.isfinite().all(1)
    scores = torch.full((len(features),), torch.nan)
    for number in rows.fold[rows.fold >= 0].unique().tolist():
        train, test = used & (rows.fold != number), used & (rows.fold == number)
        if not train.any():
            continue
        mean, scale = standardiser(features[train])
        target = (rows.right[train] / rows.known[train]).float()
        weight, bias = SOLVERS[probe](((features[train] - mean) / scale)[None], target)
        scores[test] = ((features[test] - mean) / scale) @ weight[0, 0] + bias[0, 0]
    return scores


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
    low, high = min(0.5, float(values.min())), float(values.max())
    heights = [len(one.positions) + 0.0 for one in maps]
    width = min(max(_CELL * len(layers) + 2.2, 5.2), 14.0)
    figure, axes = new_figure(
        width,
        0.36 * sum(heights) + 0.95 * len(maps) + 0.8,
        nrows=len(maps),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    for axis, one in zip(axes[:, 0], maps, strict=True):
        drawn = _panel(axis, one, layers, (low, high), (width - 2.2) / len(layers) >= 0.9 * _CELL)
    axes[-1, 0].set_xlabel("layer (0: embeddings)")
    bar = figure.colorbar(drawn, ax=list(axes[:, 0]), aspect=14, pad=0.015, fraction=0.05)
    bar.set_label("AUROC (0.5: chance)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    probe = {"ridge": "ridge probes (λ = 1)", "difference_of_means": "difference of means"}[maps[0].probe]
    figure.suptitle(f"{model}: {probe}, out of fold ({maps[0].n_folds} folds by question)", fontsize=11)
    return figure


def _panel(axis: Axes, one: LayerMap, layers: list[int], scale: tuple[float, float], numbers: bool) -> Any:
    """Draw one map with its best cell framed; gives what a colour bar needs."""
    shown = np.full((len(one.positions), len(layers)), np.nan)
    places = [layers.index(layer) for layer in one.layers]
    shown[:, places] = one.auroc.numpy()
    # not the whole ramp: its light end is no white, which is a cell without a value, and its dark end is not black
    drawn = axis.imshow(shown, cmap=_ramp(), vmin=scale[0], vmax=scale[1], aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(shown):
        if numbers and value == value:
            dark = value > scale[0] + 0.52 * (scale[1] - scale[0])
            text = f"{value:.2f}".removeprefix("0")
            axis.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if dark else INK)
    row, column = one.best[0], places[one.best[1]]
    axis.add_patch(_frame(column, row))
    step = max(1, -(-len(layers) // 45))
    ticks = range(0, len(layers), step)
    axis.set_xticks(list(ticks), [str(layers[i]) for i in ticks], fontsize=8)
    axis.tick_params(axis="x", labelbottom=True)
    axis.set_yticks(range(len(one.positions)), [name.replace("_", " ") for name in one.positions], fontsize=9)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xticks([i - 0.5 for i in range(1, len(layers))], minor=True)
    axis.set_yticks([i - 0.5 for i in range(1, len(one.positions))], minor=True)
    axis.grid(which="minor", color="white", lw=1)
    axis.tick_params(which="minor", length=0)
    axis.set_title(_caption(one), fontsize=9, loc="left")
    return drawn


def _ramp() -> Any:
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.06, 0.96, 256)))


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=RED, lw=2, zorder=5, clip_on=False)


def _caption(one: LayerMap) -> str:
    """What a panel is about, how much there is of it, and its best cell, as the best of many."""
    of = f"{one.n_rows:,} answers to {one.n_questions:,} questions" if one.target == "response" else f"{one.n_rows:,} questions"
    missing = f" ({one.n_missing:,} without states left out)" if one.n_missing else ""
    position, layer = one.best
    value = f"{one.auroc[position, layer]:.2f}"
    if one.interval is not None:
        value += f" [{one.interval['low']:.2f}, {one.interval['high']:.2f}]"
    best = f"framed: best of {int(one.auroc.isfinite().sum())}, layer {one.layers[layer]}, {value}, not corrected for the choice"
    return f"{one.target}, {of}{missing}; {best}"
