"""Confidence intervals from the cluster bootstrap, which resamples questions together with all their answers.

The intervals are bias-corrected and accelerated (BCa; Efron, Better Bootstrap Confidence Intervals, JASA 82, 1987).
They use Student's t quantiles instead of normal quantiles, like `CI.bca` in the R package `resample` (Hesterberg, What
Teachers Should Know about the Bootstrap, The American Statistician 69, 2015).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypedDict

import torch
from scipy.special import stdtrit
from torch import Tensor

from extract.errors import InputError

#: Differentiable function that maps resampling weights [resample, question] float64 to values of a metric [resample].
WeightedMetric = Callable[[Tensor], Tensor]
#: Number of weights per call of a metric. Larger chunks do not fit into the CPU cache.
_CHUNK = 2**18
#: Minimum number of resamples per call of a metric.
_LEAST_RESAMPLES = 4


class Interval(TypedDict):
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@lru_cache(maxsize=1)  # all metrics of a method use the same resamples
def resample_weights(n_questions: int, n_resamples: int, seed: int) -> Tensor:
    """Return how often each bootstrap resample contains each question, [resample, question] uint8.

    The result is cached, so do not modify it.
    """
    counts, generator = torch.zeros(n_resamples, n_questions, dtype=torch.uint8), torch.Generator().manual_seed(seed)
    for chunk in counts.split(_chunk(n_questions)):
        chunk.scatter_add_(1, torch.randint(n_questions, chunk.shape, generator=generator), torch.ones_like(chunk))
    return counts


def _chunk(n_rows: int) -> int:
    """Return how many resamples of `n_rows` rows are passed to a metric at once."""
    return max(_LEAST_RESAMPLES, _CHUNK // n_rows)


def by_question(metric: WeightedMetric, question: Tensor, copies: Tensor | float = 1.0) -> WeightedMetric:
    """Convert a metric over rows into a metric over questions.

    `question` [row] int64 maps rows to questions. `copies` [row] is the number of identical rows that each row
    stands for.
    """
    step = _chunk(len(question))
    return lambda weights: torch.cat([metric(chunk[:, question] * copies) for chunk in weights.split(step)])


def resampled(metric: WeightedMetric, n_questions: int, n_resamples: int, seed: int) -> Tensor | None:
    """Evaluate a metric on resampled questions, and return its finite values [resample].

    Returns None if there are fewer than two questions, or if more than a tenth of the values are not finite.
    """
    chunks = resample_weights(n_questions, n_resamples, seed).split(_chunk(n_questions))
    # small tensors between the large chunks would fragment the heap
    values = torch.tensor([value for chunk in chunks for value in metric(chunk.double()).tolist()], dtype=torch.float64)
    usable = values[values.isfinite()]
    return None if n_questions < 2 or len(usable) < 0.9 * n_resamples else usable


def bootstrap(metric: WeightedMetric, n_questions: int, n_resamples: int = 2000, seed: int = 0) -> Interval | None:
    """Compute a metric and its 95 % BCa interval over resampled questions.

    Returns None if there are fewer than two questions, if the metric is NaN, or if more than a tenth of its
    resampled values are not finite. Calls with the same seed use the same resamples.
    """
    weights = torch.ones(1, n_questions, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        value = metric(weights).sum()
    influence = torch.autograd.grad(value, weights)[0][0]
    usable = resampled(metric, n_questions, n_resamples, seed)
    if value.isnan() or usable is None:
        return None
    low, high = usable.quantile(_bca_levels(value.item(), influence, usable)).tolist()
    return {"value": value.item(), "low": low, "high": high}


def _bca_levels(value: float, influence: Tensor, resampled: Tensor) -> Tensor:
    r"""Return the two levels ([2] float64) at which the quantiles of `resampled` are the bounds of the interval.

    .. math::
        \Phi\Big(z_0 + \frac{z_0 \pm t}{1 - a (z_0 \pm t)}\Big), \quad
        a = \tfrac16 \sum U_i^3 \Big/ \Big(\sum U_i^2\Big)^{3/2}

    where Φ is the standard normal distribution function, and U_i is the influence of question i. The bias correction z₀
    is the normal quantile of the fraction of resampled values below `value` (ties count as ½). The acceleration a
    measures the skewness of the influences. For N questions, t is √(N/(N − 1)) times the 97.5 % quantile of Student's t
    distribution with N − 1 degrees of freedom. The factor √(N/(N − 1)) is needed because the standard deviation of the
    resampled values is too small.
    """
    n = len(influence)
    below = (resampled < value).double().mean() + (resampled == value).double().mean() / 2
    least = 1 / (len(resampled) + 1)
    bias = torch.special.ndtri(below.clamp(least, 1 - least))
    squares = influence.square().sum()
    acceleration = influence.pow(3).sum() / (6 * squares**1.5) if squares > 0 else 0.0
    reach = float(stdtrit(n - 1, 0.975)) * (n / (n - 1)) ** 0.5
    shifted = bias + torch.tensor([-reach, reach], dtype=torch.float64)
    return torch.special.ndtr(bias + shifted / (1 - acceleration * shifted))


def paired_bootstrap(a: WeightedMetric, b: WeightedMetric, n_questions: int, **options: Any) -> Interval | None:
    """Compute the difference a − b of two metrics on the same questions, with its interval. See `bootstrap`."""
    return bootstrap(minus(a, b), n_questions, **options)


def minus(a: WeightedMetric, b: WeightedMetric) -> WeightedMetric:
    """Return the difference a − b of two metrics as a metric."""
    return lambda weights: a(weights) - b(weights)


def check_resampling(seed: int, n_resamples: int = 2000) -> None:
    """Check the options for resampling.

    Raises:
        InputError: If `n_resamples` is below 100, or if `seed` is not in [0, 2³²).
    """
    if n_resamples < 100:
        raise InputError(f"Expected `n_resamples` to be at least 100, but got {n_resamples}. Try 2000.")
    if not 0 <= seed < 2**32:
        raise InputError(f"Expected `seed` to be between 0 and {2**32 - 1}, but got {seed}. The default is 0.")
