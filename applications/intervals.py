"""Bootstrap intervals for means over questions, or over groups of questions."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probes.metrics.functional.inputs import by_group, mean
from probes.metrics.intervals import WeightedMetric, bootstrap

#: A `value` with the bounds `low` and `high` of its interval. The bounds are None if there is no interval.
Estimate = dict[str, Any]


def estimate(metric: WeightedMetric, n_questions: int, n_resamples: int, seed: int) -> Estimate:
    """Compute a metric and its 95 % bootstrap interval over questions.

    There is no interval if `bootstrap` returns None, or if the two bounds are equal.
    """
    interval = bootstrap(metric, n_questions, n_resamples, seed)
    if interval is None or interval["high"] - interval["low"] < 1e-12:
        value = float(metric(torch.ones(1, n_questions, dtype=torch.float64)))
        return {"value": 0.0 if abs(value) < 1e-12 else value, "low": None, "high": None}
    return {**interval}


def mean_of(values: NDArray[np.float64]) -> WeightedMetric:
    """Return a function that maps resampling weights to the mean of `values` [question]."""
    return lambda weights: mean(torch.from_numpy(values), weights)


def mean_over_groups(values: NDArray[np.float64], group: Tensor) -> WeightedMetric:
    """Return a function that maps resampling weights to the mean of the group means of `values` [question].

    `group` [question] int64 is the index of each question's group. Groups without questions in a resample are left out.
    """
    n_groups = int(group.max()) + 1

    def metric(weights: Tensor) -> Tensor:
        sizes = by_group(weights, group, n_groups)
        sums = by_group(torch.from_numpy(values) * weights, group, n_groups)
        drawn = (sizes > 0).double()
        return (sums / sizes.clamp(min=1e-9)).sum(-1) / drawn.sum(-1)

    return metric
