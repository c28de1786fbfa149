"""Intervals by resampling questions, each with all its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor

#: A metric as a function of resampling weights [resample, question], giving [resample].
WeightedMetric = Callable[[Tensor], Tensor]


class Interval(TypedDict):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def resample_weights(n_questions: int, n_resamples: int, seed: int) -> Tensor:
    """How often each question is drawn in each resample of N out of N: [resample, question] float64."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n_questions, (n_resamples, n_questions), generator=generator)
    return torch.zeros(n_resamples, n_questions, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones_like(drawn, dtype=torch.float64)
    )


def bootstrap(
    metric: WeightedMetric, n_questions: int, n_resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval | None:
    """A metric with its percentile interval over resampled questions (the cluster bootstrap).

    Args:
        metric: From weights [resample, question] to values [resample].
        n_questions: Number of questions.
        n_resamples: Number of resamples.
        seed: Seed of the resamples; the same seed gives two metrics the same resamples.
        level: Coverage of the interval.

    Returns:
        The interval, or None where the metric itself, or over a tenth of the resamples, is not a number.
    """
    value = float(metric(torch.ones(1, n_questions, dtype=torch.float64))[0])
    step = max(1, 2**24 // n_questions)  # bounds the memory of a chunk of resamples
    resampled = torch.cat([metric(weights) for weights in resample_weights(n_questions, n_resamples, seed).split(step)])
    usable = resampled[resampled.isfinite()]
    if value != value or len(usable) < 0.9 * n_resamples:
        return None
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = usable.quantile(tails).tolist()
    return {"value": value, "low": low, "high": high}


def paired_bootstrap(a: WeightedMetric, b: WeightedMetric, n_questions: int, **options: Any) -> Interval | None:
    """The difference a − b of two metrics on the same questions, with its interval over the same resamples."""
    return bootstrap(lambda weights: a(weights) - b(weights), n_questions, **options)
