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
from torch import Tensor
from tqdm import tqdm

from datamodules import QuestionTable
from datamodules.feature_spec import vector_keys
from datamodules.features import TARGETS
from extract.errors import InputError, nearest
from extract.store.store import Store
from probes.comparison.folds import folds
from probes.fitting import solvers
from probes.fitting.module import standardiser
from probes.metrics.functional import capability_auroc
from probes.metrics.intervals import Interval, bootstrap, by_question

#: Solvers by the probe's name, from features [1, row, d_model] and target [row] to weights [1, 1, d_model] and biases [1, 1].
SOLVERS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "ridge": lambda features, target: solvers.ridge(features, target, torch.ones_like(target), [1.0]),
    "difference_of_means": lambda features, target: solvers.difference_of_means(
        features, target, torch.ones_like(target)
    ),
}
#: What is predicted, and at which positions it is read.
_POSITIONS = {"capability": ("last_prompt",), "response": ("first_answer", "mean_answer", "last_answer")}


class FoldedRows(NamedTuple):
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
    held = {key.split("/")[1] for key in store.signals.keys("hidden", scope)}
    positions = [name for name in _POSITIONS[target] if name in held] or list(_POSITIONS[target])
    keys = vector_keys(store, "hidden", scope, positions, None)
    rows = _tested(table, target, n_folds, seed)
    scores = torch.stack(
        [
            out_of_fold(store.signals.read("hidden", key, scope).float(), rows, probe)
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
        target,
        probe,
        positions,
        layers,
        auroc,
        (position, layer),
        interval,
        n_folds,
        n_questions,
        len(right),
        n_missing,
    )


def _tested(table: QuestionTable, target: str, n_folds: int, seed: int) -> FoldedRows:
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
        return FoldedRows(torch.from_numpy(table.right), torch.from_numpy(table.known), every, fold_of)
    answers = table.answers
    known, question = torch.from_numpy(answers.known), torch.from_numpy(answers.question)
    return FoldedRows(torch.from_numpy(answers.right), known, question, fold_of[question].where(known > 0, -1))


def out_of_fold(features: Tensor, rows: FoldedRows, probe: str = "ridge") -> Tensor:
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
