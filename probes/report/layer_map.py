"""Compute and plot layer maps: the out-of-fold AUROC of a probe at every layer and position."""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from datamodules.feature_spec import choose_keys
from datamodules.features import TARGETS
from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.registry import Registry
from extract.store.store import Store
from probes.comparison.folds import fold_of_questions, folds
from probes.fitting import solvers
from probes.fitting.standardiser import standardiser
from probes.metrics.functional import capability_auroc
from probes.report.evaluate import Scored, estimate
from probes.report.plots import RED, annotate_cells, frame_cell, new_figure, styled
from probes.report.templates import interval

#: Function that maps features [1, row, d_model] and targets [row] to weights [1, 1, d_model] and biases [1, 1].
Solver = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
SOLVERS: Registry[Solver] = Registry(
    "probe",
    {
        "ridge": lambda x, target: solvers.ridge(x, target, [1.0]),
        "difference_of_means": solvers.difference_of_means,
    },
)
#: Token positions of the hidden states for each target.
_POSITIONS = {"capability": ("last_prompt",), "response": ("first_answer", "mean_answer", "last_answer")}
#: Colour map without its lightest and darkest colours.
_RAMP = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.06, 0.96, 256)))


def layer_map(
    store: Store,
    table: QuestionTable,
    target: str,
    probe: str = "ridge",
    n_folds: int = 5,
    seed: int = 0,
    n_resamples: int = 2000,
) -> dict[str, Any]:
    """Compute the out-of-fold AUROC of a probe at every layer and position.

    The probe is `difference_of_means`, or `ridge` with λ = 1. With the target `capability`, it reads hidden states of
    questions. With the target `response`, it reads hidden states of answers.

    Returns:
        A dict. `auroc` is a nested list [position][layer], in which missing cells are None. `best` describes the cell
        with the highest AUROC. Its 95 % interval is not corrected for this selection. ``best["of"]`` is the number of
        cells that are not missing. `n_questions` and `n_rows` are the numbers of tested questions and rows (questions
        or answers). `n_missing` is the number of graded rows left out because of missing hidden states.

    Raises:
        InputError: If the probe is unknown, hidden states are missing, or there are too few questions.
    """
    solver, scope = SOLVERS[probe], TARGETS[target]
    stored = {key.split("/")[1] for key in store.signals.keys("hidden", scope)}
    positions = [name for name in _POSITIONS[target] if name in stored]
    keys = choose_keys(store, "hidden", scope, positions or _POSITIONS[target], None)
    questions = torch.from_numpy(np.flatnonzero(table.known >= 2))
    tests = (rows["test"] for rows in folds(table, questions, n_folds, seed, least_val=1))
    fold_of = fold_of_questions(tests, len(table.ids))
    counted = table if scope == "question" else table.answers
    right, known = torch.from_numpy(counted.right), torch.from_numpy(counted.known)
    question = None if scope == "question" else torch.from_numpy(table.answers.question)
    fold = (fold_of if question is None else fold_of[question]).where(known > 0, -1)
    scores = {}
    for key in tqdm(keys, desc=f"layers ({target})", unit=" probes"):
        scores[key] = out_of_fold(store.signals.read("hidden", key, scope).float(), right / known, fold, solver)
    complete = torch.stack(list(scores.values())).isfinite().all(0)  # the same rows for all cells
    if not complete.any():
        raise InputError(
            f"Expected hidden states of graded {scope}s in the store {str(store.path)!r}, but no graded {scope} has a "
            "hidden state at every layer. Check the store with `python -m extract verify`."
        )
    layers = sorted({int(key.split("/")[0]) for key in keys})
    auroc = torch.full((len(positions), len(layers)), torch.nan, dtype=torch.float64)
    scored = {key: Scored(score, right, known, question, fold).take(complete) for key, score in scores.items()}
    for key, of_cell in scored.items():
        layer, position = key.split("/")[:2]
        value = capability_auroc(of_cell.confidence, of_cell.right, of_cell.known, strata=of_cell.fold)
        auroc[positions.index(position), layers.index(int(layer))] = value
    row, column = divmod(int(auroc.nan_to_num(-1).argmax()), len(layers))
    best = scored[f"{layers[column]}/{positions[row]}"]
    return {
        "probe": probe,
        "positions": positions,
        "layers": layers,
        "auroc": [[None if value != value else value for value in values] for values in auroc.tolist()],
        "best": {
            "position": positions[row],
            "layer": layers[column],
            "auroc": estimate(best, "auroc", n_resamples, seed),
            "of": int(auroc.isfinite().sum()),
            "corrected": False,
        },
        "n_folds": n_folds,
        "n_questions": best.n_questions,
        "n_rows": len(best.right),
        "n_missing": int((fold >= 0).sum()) - len(best.right),
    }


def out_of_fold(features: Tensor, accuracy: Tensor, fold: Tensor, solver: Solver = SOLVERS["ridge"]) -> Tensor:
    """Compute out-of-fold scores [row] of a closed-form probe; NaN for rows that are unused or lack features.

    Args:
        features: Features, [row, d_model] float32; NaN if missing.
        accuracy: Fraction of right answers, [row].
        fold: Test fold of each row, [row] int64; −1 for unused rows.
    """
    used = (fold >= 0) & features.isfinite().all(1)
    scores = torch.full((len(features),), torch.nan)
    for number in fold[used].unique().tolist():
        train, test = used & (fold != number), used & (fold == number)
        if not train.any():
            continue
        mean, scale = standardiser(features[train])
        weight, bias = solver(((features[train] - mean) / scale)[None], accuracy[train].float())
        scores[test] = ((features[test] - mean) / scale) @ weight[0, 0] + bias[0, 0]
    return scores


@styled
def layer_heat_map(maps: Mapping[Any, dict[str, Any]], model: str) -> Figure:
    """Plot AUROC heat maps by layer (x) and position (y), with one panel per target and a shared colour scale."""
    layers = sorted({layer for map_ in maps.values() for layer in map_["layers"]})
    aurocs = [np.array(map_["auroc"], dtype=np.float64) for map_ in maps.values()]  # None becomes NaN
    scale = {
        "vmin": min(float(np.nanmin(auroc, initial=0.5)) for auroc in aurocs),
        "vmax": max(float(np.nanmax(auroc, initial=0.51)) for auroc in aurocs),
    }
    heights = [len(auroc) for auroc in aurocs]
    width = min(max(0.3 * len(layers) + 2.2, 6.8), 14)  # inches
    height = max(2.2, 0.3 * sum(heights) + 0.65 * len(maps) + 0.7)
    figure, axes = new_figure(width, height, nrows=len(maps), sharex=True, squeeze=False, height_ratios=heights)
    for axis, (target, map_), auroc in zip(axes[:, 0], maps.items(), aurocs, strict=True):
        positions, best = map_["positions"], map_["best"]
        values = np.full((len(positions), len(layers)), np.nan)
        values[:, [layers.index(layer) for layer in map_["layers"]]] = auroc
        image = axis.imshow(values, cmap=_RAMP, aspect="auto", interpolation="nearest", **scale)
        if (width - 2.2) / len(layers) > 0.27:  # wide enough for numbers
            annotate_cells(axis, image, values, 7.5)
        place = positions.index(best["position"]), layers.index(best["layer"])
        frame_cell(axis, *place, RED)
        step = -(-len(layers) // 45)  # at most 45 tick labels fit
        axis.set_xticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]], fontsize=8)
        axis.set_yticks(range(len(positions)), [name.replace("_", " ") for name in positions], fontsize=9)
        axis.set_xticks(np.arange(1, len(layers)) - 0.5, minor=True)
        axis.set_yticks(np.arange(1, len(positions)) - 0.5, minor=True)
        axis.tick_params(which="both", length=0, labelbottom=True)
        axis.grid(which="minor", color="white", lw=1)
        axis.spines[:].set_visible(False)
        axis.set_facecolor("#ececec")  # missing cells
        axis.set_title(_caption(target, map_, values[place]), fontsize=9, loc="left")
    gaps = any(len(map_["layers"]) < len(layers) for map_ in maps.values())
    axes[-1, 0].set_xlabel(f"layer (0: embeddings{'; grey: not read' * gaps})")
    bar = figure.colorbar(image, ax=list(axes[:, 0]), aspect=14, pad=0.015, fraction=0.05)
    bar.set_label("AUROC (0.5: chance)", fontsize=9)
    bar.outline.set_visible(False)
    probe = map_["probe"].replace("_", " ")
    figure.suptitle(f"{model}: {probe}, out of fold ({map_['n_folds']} folds by question)", fontsize=9.5)
    return figure


def _caption(target: str, map_: dict[str, Any], highest: float) -> str:
    """Return the title of a panel."""
    rows = f"{map_['n_rows']:,} answers to " if target == "response" else ""
    missing = f" ({map_['n_missing']:,} without hidden states are left out)" if map_["n_missing"] else ""
    best = map_["best"]
    return (
        f"{target}, {rows}{map_['n_questions']:,} questions{missing}\nframed: best of {best['of']} cells, layer "
        f"{best['layer']}, {interval(best['auroc'] or {'value': highest, 'low': None})}, not corrected for the choice"
    )
