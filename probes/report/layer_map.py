"""AUROC of one probe for every layer and position of the hidden states, out of fold, and its picture.

Every cell is the same closed form with nothing chosen, so that cells differ only in what they read. The best of many
cells is biased upwards: to choose a layer, use `train.py` or `compare`, which ask validation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from datamodules.feature_spec import vector_keys
from datamodules.features import TARGETS
from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.registry import Registry
from extract.store.store import Store
from probes.comparison.folds import folds
from probes.fitting import solvers
from probes.fitting.module import standardiser
from probes.metrics.functional import capability_auroc
from probes.metrics.intervals import Interval, bootstrap, by_question
from probes.report.plots import RED, annotate_cells, frame_cell, new_figure, styled
from probes.report.templates import interval

#: From features [1, row, d_model] and target [row] to weights [1, 1, d_model] and biases [1, 1].
Solver = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
SOLVERS: Registry[Solver] = Registry(
    "probe",
    {
        "ridge": lambda x, target: solvers.ridge(x, target, [1.0]),
        "difference_of_means": solvers.difference_of_means,
    },
)
#: Positions that are read, by target.
_POSITIONS = {"capability": ("last_prompt",), "response": ("first_answer", "mean_answer", "last_answer")}
#: Blues without their ends: white would look empty, and a frame would not be visible on black.
_RAMP = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.06, 0.96, 256)))


class FoldedRows(NamedTuple):
    """Rows (questions or answers) with the fold that tests each.

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
        auroc: [position, layer] float64; NaN for a missing cell.
        best: Indices of position and layer of the highest AUROC.
        interval: Highest AUROC with its 95 % interval, not corrected for the choice; None without an interval.
        n_questions: Questions that were tested.
        n_rows: Questions or answers that were tested.
        n_missing: Graded questions or answers without all states, which were left out.
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
        best = {"position": self.positions[self.best[0]], "layer": self.layers[self.best[1]], "auroc": self.interval}
        return {
            "probe": self.probe,
            "positions": self.positions,
            "layers": self.layers,
            "auroc": [[None if value != value else value for value in row] for row in self.auroc.tolist()],
            "best": best | {"of": int(self.auroc.isfinite().sum()), "corrected": False},
            **{name: getattr(self, name) for name in ("n_folds", "n_questions", "n_rows", "n_missing")},
        }


def layer_map(
    store: Store,
    table: QuestionTable,
    target: str,
    probe: str = "ridge",
    n_folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> LayerMap:
    """Fit ridge (λ = 1) or difference_of_means to every layer and position of `hidden`, and test each out of fold.

    Reads hidden states of the questions for the target capability, of the answers for response. `n_resamples` are
    behind the interval of the best cell.

    Raises:
        InputError: If the probe is unknown, hidden states are missing, or there are too few questions.
    """
    solver, scope = SOLVERS[probe], TARGETS[target]
    stored = {key.split("/")[1] for key in store.signals.keys("hidden", scope)}
    positions = [name for name in _POSITIONS[target] if name in stored]
    keys = vector_keys(store, "hidden", scope, positions or _POSITIONS[target], None)
    fold_of = torch.full((len(table.ids),), -1)
    questions = torch.from_numpy(np.flatnonzero(table.known >= 2))
    for number, split in enumerate(folds(table, questions, n_folds, seed, least_val=1)):
        fold_of[split["test"]] = number
    counted = table if scope == "question" else table.answers
    right, known = torch.from_numpy(counted.right), torch.from_numpy(counted.known)
    question = torch.arange(len(table.ids)) if scope == "question" else torch.from_numpy(table.answers.question)
    rows, scores = FoldedRows(right, known, question, fold_of[question].where(known > 0, -1)), {}
    for key in tqdm(keys, desc=f"layers ({target})", unit=" probes"):
        scores[key] = out_of_fold(store.signals.read("hidden", key, scope).float(), rows, solver)
    complete = torch.stack(list(scores.values())).isfinite().all(0)  # all cells are tested on the same rows
    if not complete.any():
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold hidden states of graded {scope}s, but none has one at "
            "every layer. Look at it with `python -m extract verify`."
        )
    right, known, question, fold = (column[complete] for column in rows)
    layers = sorted({int(key.split("/")[0]) for key in keys})
    auroc = torch.full((len(positions), len(layers)), torch.nan, dtype=torch.float64)
    for key in keys:
        layer, position = key.split("/")[:2]
        value = capability_auroc(scores[key][complete], right, known, strata=fold)
        auroc[positions.index(position), layers.index(int(layer))] = value
    row, column = divmod(int(auroc.nan_to_num(-1).argmax()), len(layers))
    best = scores[f"{layers[column]}/{positions[row]}"][complete]
    own, place = question.unique(return_inverse=True)
    metric = by_question(lambda weights: capability_auroc(best, right, known, weights, fold), place)
    return LayerMap(
        target=target,
        probe=probe,
        positions=positions,
        layers=layers,
        auroc=auroc,
        best=(row, column),
        interval=bootstrap(metric, len(own), n_resamples, seed),
        n_folds=n_folds,
        n_questions=len(own),
        n_rows=len(right),
        n_missing=int((rows.fold >= 0).sum()) - len(right),
    )


def out_of_fold(features: Tensor, rows: FoldedRows, solver: Solver = SOLVERS["ridge"]) -> Tensor:
    """Scores [row] of probes that saw no answer to the row's question, from features [row, d_model] float32.

    NaN for unused rows and for rows with missing features.
    """
    used = (rows.fold >= 0) & features.isfinite().all(1)
    scores = torch.full((len(features),), torch.nan)
    for fold in rows.fold[used].unique().tolist():
        train, test = used & (rows.fold != fold), used & (rows.fold == fold)
        if not train.any():
            continue
        mean, scale = standardiser(features[train])
        target = (rows.right[train] / rows.known[train]).float()
        weight, bias = solver(((features[train] - mean) / scale)[None], target)
        scores[test] = ((features[test] - mean) / scale) @ weight[0, 0] + bias[0, 0]
    return scores


@styled
def layer_heat_map(maps: list[LayerMap], model: str) -> Figure:
    """AUROC by layer (x) and position (y), one panel per target, with common colours that begin at chance."""
    layers = sorted({layer for map_ in maps for layer in map_.layers})
    scale = {
        "vmin": min(0.5, *(float(map_.auroc.nan_to_num(1).min()) for map_ in maps)),
        "vmax": max(0.51, *(float(map_.auroc.nan_to_num(0).max()) for map_ in maps)),
    }
    heights = [len(map_.positions) for map_ in maps]
    width = min(max(0.3 * len(layers) + 2.2, 6.8), 14)  # inches
    height = max(2.2, 0.3 * sum(heights) + 0.65 * len(maps) + 0.7)
    figure, axes = new_figure(width, height, nrows=len(maps), sharex=True, squeeze=False, height_ratios=heights)
    for axis, map_ in zip(axes[:, 0], maps, strict=True):
        values = np.full((len(map_.positions), len(layers)), np.nan)
        places = [layers.index(layer) for layer in map_.layers]
        values[:, places] = map_.auroc.numpy()
        image = axis.imshow(values, cmap=_RAMP, aspect="auto", interpolation="nearest", **scale)
        if (width - 2.2) / len(layers) > 0.27:  # room for a number
            annotate_cells(axis, image, values, 7.5)
        frame_cell(axis, map_.best[0], places[map_.best[1]], RED)
        step = -(-len(layers) // 45)  # room for at most 45 names
        axis.set_xticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]], fontsize=8)
        axis.set_yticks(range(len(map_.positions)), [name.replace("_", " ") for name in map_.positions], fontsize=9)
        axis.set_xticks(np.arange(1, len(layers)) - 0.5, minor=True)
        axis.set_yticks(np.arange(1, len(map_.positions)) - 0.5, minor=True)
        axis.tick_params(which="both", length=0, labelbottom=True)
        axis.grid(which="minor", color="white", lw=1)  # lines between the cells
        axis.spines[:].set_visible(False)
        axis.set_facecolor("#ececec")  # cells without a value
        axis.set_title(_caption(map_), fontsize=9, loc="left")
    gaps = any(len(map_.layers) < len(layers) for map_ in maps)
    axes[-1, 0].set_xlabel(f"layer (0: embeddings{'; grey: not read' * gaps})")
    bar = figure.colorbar(image, ax=list(axes[:, 0]), aspect=14, pad=0.015, fraction=0.05)
    bar.set_label("AUROC (0.5: chance)", fontsize=9)
    bar.outline.set_visible(False)
    probe = maps[0].probe.replace("_", " ")
    figure.suptitle(f"{model}: {probe}, out of fold ({maps[0].n_folds} folds by question)", fontsize=9.5)
    return figure


def _caption(map_: LayerMap) -> str:
    """Target, counts and best cell of a panel."""
    rows = f"{map_.n_rows:,} answers to " if map_.target == "response" else ""
    missing = f" ({map_.n_missing:,} without states left out)" if map_.n_missing else ""
    position, layer = map_.best
    value = interval(map_.interval) if map_.interval else f"{map_.auroc[position, layer]:.3f}"
    return (
        f"{map_.target}, {rows}{map_.n_questions:,} questions{missing};\nframed: best of "
        f"{int(map_.auroc.isfinite().sum())}, layer {map_.layers[layer]}, {value}, not corrected for the choice"
    )
