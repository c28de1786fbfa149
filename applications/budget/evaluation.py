"""Expected proportion of questions with a right answer when answers are drawn without replacement."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from applications.budget.allocation import Array, rank
from applications.passk.estimators import all_wrong

_CELLS = 2**17


def success(
    gains: Array,
    right: NDArray[np.int64],
    known: NDArray[np.int64],
    budgets: NDArray[np.int64],
    weights: Tensor,
    fold: NDArray[np.int64],
    online: bool = False,
) -> Tensor:
    """Compute the expected success at several budgets when answers are drawn in order of decreasing gain.

    Success is the proportion of questions with at least one right answer. The budget is allocated anew in each
    resample. Tied answers share the remaining budget equally. The result is exact for the original questions. For
    resamples, it is interpolated between selected ranks of the gains.

    Args:
        gains: Gains, [question, answer], non-increasing along `answer`.
        right: Number of right answers, [question].
        known: Number of graded answers, [question].
        budgets: Mean numbers of answers per question, [budget].
        weights: Number of copies of each question, [resample, question].
        fold: Fold of each question, [question]. Each fold has its own budget.
        online: Whether sampling for a question stops at the first right answer. If so, the budget limits the expected
            number of answers.

    Returns:
        Expected success, [resample, budget] float64.
    """
    total = torch.zeros(len(weights), len(budgets), dtype=torch.float64)
    for number in np.unique(fold):
        rows = np.flatnonzero(fold == number)
        cost, gain = _curves(gains[rows], right[rows], known[rows], budgets, online)
        copies = weights[:, rows].double()
        upper, share = _place(copies @ cost, copies.sum(1, keepdim=True) * torch.from_numpy(budgets))
        gained = copies @ gain
        total += torch.lerp(gained.gather(1, upper - 1), gained.gather(1, upper), share)
    return total / weights.sum(1, keepdim=True)


def mean_cost(right: NDArray[np.int64], known: NDArray[np.int64]) -> float:
    """Compute the mean number of answers per question when sampling stops at the first right answer."""
    most = int(known.max()) - 1
    return float((all_wrong(right, known, most).T * (np.arange(most + 1) < known[:, None])).sum(axis=1).mean())


def equal_budget(level: Tensor, curve: Tensor) -> Tensor:
    """Return the budgets [row, level] at which each curve reaches the given levels; NaN for levels not reached.

    `curve` [row, answers] is the success rate at budgets of 1, 2, 3, … answers per question. It is interpolated
    linearly.
    """
    level, curve = level.round(decimals=12), torch.nn.functional.pad(curve, (1, 0)).round(decimals=12)
    upper, share = _place(curve, level)
    return torch.where(level > curve[:, -1:], torch.nan, upper - 1 + share)


def _curves(
    gains: Array, right: NDArray[np.int64], known: NDArray[np.int64], budgets: NDArray[np.int64], online: bool
) -> tuple[Tensor, Tensor]:
    """Return the cumulative cost and success of each question, both [question, point] float64.

    Each point is a position in the ranking of answers by gain. Only some of the positions are included.
    """
    n = len(gains)
    question, answer, last = rank(gains, known)
    wrong = all_wrong(right, known, gains.shape[1]).T
    cost = wrong[question, answer] if online else np.ones(len(question))
    gain = wrong[question, answer] - wrong[question, answer + 1]
    end = np.searchsorted(cost.cumsum()[last], n * budgets).clip(1, len(last) - 1)
    spread = np.linspace(0, len(last) - 1, min(len(last), max(64, _CELLS // n))).astype(np.int64)
    points = np.unique(last[np.concatenate([spread, end - 1, end])])
    cell = question * len(points) + np.searchsorted(points, np.arange(len(question)))
    sums = (np.bincount(cell, values, n * len(points)).reshape(n, -1).cumsum(axis=1) for values in (cost, gain))
    spent, gained = (torch.nn.functional.pad(torch.from_numpy(one), (1, 0)) for one in sums)
    return spent, gained


def _place(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Find the two adjacent points of `x` [row, point] that enclose each value in `at` [row, value].

    For each value, returns the index of the upper point and the relative position of the value. The position is 0 at
    the lower point and 1 at the upper point.
    """
    upper = torch.searchsorted(x, at).clamp(1, x.shape[1] - 1)
    low, high = x.gather(1, upper - 1), x.gather(1, upper)
    return upper, ((at - low) / (high - low)).nan_to_num(0).clamp(0, 1)
