"""Every figure of every method on one split, each with its interval and counts, and the paired differences."""

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

#: Metrics of a question's confidence, by name in the order of the report: from (preds, right, known, weights) to values.
CAPABILITY: dict[str, Callable[..., Tensor]] = {
    "auroc": functional.capability_auroc,
    "auroc_hard": functional.hard_auroc,
    "brier": functional.debiased_brier,
    "brier_skill": functional.brier_skill,
    "ece_width": partial(functional.expected_calibration_error, by="width"),
    "ece_mass": partial(functional.expected_calibration_error, by="mass"),
    "rmsce": functional.squared_calibration_error,  # of which `evaluate` takes the root, when it has an interval
    "spearman": functional.spearman,
    "aurc": functional.aurc,
}
#: Metrics of a confidence in single answers; an answer is right or wrong, so nothing has to be debiased.
RESPONSE: dict[str, Callable[..., Tensor]] = {
    "auroc": functional.capability_auroc,
    "brier": functional.response_brier,
    "ece_width": partial(functional.expected_calibration_error, by="width"),
    "ece_mass": partial(functional.expected_calibration_error, by="mass"),
    "aurc": functional.aurc,
}
METRICS = {"capability": CAPABILITY, "response": RESPONSE}
_STRATIFIED = ("auroc", "auroc_hard")


@dataclass(frozen=True)
class Scored:
    """A method's confidences for some rows, and the answers that they are scored on.

    Attributes:
        confidence: [row] float64 in [0, 1].
        right: [row] right answers.
        known: [row] graded answers.
        question: [row] int64, which question a row belongs to, counted from 0; None where rows are questions.
        fold: [row] int64, which of several fitted probes gave the confidence; None where one gave all.
    """

    confidence: Tensor
    right: Tensor
    known: Tensor
    question: Tensor | None = None
    fold: Tensor | None = None

    def take(self, kept: Tensor) -> Scored:
        """Some of the rows."""
        question, fold = (one if one is None else one[kept] for one in (self.question, self.fold))
        return Scored(self.confidence[kept], self.right[kept], self.known[kept], question, fold)

    @property
    def n_questions(self) -> int:
        """How many questions there are."""
        return len(self.confidence) if self.question is None else len(self.question.unique())


def usable(scored: Scored, target: str = "capability") -> Tensor:
    """[row] bool: a finite confidence, and two graded answers to a question, or one grade of an answer."""
    return scored.confidence.isfinite() & (scored.known >= (2 if target == "capability" else 1))


def metric_of(
    scored: Scored, name: str, reference: float | Tensor, target: str = "capability"
) -> Callable[[Tensor], Tensor]:
    """A metric of a method as a function of resampling weights [resample, question]."""
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
        n_unknown: Answers of these questions whose grade is unknown; they are left out.
        reference: The training split's mean accuracy, for the skill; one number or one a row.
        n_resamples: Resamples of the questions.
        seed: Seed of the resamples.
        target: `capability` for confidences of questions, `response` for those of answers.

    Returns:
        ``{metric: {value, low, high} or None}`` with 95 % intervals; `auroc_ceiling` for questions, whose low and high
        are a bracket of estimates (see `functional.auroc_ceiling`); and `n_questions`, `n_samples`, `n_unknown`,
        `n_masked` (rows left out).
    """
    kept = usable(scored, target)
    method = scored.take(kept)
    if isinstance(reference, Tensor):
        reference = reference[kept]
    n = method.n_questions
    figures: dict[str, Any] = {
        name: bootstrap(metric_of(method, name, reference, target), n, n_resamples, seed) if n else None
        for name in METRICS[target]
    }
    if figures.get("rmsce") is not None:
        figures["rmsce"] = {end: max(0.0, value) ** 0.5 for end, value in figures["rmsce"].items()}
    counts = {
        "n_questions": n,
        "n_samples": int(method.known.sum()),
        "n_unknown": n_unknown,
        "n_masked": int((~kept).sum()),
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
    """Paired differences a − b in AUROC and Brier on the rows that both methods score.

    Both must be scored on the same answers: where one spends half of them, give the other its held-out half too.

    Raises:
        ValueError: The two are scored on different answers.
    """
    if not (torch.equal(scored_a.right, scored_b.right) and torch.equal(scored_a.known, scored_b.known)):
        raise ValueError(
            f"Expected {a!r} and {b!r} to be scored on the same answers, but they are not. Score both on the held-out half."
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
