"""Every figure of every method on one split, each with its interval and counts, and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from probes import functional
from probes.baselines import Scored
from probes.intervals import Interval, bootstrap, paired_bootstrap

#: Metrics in the order of the report, by name: from (preds, right, known, weights) to values.
METRICS: dict[str, Callable[..., Tensor]] = {
    "auroc": functional.capability_auroc,
    "auroc_hard": functional.hard_auroc,
    "brier": functional.debiased_brier,
    "brier_skill": functional.brier_skill,
    "ece_width": partial(functional.expected_calibration_error, by="width"),
    "ece_mass": partial(functional.expected_calibration_error, by="mass"),
    "spearman": functional.spearman,
}


def usable(scored: Scored) -> Tensor:
    """[question] bool: a finite confidence and at least two graded answers."""
    return scored.confidence.isfinite() & (scored.known >= 2)


def metric_of(scored: Scored, name: str, reference: float) -> Callable[[Tensor], Tensor]:
    """A metric of a method as a function of resampling weights [resample, question]."""
    extra = {"reference": reference} if name == "brier_skill" else {}
    return lambda weights: METRICS[name](scored.confidence, scored.right, scored.known, weights=weights, **extra)


def evaluate(
    scored: Scored, n_unknown: int, reference: float, n_resamples: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """All figures of one method.

    Args:
        scored: Confidences and answers.
        n_unknown: Answers of these questions whose grade is unknown; they are left out.
        reference: The training split's mean accuracy, for the skill.
        n_resamples: Resamples of the questions.
        seed: Seed of the resamples.

    Returns:
        ``{metric: {value, low, high} or None}`` with 95 % intervals; `auroc_ceiling`, whose low and high are a bracket
        of estimates (see `functional.auroc_ceiling`); and `n_questions`, `n_samples`, `n_unknown`, `n_masked` (questions left out).
    """
    kept = usable(scored)
    method = Scored(scored.confidence[kept], scored.right[kept], scored.known[kept])
    n = len(method.confidence)
    figures: dict[str, Any] = {
        name: bootstrap(metric_of(method, name, reference), n, n_resamples, seed) if n else None for name in METRICS
    }
    value, low, high = functional.auroc_ceiling(method.right, method.known)
    ceiling: Interval | None = None if math.isnan(value + low + high) else {"value": value, "low": low, "high": high}
    counts = {
        "n_questions": n,
        "n_samples": int(method.known.sum()),
        "n_unknown": n_unknown,
        "n_masked": int((~kept).sum()),
    }
    return {"auroc": figures.pop("auroc"), "auroc_ceiling": ceiling, **figures, **counts}


def compare(
    a: str,
    b: str,
    scored_a: Scored,
    scored_b: Scored,
    split: str,
    reference: float,
    n_resamples: int = 2000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Paired differences a − b in AUROC and Brier on the questions that both methods score.

    Both must be scored on the same answers: where one spends half of them, give the other its held-out half too.

    Raises:
        ValueError: The two are scored on different answers.
    """
    if not (torch.equal(scored_a.right, scored_b.right) and torch.equal(scored_a.known, scored_b.known)):
        raise ValueError(
            f"Expected {a!r} and {b!r} to be scored on the same answers, but they are not. Score both on the held-out half."
        )
    both = usable(scored_a) & usable(scored_b)
    if not both.any():
        return []
    first, second = (Scored(one.confidence[both], one.right[both], one.known[both]) for one in (scored_a, scored_b))
    rows = []
    for name in ("auroc", "brier"):
        difference = paired_bootstrap(
            metric_of(first, name, reference),
            metric_of(second, name, reference),
            int(both.sum()),
            n_resamples=n_resamples,
            seed=seed,
        )
        if difference is not None:
            rows.append({"a": a, "b": b, "split": split, "target": "capability", "metric": name, **difference})
    return rows
