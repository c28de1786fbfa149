"""Tests of many AUROCs at once, corrected for their number: the largest of all by chance is what each is held against."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from tqdm import tqdm

#: Products of draws and scores that are held at once.
_CHUNK = 2**24
#: Further draws, from which the spread of each score's statistic is taken: one that also made a spread would be tamed by it.
_SCALE_DRAWS = 500


def max_t(
    scores: Tensor,
    right: Tensor,
    question: Tensor,
    sample: Tensor,
    n_draws: int = 10_000,
    seed: int = 0,
    progress: bool = False,
) -> Tensor:
    r"""P-values against an AUROC of ½, two-sided, corrected for the number of scores by the largest statistic of all (max-T).

    In a draw the questions exchange their grades: the grades of all answers to a question go to another question together,
    answer j to answer j (Westfall and Young, Resampling-Based Multiple Testing, 1993). A score's statistic is the distance of
    its AUROC from ½ over the spread of that in the draws; its p-value is the share of draws in which the largest statistic
    of any score reaches its own. Scores that say the same count as one, since they move together: that is where Holm's
    correction loses, for a grid has thousands of scores and few of a kind.

    Where no score has to do with the grades, and questions are alike in how many answers they have, the least p-value
    of all is below 0.05 in at most 5 % of the cases, however few right or wrong answers there are. Statistics from
    standard errors, with signs or weights drawn for the questions, promise that for many only: an AUROC that lies far
    from ½ by chance has a small standard error too.

    Args:
        scores: [score, answer], NaN where an answer has none.
        right: [answer] whether it is right.
        question: [answer] int64, the question of each answer, counted from 0.
        sample: [answer] int64, the number of each answer to its question.
        n_draws: Draws; the least p-value is 1 / (n_draws + 1).
        seed: Seed of the draws.
        progress: Whether to show a bar.

    Returns:
        [score] float64 in (0, 1]; NaN of a score that is constant, or lacks right or wrong answers, and is not counted.
    """
    exchange = _Exchange(scores, right, question, sample)
    n_questions = int(question.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(_SCALE_DRAWS + n_draws, n_questions, generator=generator).argsort(1)
    scaling, orders = orders.split([_SCALE_DRAWS, n_draws])
    observed = exchange.distances(torch.arange(n_questions)[None])[0]
    spread = torch.stack([one.square().sum(0) for one in exchange.of(scaling)]).sum(0).div(_SCALE_DRAWS).sqrt()
    counted = observed.isfinite() & (spread > 1e-6)
    p_values = torch.full((len(scores),), torch.nan, dtype=torch.float64)
    if counted.any():
        scale = torch.where(counted, 1 / spread, 0.0)
        largest = torch.empty(0)
        with tqdm(total=n_draws, desc="correction", unit=" draws", disable=not progress) as bar:
            for one in exchange.of(orders):
                largest = torch.cat([largest, (one * scale).amax(1)])
                bar.update(len(one))
        largest = largest.sort().values
        reached = observed[counted] * scale[counted] - 1e-4  # what is equal in exact arithmetic is a hit
        hits = n_draws - torch.searchsorted(largest, reached)
        p_values[counted] = (1 + hits).double() / (1 + n_draws)
    return p_values


class _Exchange:
    """Scores and grades by question and sample, so that questions can exchange their grades. Arguments as of `max_t`."""

    def __init__(self, scores: Tensor, right: Tensor, question: Tensor, sample: Tensor) -> None:
        shape = int(question.max()) + 1, int(sample.max()) + 1
        place = question * shape[1] + sample
        self._grade = torch.zeros(2, *shape)  # right, wrong; neither where there is no graded answer
        self._grade.view(2, -1)[:, place] = torch.stack([right.bool(), ~right.bool()]).float()
        ranks, there = torch.zeros(2, len(scores), shape[0] * shape[1])
        ranks[:, place], there[:, place] = _centred_ranks(scores), scores.isfinite().float()
        patterns, pattern = there.unique(dim=0, return_inverse=True)
        #: Scores that the same answers have: their rows, the answers, and the ranks.
        self._alike = [
            (rows, one, ranks[rows].T.contiguous())
            for number, one in enumerate(patterns)
            for rows in [(pattern == number).nonzero()[:, 0]]
        ]
        self._n_scores, self._step = len(scores), max(1, _CHUNK // max(len(scores), shape[0] * shape[1]))

    def distances(self, order: Tensor) -> Tensor:
        """Distance [draw, score] of each AUROC from ½ when question q has the grades of question `order[:, q]`, [draw, question].

        NaN without right or wrong answers in the questions' own order; 0 in a draw that leaves none.
        """
        drawn = self._grade[:, order].flatten(2)  # [right or wrong, draw, answer]
        found = torch.empty(len(order), self._n_scores)
        for rows, there, ranks in self._alike:
            counts = drawn.matmul(there)[..., None]
            mean = drawn[0] / counts[0].clamp_min(0.5) - drawn[1] / counts[1].clamp_min(0.5)
            found[:, rows] = mean.matmul(ranks).abs_().where((counts > 0).all(0), torch.nan)
        return found

    def of(self, orders: Tensor) -> Iterator[Tensor]:
        """Distances of many draws, some at a time."""
        for order in orders.split(self._step):
            yield self.distances(order).nan_to_num_(0.0)


def _centred_ranks(scores: Tensor) -> Tensor:
    """Share of a score's answers that lie below each one, ties ½, less ½: [score, answer] float32, 0 where it is missing.

    The mean over right answers less that over wrong ones is the AUROC less ½.
    """
    there = scores.isfinite()
    ordered = torch.where(there, scores, torch.inf).sort(1).values.contiguous()
    wanted = torch.where(there, scores, 0.0).contiguous()
    twice = torch.searchsorted(ordered, wanted) + torch.searchsorted(ordered, wanted, right=True)
    share = twice.double() / (2 * there.sum(1, keepdim=True)) - 0.5
    return torch.where(there, share, 0.0).float()
