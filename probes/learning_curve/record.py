"""Build the record and the Markdown page of learning curves."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from tqdm import tqdm

from probes.baselines.scores import mean_accuracy
from probes.learning_curve.curve import LearningCurve
from probes.metrics.intervals import Interval, WeightedMetric, bootstrap, minus
from probes.report.evaluate import Scored, ceiling, metric_of
from probes.report.results import record_header
from probes.report.templates import render

METRICS = ("auroc", "brier_skill")
#: Number of training questions, and number of graded answers to each question.
Split = tuple[int, int]


def over_subsets(
    metrics: Sequence[WeightedMetric], n_questions: int, n_resamples: int, seed: int
) -> dict[str, Any] | None:
    r"""Compute the mean of a metric over random training subsets, with a 95 % interval.

    The interval accounts for the choice of test questions and subsets. Its half-widths are

    .. math:: \sqrt{h^2 + t_{S-1, 0.975}^2\, s^2 / S}

    where h is a half-width of the bootstrap interval over test questions, s is the standard deviation of the metric
    over S subsets, and t is a quantile of Student's t distribution. With one subset, the half-width is h.

    `metrics` has one entry per subset.

    Returns:
        A dict with `value`, `low`, `high` and `spread`. The spread is s, or None for one subset. If the metric is
        undefined, None is returned instead of the dict.
    """
    interval = bootstrap(
        lambda weights: torch.stack([metric(weights) for metric in metrics]).mean(0), n_questions, n_resamples, seed
    )
    if interval is None:
        return None
    if len(metrics) == 1:
        return {**interval, "spread": None}
    ones = torch.ones(1, n_questions, dtype=torch.float64)
    spread = float(torch.cat([metric(ones) for metric in metrics]).std())
    margin = float(stdtrit(len(metrics) - 1, 0.975)) * spread / len(metrics) ** 0.5
    return {**widened(interval, margin), "spread": spread}


def widened(interval: Interval, margin: float) -> Interval:
    """Widen an interval by an independent error with half-width `margin`, added in quadrature.

    >>> widened({"value": 0.0, "low": -0.75, "high": 0.0}, margin=1.0)
    {'value': 0.0, 'low': -1.25, 'high': 1.0}
    """
    value = interval["value"]
    low, high = (math.hypot(end - value, margin) for end in (interval["low"], interval["high"]))
    return {"value": value, "low": value - low, "high": value + high}


class _Measured:
    """Metrics of a learning curve for each `Split` of a budget, and their differences."""

    def __init__(self, curve: LearningCurve, n_resamples: int, seed: int) -> None:
        self._curve, self._n_resamples, self._seed = curve, n_resamples, seed
        rows = curve.questions
        self.right, self.known = (torch.from_numpy(counts)[rows] for counts in (curve.table.right, curve.table.known))
        self._fold = curve.fold[rows]
        # the same constant for all cells
        constants = [mean_accuracy(curve.table, rows[self._fold != fold]) for fold in range(len(curve.folds))]
        self._reference = torch.tensor(constants, dtype=torch.float64)[self._fold]

    def metrics(self, split: Split, name: str) -> list[WeightedMetric]:
        """Return a metric as one `WeightedMetric` per training subset of a split."""
        confidence = self._curve.cells[split].confidence[:, self._curve.questions]
        scored = [Scored(values, self.right, self.known, fold=self._fold) for values in confidence]
        return [metric_of(one, name, self._reference) for one in scored]

    def estimate(self, split: Split, name: str) -> dict[str, Any] | None:
        """Compute the mean of a metric over a split's training subsets, with a 95 % interval."""
        return self._over_subsets(self.metrics(split, name))

    def difference(self, a: Split, b: Split, name: str = "auroc") -> dict[str, Any] | None:
        """Compute the difference a − b of a metric between two splits, with a 95 % interval.

        The difference is averaged over pairs of training subsets, one from `a` and one from `b`.
        """
        of_a, of_b = self.metrics(a, name), self.metrics(b, name)
        n_subsets = max(len(of_a), len(of_b))
        pairs = [(of_a[s % len(of_a)], of_b[s % len(of_b)]) for s in range(n_subsets)]
        return self._over_subsets([minus(x, y) for x, y in pairs])

    def _over_subsets(self, metrics: Sequence[WeightedMetric]) -> dict[str, Any] | None:
        return over_subsets(metrics, len(self.right), self._n_resamples, self._seed)


def splits_of_budgets(splits: Sequence[Split]) -> dict[int, list[Split]]:
    """Return the splits of each labelling budget, ordered from the most to the fewest questions.

    A split (n, k) has n questions with k graded answers each, so it costs n · k answers. Each distinct cost is used as
    a budget. A split belongs to a budget if it costs more than half of the budget but does not exceed it. For each k,
    only the split with the highest n is kept. A budget is left out if it has only one split, or if a larger budget
    exceeds it by at most 5 %.

    >>> splits_of_budgets([(48, 1), (96, 1), (48, 2), (96, 2), (48, 5), (96, 5)])
    {96: [(96, 1), (48, 2)], 240: [(96, 2), (48, 5)]}
    """
    budgets = sorted({n * k for n, k in splits})
    budgets = [low for low in budgets if not any(low < high <= 1.05 * low for high in budgets)]
    found: dict[int, list[Split]] = {}
    for budget in budgets:
        largest: dict[int, int] = {}
        for n, k in splits:
            if budget / 2 < n * k <= budget:
                largest[k] = max(n, largest.get(k, 0))
        if len(largest) > 1:
            found[budget] = sorted(((n, k) for k, n in largest.items()), key=lambda split: (-split[0], split[1]))
    return found


def curve_record(curve: LearningCurve, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute the metrics of all cells, and find the best cell for each labelling budget.

    Returns:
        The content of curve.json, which includes these entries:

        - `cells`: One dict for each pair of `n` and `k`, in ascending order. Its entries `auroc` and `brier_skill` come
          from `over_subsets`.
        - `budgets`: One dict for each budget. `best` and `runner_up` are the pairs [n, k] with the highest and
          second-highest AUROC. `difference` is the AUROC of `best` minus that of `runner_up`. `many_minus_few` is the
          AUROC of the pair with the most questions minus that of the pair with the fewest questions.
        - `contrasts`: `auroc` and `brier_skill` of up to two smaller cells, minus those of the largest cell (the last
          of `cells`).
        - `masked`: Reasons for missing cells.
    """
    measured, table, rows = _Measured(curve, n_resamples, seed), curve.table, curve.questions
    budgets = splits_of_budgets(list(curve.cells))
    cells: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    with tqdm(total=len(curve.cells) + len(budgets), desc="intervals", unit=" cells") as progress:
        for (n, k), cell in curve.cells.items():
            metrics: dict[str, Any] = {name: measured.estimate((n, k), name) for name in METRICS}
            counts = {"n_subsets": len(cell.confidence), "n_fits": cell.n_fits, "n_base_rate": cell.n_base_rate}
            cells.append({"n": n, "k": k, "budget": n * k, **metrics, **counts})
            progress.update()
        auroc = {(cell["n"], cell["k"]): cell["auroc"]["value"] if cell["auroc"] else -math.inf for cell in cells}
        for budget, splits in budgets.items():
            best, runner_up = sorted(splits, key=auroc.__getitem__, reverse=True)[:2]
            found.append(
                {
                    "budget": budget,
                    "splits": splits,
                    "best": best,
                    "runner_up": runner_up,
                    "difference": measured.difference(best, runner_up),
                    "many_minus_few": measured.difference(splits[0], splits[-1]),
                }
            )
            progress.update()
    return {
        **record_header(curve.data.store, table, seed, n_resamples),
        "probe": curve.probe,
        "folds": len(curve.folds),
        "subsets": curve.n_subsets,
        "n": curve.n,
        "k": curve.k,
        "n_most": curve.n_most,
        "k_most": curve.k_most,
        "n_questions": len(rows),
        "n_answers": int(table.known[rows].sum()),
        "accuracy": float(np.mean(table.accuracy[rows])),
        "auroc_ceiling": ceiling(measured.right, measured.known),
        "cells": cells,
        "budgets": found,
        "contrasts": _contrasts(measured, list(curve.cells)),
        "masked": {f"{n} questions, k = {k}": reason for (n, k), reason in curve.masked.items()},
    }


def _contrasts(measured: _Measured, splits: Sequence[Split]) -> list[dict[str, Any]]:
    """Compare the largest split (the last of `splits`) with up to two smaller splits.

    One smaller split has the same k (answers per question) and the next lower n (questions). The other has the same n
    and the lowest k.
    """
    n, k = largest = splits[-1]
    fewer_questions = [split for split in splits if split[1] == k and split[0] < n][-1:]
    fewer_answers = [split for split in splits if split[0] == n and split[1] < k][:1]
    return [
        {"from": largest, "to": split, **{name: measured.difference(split, largest, name) for name in METRICS}}
        for split in (*fewer_questions, *fewer_answers)
    ]


def curve_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the record as a Markdown page. `plots` lists the names of the plots."""
    cells = {(cell["n"], cell["k"]): cell for cell in record["cells"]}
    return render("learning_curve/curve.md.j2", record=record, cells=cells, plots=plots, verdict=curve_verdict(record))


def curve_verdict(record: dict[str, Any]) -> str:
    """Render a short summary of the learning curves."""
    tests = [budget["many_minus_few"] for budget in record["budgets"] if budget["many_minus_few"]]
    n_many, n_few = sum(test["low"] > 0 for test in tests), sum(test["high"] < 0 for test in tests)
    largest = max(record["cells"], key=lambda cell: (cell["n"], cell["k"]))
    context = {"largest": largest, "n_many": n_many, "n_few": n_few, "n_tests": len(tests)}
    return render("learning_curve/verdict.md.j2", record=record, **context)
