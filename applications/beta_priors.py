"""Beta priors for the accuracies of questions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from extract.sampling.prior import fit_concentration

Array = NDArray[np.float64]

#: Range of κ. Above it, the prior is practically a point mass.
_RANGE = (1e-3, 1e4)


def concentration(mean: Array, right: NDArray[np.int64], known: NDArray[np.int64]) -> float | None:
    """Estimate the concentration κ of the priors p ~ Beta(κ f, κ (1 − f)) by maximum likelihood.

    Returns None if no question has both a mean in (0, 1) and at least two graded answers.

    Args:
        mean: Prior means f, [question], such as confidences or base rates.
        right: Number of right answers, [question].
        known: Number of graded answers, [question].
    """
    used = (mean > 0) & (mean < 1) & (known >= 2)
    return fit_concentration(mean[used], right[used], known[used], _RANGE) if used.any() else None


def beta_priors(
    mean: Array, right: NDArray[np.int64], known: NDArray[np.int64], fold: NDArray[np.int64]
) -> tuple[Array, Array] | None:
    """Return the parameters a and b [question] of Beta priors with the given means.

    For each fold, the concentration is estimated on the other folds. Returns None if a concentration cannot be
    estimated. `fold` [question] is the fold of each question. See `concentration` for the other arguments.
    """
    found = np.empty(len(fold))
    for number in np.unique(fold):
        others = fold != number
        value = concentration(mean[others], right[others], known[others])
        if value is None:
            return None
        found[~others] = value
    return found * mean, found * (1 - mean)


def base_rates(accuracy: Array, groups: Sequence[str], fold: NDArray[np.int64]) -> Array:
    """Return the base rate of each question, [question].

    The base rate is the mean accuracy of the question's group in the other folds. If the group occurs only in the
    question's own fold, the base rate is the mean accuracy of all questions in the other folds.
    """
    group = np.unique(groups, return_inverse=True)[1]
    rates = np.empty(len(accuracy))
    for number in np.unique(fold):
        others = fold != number
        count = np.bincount(group[others], minlength=group.max() + 1)
        total = np.bincount(group[others], accuracy[others], minlength=group.max() + 1)
        means = np.where(count > 0, total / np.maximum(count, 1), accuracy[others].mean())
        rates[~others] = means[group[~others]]
    return rates
