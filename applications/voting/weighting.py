"""Votes in which every answer is weighted by a confidence."""

import numpy as np
from numpy.typing import NDArray


def weighted_winner(classes: NDArray[np.int64], weights: NDArray[np.float64]) -> int:
    """Return the class with the largest sum of weights. Ties go to the class that occurred first.

    Args:
        classes: Class of each answer, [answer], numbered from 0 in order of first occurrence.
        weights: Weight of each answer, [answer]. NaN is treated as 0.

    >>> weighted_winner(np.array([0, 0, 1]), np.array([0.2, 0.3, 0.9]))
    1
    """
    return int(np.bincount(classes, np.nan_to_num(weights)).argmax())
