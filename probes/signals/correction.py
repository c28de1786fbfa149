"""Tests of many AUROCs at once, corrected for their number: the largest of all by chance is what each is held against."""

from __future__ import annotations

import torch
from torch import Tensor

from probes.signals.placements import Clustered

#: Products of draws and scores that are held at once.
_CHUNK = 2**24


def max_t(found: Clustered, n_draws: int = 10_000, seed: int = 0) -> Tensor:
    r"""P-values against an AUROC of ½, two-sided, corrected for the number of scores by the largest statistic of all (max-T).

    Question q moves a score's AUROC by its influence U_q, so that its part in the distance D from ½ is D/Q + U_q, and these
    parts sum to D. In a draw every question keeps or changes the sign of its parts in all scores together, and the statistic of
    a score is

    .. math:: \Big|\sum_q g_q x_q\Big| \Big/ \Big(\sum_q x_q^2\Big)^{1/2}, \qquad x_q = D/Q + U_q, \quad g_q = \pm 1,

    which rises with Student's t. A score's p-value is the share of draws in which the largest statistic of any score reaches
    its own. Scores that say the same count as one, since they move together, which is where Holm's correction loses: a
    grid has thousands of scores and few of a kind. With one score it is the sign-flip test of `probes.significance` on its parts.

    Args:
        found: Scores on the same questions.
        n_draws: Draws of the signs; the least p-value is 1 / (n_draws + 1).
        seed: Seed of the signs.

    Returns:
        [score] float64 in (0, 1]; NaN where a score has no standard error, and then it is not counted.
    """
    p_values = torch.full_like(found.auroc, torch.nan)
    tested = found.firm.nonzero()[:, 0]
    if not len(tested):
        return p_values
    distance = (found.auroc[tested] - 0.5) / found.n_questions[tested]
    parts = found.influence[tested] + distance[:, None] * found.held[tested]
    parts = (parts / parts.norm(dim=1, keepdim=True)).float()
    reached = parts.double().sum(1).abs()
    generator, n_questions = torch.Generator().manual_seed(seed), parts.shape[1]
    largest = []
    for start in range(0, n_draws, step := max(1, _CHUNK // len(tested))):
        signs = torch.randint(2, (min(step, n_draws - start), n_questions), generator=generator, dtype=torch.int8)
        largest.append((signs.float() * 2 - 1).matmul(parts.T).abs_().amax(1))
    ordered = torch.cat(largest).double().sort().values
    hits = n_draws - torch.searchsorted(ordered, reached - 1e-5)  # what is equal in exact arithmetic is a hit
    p_values[tested] = (1 + hits).double() / (1 + n_draws)
    return p_values
