"""Two-sided significance tests that compare two methods on the same questions, and the Holm correction.

P-values are never 0, because the observed data count as one of the resamples or sign patterns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probes.metrics.intervals import WeightedMetric, minus, resampled

#: Maximum number of questions for which all sign patterns are enumerated.
_MOST_EXACT = 20
_CHUNK = 2**22


def sign_flip(differences: Tensor, n_flips: int = 10_000, seed: int = 0) -> float:
    """Compute the p-value of the sign-flip test.

    The p-value is the fraction of sign patterns whose mean difference is at least as far from 0 as the observed one.
    With up to 20 questions, all patterns are enumerated. With more questions, `n_flips` random patterns are drawn, and
    the observed pattern is added.

    Args:
        differences: Differences between two methods, [question], for example between their `functional.brier_terms`.
            All must be finite. If a question has several rows, pass the mean of their differences.
        n_flips: Number of random sign patterns. The smallest possible p-value is about 1 / n_flips.
        seed: Seed for the patterns.

    >>> sign_flip(torch.tensor([1.0, 2.0, 3.0]))  # 2 of 8 patterns reach |sum| = 6
    0.25
    """
    values = differences.double()
    # with this tolerance, sums that are equal in exact arithmetic count as hits
    reach = float(values.sum().abs() - 1e-12 * values.abs().sum())
    if len(values) <= _MOST_EXACT:
        sums = values[:1]  # one sign is fixed, because flipping all signs does not change the distance from 0
        for value in values[1:]:
            sums = torch.cat([sums + value, sums - value])
        return float((sums.abs() >= reach).double().mean())
    generator, hits = torch.Generator().manual_seed(seed), 0
    for start in range(0, n_flips, step := max(1, _CHUNK // len(values))):
        shape = (min(step, n_flips - start), len(values))
        signs = torch.randint(2, shape, generator=generator, dtype=torch.int8).double() * 2 - 1
        hits += int(((signs @ values).abs() >= reach).sum())
    return (1 + hits) / (1 + n_flips)


def bootstrap_p(
    a: WeightedMetric, b: WeightedMetric, n_questions: int, n_resamples: int = 10_000, seed: int = 0
) -> float | None:
    r"""Compute the paired-bootstrap p-value of the difference a − b between two metrics.

    .. math::
        p = \min\Big\{1, 2 \min\Big[\frac{1 + \#(\Delta^* \le 0)}{B + 1},
            \frac{1 + \#(\Delta^* \ge 0)}{B + 1}\Big]\Big\}

    where Δ* are the B finite values of the difference over resampled questions. With the same seed, `paired_bootstrap`
    uses the same resamples. The p-value is None if there are fewer than two questions, or if more than a tenth of the
    differences are not finite.
    """
    differences = resampled(minus(a, b), n_questions, n_resamples, seed)
    if differences is None:
        return None
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (len(differences) + 1))


def holm(p_values: Tensor) -> Tensor:
    """Adjust p-values for multiple tests with the Holm correction (Holm 1979).

    The smallest of m p-values is multiplied by m, the next by m − 1, and so on. If hypotheses with adjusted p-values
    below α are rejected, the probability of any false rejection is at most α. This also holds for dependent tests. NaN
    means that there was no test. It stays NaN and is not counted in m.

    >>> holm(torch.tensor([0.01, 0.04, 0.03], dtype=torch.float64))
    tensor([0.0300, 0.0600, 0.0600], dtype=torch.float64)
    """
    values = p_values.double()
    tested = values.isfinite().nonzero()[:, 0]
    order = tested[values[tested].argsort()]
    factors = torch.arange(len(order), 0, -1, dtype=torch.float64)
    adjusted = torch.full_like(values, torch.nan)
    adjusted[order] = (values[order] * factors).cummax(0).values.clamp_max(1)
    return adjusted


def add_holm(tests: Sequence[dict[str, Any]]) -> None:
    """Add `p_holm`, the Holm-adjusted value of `p`, to each test in place. It is None for tests without a p-value."""
    p_values = [torch.nan if test["p"] is None else test["p"] for test in tests]
    for test, p in zip(tests, holm(torch.tensor(p_values, dtype=torch.float64)).tolist(), strict=True):
        test["p_holm"] = None if p != p else p
