"""AUROCs of thousands of scores at once, with standard errors that are clustered by question.

The placement of a right answer is the share of wrong answers with a lower score, that of a wrong answer the share of
right answers with a higher score, ties ½ (DeLong et al. 1988). Their means are the AUROC. Their sums by question are
the derivatives by the weights of the questions, from which the clustered standard error follows (Obuchowski,
Nonparametric Analysis of Clustered ROC Curve Data, Biometrics 53, 1997).
"""

from typing import NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

from probes.metrics.functional.inputs import by_group

#: Fewest questions with right answers, and with wrong answers, for a standard error.
LEAST_OF_A_CLASS = 5


class ClusteredAuroc(NamedTuple):
    """AUROCs of scores of the same answers.

    Attributes:
        auroc: [score] float64; NaN without both right and wrong answers.
        influence: [score, question] float64 derivatives by the weights of the questions; they sum to 0.
        n_answers: [score] int64 answers that have the score.
        has_answer: [score, question] whether a question has such an answer.
        varies: [score] whether the score differs between answers.
        enough: [score] whether both right and wrong answers come from at least 5 questions.
    """

    auroc: Tensor
    influence: Tensor
    n_answers: Tensor
    has_answer: Tensor
    varies: Tensor
    enough: Tensor

    @property
    def n_questions(self) -> Tensor:
        """[score] int64 questions with an answer that has the score."""
        return self.has_answer.sum(1)

    @property
    def standard_error(self) -> Tensor:
        """[score] standard errors; NaN for too few questions and for an influence of 0 (a constant; an AUROC of 1)."""
        n = self.n_questions
        variance = self.influence.square().sum(1) * n / (n - 1).clamp_min(1)
        return torch.where(self.enough & (variance > 1e-20), variance.sqrt(), torch.nan)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals, [score] each, computed on the scale of log-odds."""
        centre = torch.logit(self.auroc)
        reach = torch.from_numpy(stdtrit((self.n_questions - 1).clamp_min(1).numpy(), (1 + level) / 2))
        reach = reach * self.standard_error / (self.auroc * (1 - self.auroc))
        return torch.sigmoid(centre - reach), torch.sigmoid(centre + reach)


def clustered_auroc(scores: Tensor, right: Tensor, question: Tensor, n_questions: int) -> ClusteredAuroc:
    """AUROC of every score over all pairs of a right and a wrong answer, in O(answers · log answers) per score.

    Args:
        scores: [score, answer], higher = more likely right; NaN where an answer has none, which is left out.
        right: [answer] whether it is right.
        question: [answer] int64, the question of each answer, counted from 0.
        n_questions: Number of questions.
    """
    right = right.bool()
    present = scores.isfinite()
    n_right, n_wrong = present[:, right].sum(1), present[:, ~right].sum(1)
    of_right = placements(scores[:, right], scores[:, ~right])
    of_wrong = placements(-scores[:, ~right], -scores[:, right])
    auroc = of_right.nansum(1) / n_right  # NaN without right answers
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
    """Share of `others` below each score, ties ½: [score, answer] float64; NaN if it or all others are missing."""
    present, others_present = scores.isfinite(), others.isfinite()
    ordered = torch.where(others_present, others, torch.inf).sort(1).values.contiguous()  # missing ones lie above all
    values = torch.where(present, scores, 0.0).contiguous()
    twice = torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)
    return torch.where(present, twice.double() / (2 * others_present.sum(1, keepdim=True)), torch.nan)
