"""The AUROC of someone who knows every accuracy: what a confidence can reach at most."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probes.metrics.functional.inputs import prepare
from probes.metrics.functional.ranking import capability_auroc


def auroc_ceiling(right: Tensor, known: Tensor) -> tuple[float, float, float]:
    r"""The capability AUROC of someone who knows every p, with a bracket: (value, low, high).

    The value takes p as Beta distributed, fitted by moments from which the sampling noise is subtracted:
    ½ + E|p−p′| / (4 m(1−m)), with the closed form of the Beta's mean difference. `high` ranks by p̂ and scores on the same samples
    (optimistic), `low` ranks by one half of each question's answers and scores on the other (pessimistic).

    Returns:
        Three floats; all NaN where the accuracies vary no more than noise would.
    """
    preds = right.double() / known.double()
    _, right, known, _ = prepare(preds, right, known, None, 2)
    mean = float(preds.mean())
    spread = float(preds.var() - (preds * (1 - preds) / (known - 1)).mean()) if len(preds) > 1 else 0.0
    if not 0 < mean < 1 or spread <= 0 or spread >= mean * (1 - mean):
        return math.nan, math.nan, math.nan
    total = mean * (1 - mean) / spread - 1
    a, b = mean * total, (1 - mean) * total
    log_difference = math.log(4 / total) + _log_beta(total, total) - _log_beta(a, a) - _log_beta(b, b)
    value = 0.5 + math.exp(log_difference) / (4 * mean * (1 - mean))
    high = float(capability_auroc(preds, right, known))
    low = _half_ceiling(right, known)
    return min(max(value, low), high), low, high


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _half_ceiling(right: Tensor, known: Tensor) -> float:
    """AUROC of one half of the answers on the other, in expectation over the halvings (a seeded draw of 20)."""
    generator = torch.Generator().manual_seed(0)
    first = (known / 2).floor()
    values = []
    for _ in range(20):
        # a hypergeometric draw: the order of the answers is random, the first half ranks
        noise = torch.rand(len(known), int(known.max()), generator=generator, dtype=torch.float64)
        index = torch.arange(int(known.max()))[None]
        noise = noise.masked_fill(index >= known[:, None], 2.0)
        chosen = noise.argsort(-1).argsort(-1) < first[:, None]
        in_first = (chosen & (index < right[:, None])).sum(-1).double()
        values.append(capability_auroc(in_first / first, right - in_first, known - first))
    return float(torch.stack(values).nanmean())  # a halving can leave one half without a right answer
