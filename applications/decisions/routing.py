"""Certified thresholds for routing between a cheap and a strong model, computed from stored answers.

A question is routed to the strong model if the confidence in the cheap model's answer is below a threshold. The cost of
an answer is its number of prompt and generated tokens. For the strong model, it is multiplied by `strong_price`. The
cost of a routed question includes the prompt tokens that the cheap model reads for the probe.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from applications.decisions.betting import betting_p_values
from applications.decisions.learn_then_test import THRESHOLDS, n_rejected
from applications.intervals import estimate, mean_of
from applications.models.panel import Panel
from datamodules.table import QuestionTable
from extract.errors import InputError
from probes.metrics.intervals import WeightedMetric

Array = NDArray[np.float64]
#: Fractions of routed questions in the table of gains.
FRACTIONS = (0.25, 0.5, 0.75)
_N_POINTS = 21


class Pair(NamedTuple):
    """Accuracies and costs of two models on the same questions, each [question] float64.

    Attributes:
        cheap, strong: Measured accuracies.
        cheap_cost, strong_cost: Mean costs per answer.
        reading_cost: Number of prompt tokens that the cheap model reads for the probe.
    """

    cheap: Array
    strong: Array
    cheap_cost: Array
    strong_cost: Array
    reading_cost: Array

    def accuracy(self, is_routed: NDArray[np.bool_]) -> Array:
        """Return the accuracy on each question, [question]. `is_routed` is the mask of the routed questions."""
        return np.where(is_routed, self.strong, self.cheap)

    def cost(self, is_routed: NDArray[np.bool_]) -> Array:
        """Return the cost of each question, [question]. `is_routed` is the mask of the routed questions."""
        return np.where(is_routed, self.reading_cost + self.strong_cost, self.cheap_cost)


def read_pair(panel: Panel, rows: NDArray[np.int64], strong_price: float) -> tuple[NDArray[np.int64], Pair]:
    """Read the accuracies and costs of the questions that have a confidence, and known grades in both stores.

    `rows` [question] contains the rows of the cheap model's table that have a confidence. Returns the shared questions'
    positions in `rows`, and their accuracies and costs.
    """
    shared, index, of_panel = np.intersect1d(rows, panel.rows[0], return_indices=True)
    of_stores = zip(panel.tables, (shared, panel.rows[1][of_panel]), strict=True)
    (cheap, cheap_cost, reading), (strong, strong_cost, _) = (
        (table.accuracy[of_table], token_costs(table)[of_table], table.prompt_tokens[of_table])
        for table, of_table in of_stores
    )
    if len(shared) < 2:
        raise InputError(
            "Expected `store` and `strong` to share at least two questions that have confidences, but they share "
            f"{len(shared)}. Leave out `strong`, or pass a different store."
        )
    if not np.isfinite(cheap_cost + strong_cost).all():
        raise InputError(
            "Expected `store` and `strong` to contain the token counts for all compared questions, but some counts are "
            "missing. Leave out `strong`, or pass stores with token counts."
        )
    return index, Pair(cheap, strong, cheap_cost, strong_price * strong_cost, reading)


def token_costs(table: QuestionTable) -> Array:
    """Return the number of prompt tokens plus the mean number of generated tokens, [question]."""
    answers, n = table.answers, len(table.ids)
    counts = np.bincount(answers.question, minlength=n)
    return table.prompt_tokens + np.bincount(answers.question, answers.n_tokens, n) / np.maximum(counts, 1)


def certify_routing(confidence: Array, pair: Pair, risk: float, level: float, seed: int) -> float | None:
    """Return the smallest routing threshold that is certified at `level`, or None.

    Questions with a confidence below the threshold are answered by the strong model, and all others by the cheap model.
    A threshold is certified if a test rejects the hypothesis that the expected loss of these answers exceeds `risk`.
    Thresholds are tested in descending order, starting at infinity (the strong model answers all questions).
    """
    order = np.random.default_rng(seed).permutation(len(confidence))
    thresholds = np.append(np.inf, THRESHOLDS)
    is_routed = confidence[order, None] < thresholds
    losses = 1 - np.where(is_routed, pair.strong[order, None], pair.cheap[order, None])
    n = n_rejected(betting_p_values(losses, np.ones_like(losses, bool), risk, level) <= (1 - level) * (1 + 1e-9))
    return float(thresholds[n - 1]) if n else None


def random_gain(pair: Pair, is_routed: NDArray[np.bool_]) -> WeightedMetric:
    """Return a function that maps resampling weights to the gain in accuracy over random routing.

    Random routing routes the same fraction of questions as the mask `is_routed`.
    """
    routed, cheap, strong, accuracy = (
        torch.from_numpy(np.asarray(values, np.float64))
        for values in (is_routed, pair.cheap, pair.strong, pair.accuracy(is_routed))
    )

    def metric(weights: torch.Tensor) -> torch.Tensor:
        total = weights.sum(-1)
        q, a, b, found = ((weights @ values) / total for values in (routed, cheap, strong, accuracy))
        return found - (1 - q) * a - q * b

    return metric


def lowest(values: Array, fraction: float) -> NDArray[np.bool_]:
    """Return a mask [question] of the questions with the lowest values. `fraction` is the fraction of True entries."""
    is_member = np.zeros(len(values), bool)
    is_member[np.argsort(values, kind="stable")[: round(fraction * len(values))]] = True
    return is_member


def routing_record(
    confidence: Array, pair: Pair, risks: Sequence[float], level: float, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Evaluate routing by confidence: the cost–accuracy curve, the gains over random routing, and certified thresholds.

    Returns:
        A dict with the entries below. A point is a dict with `routed`, `cost` and `accuracy`. `routed` is the fraction
        of routed questions. `cost` and `accuracy` are means over all questions.

        - `curve`: Points at several fractions.
        - `oracle`: Points of an oracle, which routes the questions with the largest gain in accuracy first.
        - `gains`: Results of `random_gain` at `FRACTIONS`.
        - `thresholds`: One dict per risk. `threshold` is the certified threshold, and `certified` is the point at this
          threshold. If no threshold is certified, both are None. If the certified threshold is infinite (the strong
          model answers all questions), `threshold` is None, but `certified` is still a point.
    """
    n, options = len(confidence), {"n_resamples": n_resamples, "seed": seed}

    def point(is_routed: NDArray[np.bool_]) -> dict[str, Any]:
        return {
            "routed": float(is_routed.mean()),
            "cost": float(pair.cost(is_routed).mean()),
            "accuracy": estimate(mean_of(pair.accuracy(is_routed)), n, **options),
        }

    found = [certify_routing(confidence, pair, risk, level, seed) for risk in risks]
    grid = np.linspace(0, 1, _N_POINTS)
    return {
        "curve": [point(lowest(confidence, fraction)) for fraction in grid],
        "oracle": [point(lowest(pair.cheap - pair.strong, fraction)) for fraction in grid],
        "gains": [
            {"routed": x, "gain": estimate(random_gain(pair, lowest(confidence, x)), n, **options)} for x in FRACTIONS
        ],
        "thresholds": [
            {
                "risk": risk,
                "threshold": None if threshold is None or np.isinf(threshold) else threshold,
                "certified": None if threshold is None else point(confidence < threshold),
            }
            for risk, threshold in zip(risks, found, strict=True)
        ],
    }


def routings_record(
    panel: Panel,
    rows: NDArray[np.int64],
    confidences: Mapping[str, Array],
    strong_price: float,
    risks: Sequence[float],
    level: float,
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Compute `routing_record` for each source of confidences, and the accuracy and cost of each model alone."""
    index, pair = read_pair(panel, rows, strong_price)
    n, options = len(index), {"n_resamples": n_resamples, "seed": seed}
    alone = ((pair.cheap, pair.cheap_cost), (pair.strong, pair.strong_cost))
    return {
        "identity": panel.stores[1].sha256,
        "n_questions": n,
        "strong_price": strong_price,
        "alone": [
            {"name": name, "cost": float(cost.mean()), "accuracy": estimate(mean_of(accuracy), n, **options)}
            for name, (accuracy, cost) in zip(panel.names, alone, strict=True)
        ],
        "reading_cost": float(pair.reading_cost.mean()),
        "confidences": {
            name: routing_record(values[index], pair, risks, level, **options) for name, values in confidences.items()
        },
    }
