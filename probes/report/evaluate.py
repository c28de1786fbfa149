"""All figures of a method on one split with intervals and counts, and paired differences of two methods."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probes.metrics import functional
from probes.metrics.intervals import bootstrap, by_question, paired_bootstrap

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
_OF_ANSWERS = {name: CAPABILITY[name] for name in ("auroc", "brier", "ece_width", "ece_mass", "aurc")}
#: Metrics by target. Single answers are right or wrong, so that nothing has to be debiased.
METRICS = {"capability": CAPABILITY, "response": _OF_ANSWERS | {"brier": functional.response_brier}}
#: Metrics without a valid interval: resampling adds noise to an error that is never negative (docs/statistics.md).
WITHOUT_INTERVAL = ("ece_width", "ece_mass", "rmsce")
_STRATIFIED = ("auroc", "auroc_hard")


class Scored(NamedTuple):
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

    def take(self, rows: Tensor) -> "Scored":
        """A subset of the rows, by index or mask."""
        return Scored._make(column if column is None else column[rows] for column in self)

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
    n, figures = method.n_questions, dict[str, Any]()
    for name in METRICS[target]:
        figures[name] = None
        if n and name not in WITHOUT_INTERVAL:
            figures[name] = bootstrap(metric_of(method, name, reference, target), n, n_resamples, seed)
        elif n > 1:
            value = metric_of(method, name, reference, target)(torch.ones(1, n, dtype=torch.float64))
            figures[name] = {"value": float(value), "low": None, "high": None}
        if name == "auroc" and target == "capability":
            ceiling, low, high = functional.auroc_ceiling(method.right, method.known)
            bracket = {"value": ceiling, "low": low, "high": high}
            figures["auroc_ceiling"] = None if math.isnan(ceiling + low + high) else bracket
    n_samples, n_masked = int(method.known.sum()), int((~scorable).sum())
    return {**figures, "n_questions": n, "n_samples": n_samples, "n_unknown": n_unknown, "n_masked": n_masked}


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
        raise ValueError(f"Expected {a!r} and {b!r} to be scored on the same answers. Score both on the held-out half.")
    both = usable(scored_a, target) & usable(scored_b, target)
    if not both.any():
        return []
    first, second, rows = scored_a.take(both), scored_b.take(both), []
    for name in ("auroc", "brier"):
        metric, other = (metric_of(scored, name, reference, target) for scored in (first, second))
        difference = paired_bootstrap(metric, other, first.n_questions, n_resamples=n_resamples, seed=seed)
        if difference is not None:
            rows.append({"a": a, "b": b, "split": split, "target": target, "metric": name, **difference})
    return rows
