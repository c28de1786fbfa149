"""All figures of a method on one split with intervals and counts, and paired differences of two methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from probes.metrics import functional
from probes.metrics.intervals import Interval, bootstrap, by_question, paired_bootstrap

#: Metrics of confidences of questions, by name in the order of the report.
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
}
#: Metrics of confidences of single answers, which are right or wrong, so that nothing has to be debiased.
RESPONSE: dict[str, Callable[..., Tensor]] = {
    "auroc": functional.capability_auroc,
    "brier": functional.response_brier,
    "ece_width": partial(functional.expected_calibration_error, by="width"),
    "ece_mass": partial(functional.expected_calibration_error, by="mass"),
    "aurc": functional.aurc,
}
METRICS = {"capability": CAPABILITY, "response": RESPONSE}
#: Metrics without a valid interval: resampling adds noise to an error that is never negative (docs/statistics.md).
WITHOUT_INTERVAL = ("ece_width", "ece_mass", "rmsce")
_STRATIFIED = ("auroc", "auroc_hard")


@dataclass(frozen=True)
class Scored:
    """Confidences of a method for some rows, and the answers that they are scored on.

    Attributes:
        confidence: [row] float64 in [0, 1].
        right: [row] right answers.
        known: [row] graded answers.
        question: [row] int64, question of each row; None if rows are questions.
        fold: [row] int64, number of the fitted probe that gave the confidence; None if one probe gave all.
    """

    confidence: Tensor
    right: Tensor
    known: Tensor
    question: Tensor | None = None
    fold: Tensor | None = None

    def take(self, rows: Tensor) -> Scored:
        """A subset of the rows, by index or mask."""
        columns = (self.confidence, self.right, self.known, self.question, self.fold)
        return Scored(*(column if column is None else column[rows] for column in columns))  # type: ignore[arg-type]

    @property
    def n_questions(self) -> int:
        """Number of questions."""
        return len(self.confidence) if self.question is None else len(self.question.unique())


def usable(scored: Scored, target: str = "capability") -> Tensor:
    """[row] bool: whether the confidence is finite and the question has two graded answers, or the answer a grade."""
    return scored.confidence.isfinite() & (scored.known >= (2 if target == "capability" else 1))


def metric_of(
    scored: Scored, name: str, reference: float | Tensor, target: str = "capability"
) -> Callable[[Tensor], Tensor]:
    """A metric of a method as a function of resampling weights, from [resample, question] to [resample]."""
    options: dict[str, Any] = {"reference": reference} if name == "brier_skill" else {}
    if name in _STRATIFIED and scored.fold is not None:
        options["strata"] = scored.fold

    def metric(weights: Tensor) -> Tensor:
        return METRICS[target][name](scored.confidence, scored.right, scored.known, weights=weights, **options)

    return metric if scored.question is None else by_question(metric, scored.question.unique(return_inverse=True)[1])


def evaluate(
    scored: Scored,
    n_unknown: int,
    reference: float | Tensor,
    n_resamples: int = 2000,
    seed: int = 0,
    target: str = "capability",
) -> dict[str, Any]:
    """All figures of one method.

    Args:
        scored: Confidences and answers.
        n_unknown: Answers of these questions whose grade is unknown; they are left out and counted.
        reference: Mean accuracy of the training split for the skill; one number, or one per row.
        n_resamples: Resamples of the questions.
        seed: Seed of the resamples.
        target: `capability` for confidences of questions, `response` for those of answers.

    Returns:
        ``{metric: {value, low, high} or None}`` with 95 % intervals; `low` and `high` are None for calibration errors,
        which have no valid interval. For questions also `auroc_ceiling`, whose `low` and `high` are a bracket (see
        `functional.auroc_ceiling`). And `n_questions`, `n_samples`, `n_unknown`, `n_masked` (rows left out).
    """
    scorable = usable(scored, target)
    method = scored.take(scorable)
    if isinstance(reference, Tensor):
        reference = reference[scorable]
    n = method.n_questions
    figures: dict[str, Any] = dict.fromkeys(METRICS[target])
    for name in METRICS[target] if n else ():
        metric = metric_of(method, name, reference, target)
        if name not in WITHOUT_INTERVAL:
            figures[name] = bootstrap(metric, n, n_resamples, seed)
        elif n > 1:
            figures[name] = {"value": float(metric(torch.ones(1, n, dtype=torch.float64))), "low": None, "high": None}
    counts = {
        "n_questions": n,
        "n_samples": int(method.known.sum()),
        "n_unknown": n_unknown,
        "n_masked": int((~scorable).sum()),
    }
    if target == "response":
        return {**figures, **counts}
    value, low, high = functional.auroc_ceiling(method.right, method.known)
    ceiling: Interval | None = None if math.isnan(value + low + high) else {"value": value, "low": low, "high": high}
    return {"auroc": figures.pop("auroc"), "auroc_ceiling": ceiling, **figures, **counts}


def compare(
    a: str,
    b: str,
    scored_a: Scored,
    scored_b: Scored,
    split: str,
    reference: float | Tensor,
    n_resamples: int = 2000,
    seed: int = 0,
    target: str = "capability",
) -> list[dict[str, Any]]:
    """Paired differences a − b in AUROC and Brier score on the rows that both methods score.

    Raises:
        ValueError: If the two are scored on different answers.
    """
    if not (torch.equal(scored_a.right, scored_b.right) and torch.equal(scored_a.known, scored_b.known)):
        raise ValueError(
            f"Expected {a!r} and {b!r} to be scored on the same answers, but got different counts. "
            "Score both on the held-out half."
        )
    both = usable(scored_a, target) & usable(scored_b, target)
    if not both.any():
        return []
    first, second = scored_a.take(both), scored_b.take(both)
    rows = []
    for name in ("auroc", "brier"):
        difference = paired_bootstrap(
            metric_of(first, name, reference, target),
            metric_of(second, name, reference, target),
            first.n_questions,
            n_resamples=n_resamples,
            seed=seed,
        )
        if difference is not None:
            rows.append({"a": a, "b": b, "split": split, "target": target, "metric": name, **difference})
    return rows
