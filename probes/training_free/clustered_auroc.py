"""AUROCs of thousands of scores at once, with standard errors and p-values.

Standard errors are clustered by question (Obuchowski, Nonparametric Analysis of Clustered ROC Curve Data, Biometrics
53, 1997). P-values are corrected for multiple testing.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor
from tqdm import tqdm

from probes.metrics.functional.inputs import by_group

#: Minimum number of questions with right answers, and of questions with wrong answers, for a standard error.
LEAST_OF_A_CLASS = 5
#: Maximum number of elements (draws × scores) in memory at once.
_CHUNK = 2**24
#: Number of extra draws that estimate the spread of each statistic. Reusing the test's draws would bias the p-values.
_SCALE_DRAWS = 500


class ClusteredAuroc(NamedTuple):
    """AUROCs of several scores on the same answers.

    Attributes:
        auroc: AUROC of each score, [score] float64; NaN if the score is missing for every right or every wrong answer.
        influence: Derivatives of the AUROC with respect to the question weights, [score, question] float64.
        n_answers: Number of answers that have the score, [score] int64.
        has_answer: Whether any answer to the question has the score, [score, question] bool.
        varies: Whether the score differs between answers, [score] bool.
        enough: Whether there are enough questions to compute a standard error, [score] bool. At least
            `LEAST_OF_A_CLASS` questions must have right answers, and at least `LEAST_OF_A_CLASS` questions must have
            wrong answers.
    """

    auroc: Tensor
    influence: Tensor
    n_answers: Tensor
    has_answer: Tensor
    varies: Tensor
    enough: Tensor

    @property
    def n_questions(self) -> Tensor:
        """Number of questions with at least one answer for which the score is not missing, [score] int64."""
        return self.has_answer.sum(1)

    @property
    def standard_error(self) -> Tensor:
        """Standard error of the AUROC, [score] float64; NaN where `enough` is false or `influence` is all 0."""
        n = self.n_questions
        variance = self.influence.square().sum(1) * n / (n - 1).clamp_min(1)
        return torch.where(self.enough & (variance > 1e-20), variance.sqrt(), torch.nan)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the lower and upper bounds of the `logit_interval`, each [score]."""
        return logit_interval(self.auroc, self.standard_error, self.n_questions, level)


def logit_interval(auroc: Tensor, error: Tensor, n_questions: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return the lower and upper bounds [score] of the confidence intervals of AUROCs.

    The intervals are symmetric on the log-odds scale. They use Student's t distribution with `n_questions` − 1 degrees
    of freedom.
    """
    centre = torch.logit(auroc)
    quantile = torch.from_numpy(stdtrit((n_questions - 1).clamp_min(1).numpy(), (1 + level) / 2))
    reach = quantile * error / (auroc * (1 - auroc))
    return torch.sigmoid(centre - reach), torch.sigmoid(centre + reach)


def clustered_auroc(scores: Tensor, right: Tensor, question: Tensor, n_questions: int) -> ClusteredAuroc:
    """Compute the AUROC of each score over all pairs of a right and a wrong answer.

    Args:
        scores: Scores, [score, answer]. Higher means more likely to be right, and NaN means missing.
        right: Whether each answer is right, [answer].
        question: Index of each answer's question, [answer] int64.
    """
    right = right.bool()
    present = scores.isfinite()
    n_right, n_wrong = present[:, right].sum(1), present[:, ~right].sum(1)
    of_right = placements(scores[:, right], scores[:, ~right])
    of_wrong = placements(-scores[:, ~right], -scores[:, right])
    auroc = of_right.nansum(1) / n_right
    auroc = torch.where((n_right > 0) & (n_wrong > 0), auroc, torch.nan)
    share = torch.zeros(scores.shape, dtype=torch.float64)
    share[:, right] = (of_right - auroc[:, None]) / n_right[:, None]
    share[:, ~right] = (of_wrong - auroc[:, None]) / n_wrong[:, None]
    has_right, has_wrong = (
        by_group(present[:, members].double(), question[members], n_questions) > 0 for members in (right, ~right)
    )
    return ClusteredAuroc(
        auroc=auroc,
        influence=by_group(share.nan_to_num(), question, n_questions),
        n_answers=present.sum(1),
        has_answer=has_right | has_wrong,
        varies=scores.nan_to_num(-torch.inf).amax(1) > scores.nan_to_num(torch.inf).amin(1),
        enough=(has_right.sum(1) >= LEAST_OF_A_CLASS) & (has_wrong.sum(1) >= LEAST_OF_A_CLASS),
    )


def placements(scores: Tensor, others: Tensor) -> Tensor:
    """For each value in `scores`, return the fraction of lower values in the same row of `others`.

    Ties count ½; NaN means missing. The result has the shape of `scores`, [score, answer].
    """
    present, others_present = scores.isfinite(), others.isfinite()
    ordered = torch.where(others_present, others, torch.inf).sort(1).values.contiguous()  # missing scores come last
    values = torch.where(present, scores, 0.0).contiguous()
    twice = torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)
    return torch.where(present, twice.double() / (2 * others_present.sum(1, keepdim=True)), torch.nan)


def max_t(
    scores: Tensor,
    right: Tensor,
    question: Tensor,
    sample: Tensor,
    n_draws: int = 10_000,
    seed: int = 0,
    progress: bool = False,
) -> Tensor:
    r"""Compute two-sided p-values for the null hypothesis AUROC = ½, with max-T correction for multiple testing.

    Each draw permutes the grades across questions (Westfall and Young, Resampling-Based Multiple Testing, 1993). All
    grades of a question move together and keep their sample indices. The statistic of a score is |AUROC − ½|, divided
    by its root mean square over separate draws. The p-value is the fraction of draws in which the largest statistic
    over all scores reaches the observed statistic. The observed grades count as one more draw. The familywise error
    rate is controlled if all questions have the same number of answers.

    Args:
        scores, right, question: See `clustered_auroc`.
        sample: Sample index of each answer, [answer] int64.
        n_draws: Number of draws. The smallest possible p-value is 1 / (n_draws + 1).

    Returns:
        P-values, [score] float64. A p-value is NaN if its score is constant, or if the score is missing for every right
        answer or for every wrong answer.
    """
    exchange = _Exchange(scores, right, question, sample)
    n_questions = int(question.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(_SCALE_DRAWS + n_draws, n_questions, generator=generator).argsort(1)
    scale_orders, orders = orders.split([_SCALE_DRAWS, n_draws])
    observed = exchange.distances(torch.arange(n_questions)[None])[0]
    squares = torch.stack([distances.square().sum(0) for distances in exchange.chunks(scale_orders)])
    spread = squares.sum(0).div(_SCALE_DRAWS).sqrt()
    counted = observed.isfinite() & (spread > 1e-6)
    p_values = torch.full((len(scores),), torch.nan, dtype=torch.float64)
    if counted.any():
        scale = torch.where(counted, 1 / spread, 0.0)
        largest = torch.empty(0)
        with tqdm(total=n_draws, desc="correction", unit=" draws", disable=not progress) as bar:
            for distances in exchange.chunks(orders):
                largest = torch.cat([largest, (distances * scale).amax(1)])
                bar.update(len(distances))
        reached = observed[counted] * scale[counted] - 1e-4  # ties up to rounding count as hits
        hits = n_draws - torch.searchsorted(largest.sort().values, reached)
        p_values[counted] = (1 + hits).double() / (1 + n_draws)
    return p_values


class _Exchange:
    """AUROCs after permuting the grades across questions. See `max_t` for the arguments."""

    def __init__(self, scores: Tensor, right: Tensor, question: Tensor, sample: Tensor) -> None:
        shape = int(question.max()) + 1, int(sample.max()) + 1
        place = question * shape[1] + sample
        self._grades = torch.zeros(2, *shape)  # right, wrong
        self._grades.view(2, -1)[:, place] = torch.stack([right.bool(), ~right.bool()]).float()
        ranks, present = torch.zeros(2, len(scores), shape[0] * shape[1])
        # with centred ranks, AUROC − ½ is the mean rank of right answers minus the mean rank of wrong answers
        ranks[:, place] = (placements(scores, scores) - 0.5).nan_to_num().float()
        present[:, place] = scores.isfinite().float()
        patterns, pattern = present.unique(dim=0, return_inverse=True)
        #: Tuples (rows, mask of answers, ranks), one for each group of scores that exist for the same answers.
        self._groups = [
            (rows, answers, ranks[rows].T.contiguous())
            for number, answers in enumerate(patterns)
            for rows in [(pattern == number).nonzero()[:, 0]]
        ]
        self._n_scores, self._step = len(scores), max(1, _CHUNK // max(len(scores), shape[0] * shape[1]))

    def distances(self, order: Tensor) -> Tensor:
        """Compute |AUROC − ½| after permuting the grades across questions, [draw, score].

        Question q gets the grades of question `order[draw, q]`. The result is NaN if the score is missing for all right
        or all wrong answers.
        """
        grades = self._grades[:, order].flatten(2)  # [right or wrong, draw, answer]
        distances = torch.empty(len(order), self._n_scores)
        for rows, answers, ranks in self._groups:
            counts = grades.matmul(answers)[..., None]
            mean = grades[0] / counts[0].clamp_min(0.5) - grades[1] / counts[1].clamp_min(0.5)
            distances[:, rows] = mean.matmul(ranks).abs_().where((counts > 0).all(0), torch.nan)
        return distances

    def chunks(self, orders: Tensor) -> Iterator[Tensor]:
        """Split `orders` into chunks, and yield their `distances`, with NaN replaced by 0."""
        for order in orders.split(self._step):
            yield self.distances(order).nan_to_num_(0.0)
