"""Metrics of a method with 95 % intervals, and paired differences between two methods."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from probes.metrics import functional
from probes.metrics.intervals import Interval, WeightedMetric, bootstrap, by_question, paired_bootstrap
from probes.metrics.significance import bootstrap_p, sign_flip

#: Metrics for question-level confidences, in the order of the report.
CAPABILITY: dict[str, Callable[..., Tensor]] = {
    "auroc": functional.capability_auroc,
    "auroc_hard": functional.hard_auroc,
    "brier": functional.debiased_brier,
    "brier_skill": functional.brier_skill,
    "ece_width": partial(functional.expected_calibration_error, by="width"),
    "ece_mass": partial(functional.expected_calibration_error, by="mass"),
    "rmsce": functional.rmsce,
    "spearman": functional.spearman,
    "aurc": functional.aurc,
    "e_aurc": functional.e_aurc,
    "prr": functional.prediction_rejection_ratio,
    "prr_50": partial(functional.prediction_rejection_ratio, max_rejection=0.5),
    "auprc": functional.auprc,
    "recall_at_fpr_1": partial(functional.recall_at_fpr, max_fpr=0.01),
    "recall_at_fpr_5": partial(functional.recall_at_fpr, max_fpr=0.05),
}
#: Metrics that are computed only for questions.
_OF_QUESTIONS = ("auroc_hard", "brier_skill", "rmsce", "spearman")
_OF_ANSWERS = {name: metric for name, metric in CAPABILITY.items() if name not in _OF_QUESTIONS}
#: Metrics for each target. The Brier score on individual answers needs no debiasing.
METRICS = {"capability": CAPABILITY, "response": _OF_ANSWERS | {"brier": functional.response_brier}}
#: Metrics without a valid interval, because resampling biases calibration errors upwards.
WITHOUT_INTERVAL = ("ece_width", "ece_mass", "rmsce")
_STRATIFIED = ("auroc", "auroc_hard")


class Scored(NamedTuple):
    """Confidences of a method, and the grades for evaluating them. Each row is a question or an answer.

    Attributes:
        confidence: Confidence from 0 to 1, [row] float64; NaN if missing.
        right: Number of right answers, [row].
        known: Number of graded answers, [row].
        question: Index of each answer's question, [row] int64. None if rows are questions.
        fold: Test fold of each row, [row] int64. None if all confidences come from the same probe.
        copies: Number of identical answers that each row stands for, [row] int64. None if rows are not merged.
    """

    confidence: Tensor
    right: Tensor
    known: Tensor
    question: Tensor | None = None
    fold: Tensor | None = None
    copies: Tensor | None = None

    def take(self, rows: Tensor) -> "Scored":
        """Select rows by index or mask."""
        return Scored._make(column if column is None else column[rows] for column in self)

    def merged(self) -> "Scored":
        """Merge answers with the same question, confidence and grade, and sort the rows. This speeds up bootstraps."""
        if self.question is None or not len(self.right):
            return self
        keys = [self.right, self.question, self.confidence, *([] if self.fold is None else [self.fold])]
        rows = self.take(torch.from_numpy(np.lexsort([key.numpy() for key in keys])))
        columns = [column.diff() != 0 for column in rows if column is not None]
        starts = pad(torch.stack(columns).any(0), (1, 0), value=True).nonzero()[:, 0]
        copies = starts.diff(append=torch.tensor([len(rows.right)]))
        return rows.take(starts)._replace(copies=copies)

    @property
    def target(self) -> str:
        """`capability` if the rows are questions, `response` if they are answers."""
        return "capability" if self.question is None else "response"

    @property
    def accuracy(self) -> Tensor:
        """Fraction of right answers, [row] float64."""
        return self.right.double() / self.known.double()

    @property
    def usable(self) -> Tensor:
        """Mask of rows with a finite confidence and enough grades (2 for a question, 1 for an answer), [row] bool."""
        return self.confidence.isfinite() & (self.known >= (2 if self.question is None else 1))

    @property
    def n_questions(self) -> int:
        """Number of questions."""
        return len(self.confidence) if self.question is None else len(self.question.unique())


def metric_of(scored: Scored, name: str, reference: float | Tensor = 0.5) -> WeightedMetric:
    """Return a function that maps resampling weights [resample, question] to values [resample] of a metric."""
    options: dict[str, Any] = {"reference": reference} if name == "brier_skill" else {}
    if name in _STRATIFIED and scored.fold is not None:
        options["strata"] = scored.fold

    def metric(weights: Tensor) -> Tensor:
        return METRICS[scored.target][name](scored.confidence, scored.right, scored.known, weights=weights, **options)

    if scored.question is None:
        return metric
    copies = 1.0 if scored.copies is None else scored.copies
    return by_question(metric, scored.question.unique(return_inverse=True)[1], copies)


def estimate(
    scored: Scored, name: str, n_resamples: int = 2000, seed: int = 0, reference: float | Tensor = 0.5
) -> Mapping[str, Any] | None:
    """Compute a metric with its 95 % interval, as a dict with `value`, `low` and `high`. All rows must be `usable`.

    The result is None if the metric is undefined or there are fewer than two questions. Metrics in `WITHOUT_INTERVAL`
    have None for `low` and `high`.
    """
    n = scored.n_questions
    if n < 2:
        return None
    metric = metric_of(scored, name, reference)
    if name in WITHOUT_INTERVAL:
        return {"value": float(metric(torch.ones(1, n, dtype=torch.float64))), "low": None, "high": None}
    return bootstrap(metric, n, n_resamples, seed)


def evaluate(
    scored: Scored, n_unknown: int, reference: float | Tensor, n_resamples: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Compute all metrics of a method.

    Args:
        n_unknown: Number of answers that the caller left out because their grades are unknown.
        reference: Reference confidence for the Brier skill: a number, or a tensor [row].

    Returns:
        A dict with the result of `estimate` for each metric, `auroc_ceiling` (only for questions; see `ceiling`), and
        the counts `n_questions`, `n_samples` (graded answers), `n_unknown`, and `n_masked` (rows that are not usable).
    """
    usable = scored.usable
    method, figures = scored.take(usable), dict[str, Any]()
    if isinstance(reference, Tensor):
        reference = reference[usable]
    merged = method.merged()
    for name in METRICS[method.target]:
        figures[name] = estimate(merged, name, n_resamples, seed, reference)
        if name == "auroc" and method.question is None:
            figures["auroc_ceiling"] = ceiling(method.right, method.known)
    counts = {"n_questions": method.n_questions, "n_samples": int(method.known.sum())}
    return {**figures, **counts, "n_unknown": n_unknown, "n_masked": int((~usable).sum())}


def ceiling(right: Tensor, known: Tensor) -> Interval | None:
    """Return `functional.auroc_ceiling` as a dict with `value`, `low` and `high`, or None if it is undefined."""
    value, low, high = functional.auroc_ceiling(right, known)
    return None if math.isnan(value + low + high) else {"value": value, "low": low, "high": high}


def common_rows(a: Scored, b: Scored) -> tuple[Scored, Scored]:
    """Keep only the rows that are usable for both methods."""
    both = a.usable & b.usable
    return a.take(both), b.take(both)


def difference(
    a: Scored, b: Scored, name: str, n_resamples: int = 2000, seed: int = 0, n_draws: int = 0
) -> Mapping[str, Any] | None:
    """Compute the paired difference a − b in `auroc` or `brier`, with its 95 % interval.

    Both methods must have the same rows (see `common_rows`). The result is None if the difference is undefined. If
    `n_draws` is positive, the result also contains a two-sided p-value `p`. It comes from `bootstrap_p` for AUROC, and
    from `sign_flip` for the Brier score.
    """
    if not a.n_questions:
        return None
    metric_a, metric_b = metric_of(a, name), metric_of(b, name)
    interval = paired_bootstrap(metric_a, metric_b, a.n_questions, n_resamples=n_resamples, seed=seed)
    if interval is None or not n_draws:
        return interval
    if name == "auroc":
        return {**interval, "p": bootstrap_p(metric_a, metric_b, a.n_questions, n_draws, seed)}
    terms_a, terms_b = (functional.brier_terms(method.confidence, method.right, method.known) for method in (a, b))
    return {**interval, "p": sign_flip(terms_a - terms_b, n_draws, seed)}


def compare(
    a: str, b: str, scored_a: Scored, scored_b: Scored, split: str = "test", n_resamples: int = 2000, seed: int = 0
) -> list[dict[str, Any]]:
    """Compute paired differences a − b in AUROC and Brier score on the `common_rows` of two methods.

    Raises:
        ValueError: If the grades of the two methods differ.
    """
    if not (torch.equal(scored_a.right, scored_b.right) and torch.equal(scored_a.known, scored_b.known)):
        raise ValueError(
            f"Expected {a!r} and {b!r} to be evaluated with the same grades, but their grades differ. Use the same "
            "grades for both."
        )
    first, second = common_rows(scored_a, scored_b)
    found = {name: difference(first, second, name, n_resamples, seed) for name in ("auroc", "brier")}
    names = {"a": a, "b": b, "split": split, "target": scored_a.target}
    return [{**names, "metric": name, **values} for name, values in found.items() if values is not None]
