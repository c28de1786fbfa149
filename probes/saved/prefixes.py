"""Calibrators for prefixes of answers."""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from extract.signals.features import PREFIXES
from probes.saved.calibrators import Calibrator

#: Number of quantiles that summarise the lengths of the training answers.
N_LENGTHS = 101


class PrefixCalibrator(nn.ModuleDict):
    """Calibrators for prefixes of answers.

    Each calibrator is for prefixes that cover a given fraction of an answer. Between these fractions, confidences are
    interpolated linearly.

    Args:
        calibrators: One calibrator for each fraction in `PREFIXES`, in the same order.
        lengths: Quantiles of the training answers' lengths in content tokens, in ascending order.
    """

    def __init__(self, calibrators: Sequence[Calibrator], lengths: Sequence[int]) -> None:
        super().__init__(dict(zip(PREFIXES, calibrators, strict=True)))
        self.lengths = list(lengths)

    def forward(self, score: Tensor, fraction: float, whole: Calibrator) -> Tensor:
        """Map scores of prefixes to confidences in [0, 1] with the shape and dtype of `score`.

        `fraction` is the fraction of the answer that each prefix covers, in [0, 1]. `whole` is the calibrator for whole
        answers.
        """
        calibrators: list[nn.Module] = [*self.values(), whole]
        fractions = [*PREFIXES.values(), 1.0]
        above = bisect_left(fractions, fraction)
        upper: Tensor = calibrators[above](score)
        if above == 0:
            return upper
        low, high = fractions[above - 1 : above + 1]
        return torch.lerp(calibrators[above - 1](score), upper, (fraction - low) / (high - low))

    def expected_fraction(self, n_tokens: int) -> float:
        r"""Estimate how much of an answer is complete after t = `n_tokens` tokens, as :math:`E[t/n \mid n \ge t]`.

        The expectation is over the lengths n of the training answers. The result is 1 if t exceeds all lengths.
        """
        longer = self.lengths[bisect_left(self.lengths, n_tokens) :]
        return n_tokens * fmean(1 / n for n in longer) if longer else 1.0

    def problem(self) -> str | None:
        """Return a short description of the first invalid value, or None."""
        calibrators: Any = self.items()  # torch declares the values as modules
        problems = ((name, calibrator.problem()) for name, calibrator in calibrators)
        return next((f"in {name}, {problem}" for name, problem in problems if problem), None)
