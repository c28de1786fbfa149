"""AUROCs of thousands of scores at once, with standard errors that take the question as the unit.

The placement of a right answer is the share of wrong answers with a lower score, that of a wrong one the share of right
answers with a higher score, ties ½ (DeLong et al. 1988). Their means are the AUROC, and their sums by question its
derivatives by the weight of each question, which are all that a clustered standard error needs (Obuchowski,
Nonparametric Analysis of Clustered ROC Curve Data, Biometrics 53, 1997).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

#: Questions with right answers, and questions with wrong ones, below which no standard error is given.
LEAST_OF_A_CLASS = 5


class Clustered(NamedTuple):
    """AUROCs of scores on the same answers, and how they hang on the questions.

    Attributes:
        auroc: [score] float64; NaN without both right and wrong answers.
        influence: [score, question] float64, its derivative by the weight of a question; they sum to 0.
        n_answers: [score] int64 answers that have the score.
        held: [score, question] whether a question has such an answer.
        varies: [score] whether it is not the same for all answers.
        enough: [score] whether right answers come from 5 questions or more, and so do wrong ones.
    """

    auroc: Tensor
    influence: Tensor
    n_answers: Tensor
    held: Tensor
    varies: Tensor
    enough: Tensor

    @property
    def n_questions(self) -> Tensor:
        """[score] int64 questions with an answer that has the score."""
        return self.held.sum(1)

    @property
    def error(self) -> Tensor:
        """[score] standard errors; NaN where questions are too few, or the AUROC hangs on none, as ½ of a constant and 1 don't."""
        n = self.n_questions
        variance = self.influence.square().sum(1) * n / (n - 1).clamp_min(1)
        return torch.where(self.enough & (variance > 1e-20), variance.sqrt(), torch.nan)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Ends of the intervals, [score] each; on the scale of log-odds, so that they stay between 0 and 1."""
        centre = torch.logit(self.auroc)
        reach = torch.from_numpy(stdtrit((self.n_questions - 1).clamp_min(1).numpy(), (1 + level) / 2))
        reach = reach * self.error / (self.auroc * (1 - self.auroc))
        return torch.sigmoid(centre - reach), torch.sigmoid(centre + reach)


def clustered(scores: Tensor, right: Tensor, question: Tensor, n_questions: int) -> Clustered:
    """AUROC of every score over all pairs of a right and a wrong answer, as `functional.capability_auroc` has it of answers.

    O(answers · log answers) a score.

    Args:
        scores: [score, answer], higher = more likely right; NaN where an answer has none, which is left out.
        right: [answer] whether it is right.
        question: [answer] int64, the question of each answer, counted from 0.
        n_questions: Number of questions.
    """
    right = right.bool()
    present = scores.isfinite()
    ahead, n_right = _placements(scores[:, right], scores[:, ~right])
    behind, n_wrong = _placements(-scores[:, ~right], -scores[:, right])
    auroc = ahead.nansum(1) / n_right  # NaN of no right answer, and of placements among no wrong one
    auroc = torch.where((n_right > 0) & (n_wrong > 0), auroc, torch.nan)
    share = torch.zeros(scores.shape, dtype=torch.float64)
    share[:, right] = (ahead - auroc[:, None]) / n_right[:, None]
    share[:, ~right] = (behind - auroc[:, None]) / n_wrong[:, None]
    influence = _by_question(share.nan_to_num(), question, n_questions)
    held = [(_by_question(present[:, kind].double(), question[kind], n_questions) > 0) for kind in (right, ~right)]
    enough = (held[0].sum(1) >= LEAST_OF_A_CLASS) & (held[1].sum(1) >= LEAST_OF_A_CLASS)
    ends = scores.nan_to_num(-torch.inf).amax(1), scores.nan_to_num(torch.inf).amin(1)
    return Clustered(auroc, influence, present.sum(1), held[0] | held[1], ends[0] > ends[1], enough)


def _placements(scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Share of `others` that lie below each score, ties ½, [score, answer] float64, and how many scores there are, [score].

    NaN of a score that is missing, and where there are no others.
    """
    there, others_there = scores.isfinite(), others.isfinite()
    ordered = torch.where(others_there, others, torch.inf).sort(1).values.contiguous()  # missing ones lie above all
    wanted = torch.where(there, scores, 0.0).contiguous()
    below = torch.searchsorted(ordered, wanted)
    up_to = torch.searchsorted(ordered, wanted, right=True)
    placement = (below + up_to).double() / (2 * others_there.sum(1, keepdim=True))
    return torch.where(there, placement, torch.nan), there.sum(1)


def _by_question(values: Tensor, question: Tensor, n_questions: int) -> Tensor:
    """Sums [score, question] of values [score, answer]."""
    return values.new_zeros(len(values), n_questions).index_add_(1, question, values)
