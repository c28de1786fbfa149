"""Platt scaling on soft labels: from any score to a confidence."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from extract.errors import InputError


class Platt(NamedTuple):
    """The confidence σ(slope · score + intercept); `slope` is never negative, so the order of scores is kept."""

    slope: float
    intercept: float

    def __call__(self, scores: Tensor) -> Tensor:
        """Confidences in [0, 1], of the shape and dtype of `scores`.

        >>> Platt(slope=2.0, intercept=0.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.1192, 0.5000, 0.8808])
        """
        return torch.sigmoid(self.slope * scores + self.intercept)


def fit_platt(scores: Tensor, right: Tensor, known: Tensor, ridge: float = 1e-4) -> Platt:
    """Fit by maximum likelihood of c right answers out of n (Platt 1999, with counts for labels), by Newton's method.

    Args:
        scores: [question] finite scores, higher = more likely right.
        right: [question] right answers c.
        known: [question] graded answers n.
        ridge: Small penalty on the slope, which keeps it finite where the classes separate.

    Returns:
        The calibrator. Where higher scores go with wrong answers, the constant mean accuracy.

    Raises:
        InputError: Answers all right or all wrong.

    >>> scores, right, known = torch.tensor([0.0, 1.0]), torch.tensor([1, 3]), torch.tensor([4, 4])
    >>> fit_platt(scores, right, known, ridge=0.0)(scores)  # as often right as measured
    tensor([0.2500, 0.7500])
    >>> fit_platt(-scores, right, known).slope
    0.0
    """
    scores, right, known = scores.double(), right.double(), known.double()
    base = float(right.sum() / known.sum())
    if not 0 < base < 1:
        raise InputError(
            f"Expected right and wrong answers to calibrate on, but all {int(known.sum())} are {'right' if base else 'wrong'}. Use more validation questions."
        )
    scale = float(scores.std()) if len(scores) > 1 else 0.0
    constant = Platt(0.0, float(torch.logit(torch.tensor(base, dtype=torch.float64))))
    if scale < 1e-9:
        return constant
    centre = float(scores.mean())
    design = torch.stack([(scores - centre) / scale, torch.ones_like(scores)], dim=1)
    penalty = torch.tensor([ridge * float(known.sum()), 0.0], dtype=torch.float64)
    theta = torch.tensor([0.0, constant.intercept], dtype=torch.float64)
    for _ in range(100):
        mean = torch.sigmoid(design @ theta)
        gradient = design.T @ (known * mean - right) + penalty * theta
        hessian = (design * (known * mean * (1 - mean))[:, None]).T @ design + torch.diag(penalty + 1e-12)
        step = torch.linalg.solve(hessian, gradient)
        theta = theta - step * min(
            1.0, 4.0 / float(step.abs().max().clamp_min(1e-12))
        )  # bounded, so that no step overshoots
        if float(step.abs().max()) < 1e-10:
            break
    slope = float(theta[0]) / scale
    return Platt(slope, float(theta[1]) - slope * centre) if slope > 0 else constant
