"""Pass rates (mean Pass@K) for a fixed number of answers, at a single temperature or spread over several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from applications.intervals import estimate, mean_of
from applications.passk.estimators import Counts, Values, pass_at_k, pass_of_split
from extract.hashing import hash_order
from probes.metrics.intervals import WeightedMetric, minus


def as_drawn(right: Counts, known: Counts, temperatures: Sequence[float]) -> tuple[Counts, Counts]:
    """Count the single answer at temperature 0 as if it had been drawn several times.

    Every further draw would give the same answer. It is counted n times, where n is the largest value of `known` at the
    other temperatures. The counts [temperature, question] do not change if temperature 0 is missing, if there are no
    other temperatures, or if a question has several answers at temperature 0.
    """
    if temperatures[0] != 0 or len(temperatures) < 2 or known[0].max() > 1:
        return right, known
    times = np.where(np.arange(len(temperatures)) == 0, known[1:].max(), 1)[:, None]
    return right * times, known * times


def even_splits(temperatures: Sequence[float], most: int) -> list[list[int]]:
    """Return all even splits with at most `most` answers. A split lists the number of answers at each temperature.

    All temperatures above 0 get the same number of answers: 1, 2, 4, … Temperature 0 gets one answer.

    >>> even_splits([0.0, 0.5, 1.0], most=10)
    [[1, 1, 1], [1, 2, 2], [1, 4, 4]]
    """
    splits = ([1 if t == 0 else 2**power for t in temperatures] for power in range(most.bit_length()))
    return [split for split in splits if sum(split) <= most]


def best_single(passed: Tensor, first: Tensor) -> WeightedMetric:
    """Return a function that maps resampling weights to the pass rate at the best single temperature.

    The best temperature on each half of the questions is evaluated on the other half. `passed` is Pass@K [temperature,
    question] float64, and `first` [question] selects the first half.
    """

    def metric(weights: Tensor) -> Tensor:
        sums = [(weights * half) @ passed.T for half in (first.double(), (~first).double())]  # [resample, temperature]
        used = [sums[i].gather(1, sums[1 - i].argmax(1, keepdim=True)) for i in range(2)]
        return (used[0] + used[1])[:, 0] / weights.sum(1)

    return metric


def temperature_record(
    right: Counts,
    known: Counts,
    temperatures: Sequence[float],
    ids: Sequence[str],
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Compare two ways to spend a budget of answers: evenly over all temperatures, or all at one temperature.

    Args:
        right: Number of right answers, [temperature, question].
        known: Number of graded answers, always at least 1, [temperature, question].

    Returns:
        A dict with these entries:

        - `temperatures`: The temperatures.
        - `union`: Fraction of questions with a right answer at one or more temperatures.
        - `solved`: For each temperature, the fraction of questions with a right answer at that temperature,
          [temperature].
        - `n_answers`: Mean number of graded answers per question, summed over the temperatures.
        - `budgets`: List with one dict per budget. The list is empty if there are fewer than two questions. In each
          dict, `k` is the budget, and `split` lists the number of answers at each temperature. `of_split` is the pass
          rate of the split. `of_single` [temperature] contains the pass rate at each single temperature. `of_best` is
          the result of `best_single`. `split_minus_best` is the difference `of_split` − `of_best`. `chosen` lists the
          best temperature on each half of the questions.
    """
    n = len(ids)
    options: Any = {"n_questions": n, "n_resamples": n_resamples, "seed": seed}
    solved = (right > 0).astype(np.float64)
    found: dict[str, Any] = {
        "temperatures": list(temperatures),
        "union": estimate(mean_of(solved.max(0)), **options),
        "solved": [estimate(mean_of(one), **options) for one in solved],
        "n_answers": float(known.sum(0).mean()),
        "budgets": [],
    }
    right, known = as_drawn(right, known, temperatures)
    first = torch.zeros(n, dtype=torch.bool)
    first[hash_order(list(ids), seed)[: n // 2]] = True
    for split in even_splits(temperatures, int(known.min())) if n > 1 else []:
        of_split = pass_of_split(right, known, split)
        single: Values = np.stack([pass_at_k(c, m, [sum(split)])[0] for c, m in zip(right, known, strict=True)])
        passed = torch.from_numpy(single)
        best = best_single(passed, first)
        found["budgets"].append(
            {
                "k": sum(split),
                "split": split,
                "of_split": estimate(mean_of(of_split), **options),
                "of_single": [estimate(mean_of(one), **options) for one in single],
                "of_best": estimate(best, **options),
                "chosen": [temperatures[int(passed[:, half].mean(1).argmax())] for half in (~first, first)],
                "split_minus_best": estimate(minus(mean_of(of_split), best), **options),
            }
        )
    return found
