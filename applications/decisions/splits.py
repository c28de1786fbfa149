"""Repeated random splits: thresholds are certified on one half of the questions and evaluated on the other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from applications.decisions.learn_then_test import certify

Array = NDArray[np.float64]
N_SPLITS = 200


def split_record(confidence: Array, losses: Array, risk: float, level: float, seed: int) -> dict[str, Any]:
    """Certify thresholds on random halves of the questions, and evaluate them on the other halves.

    Returns:
        A dict with these entries:

        - `n`: Number of random splits into halves.
        - `certified`: Fraction of splits with a certified threshold.
        - `coverage`: Mean coverage on the other halves, counting splits without a threshold as 0.
        - `risk`: Mean measured risk on the other halves; None if no question is answered.
        - `above`: Fraction of splits whose measured risk on the other half is above the target risk. The fraction can
          exceed 1 − level, because measured risks are noisy.
    """
    rng, coverages, risks = np.random.default_rng(seed), [], []
    for number in range(N_SPLITS):
        first, second = np.array_split(rng.permutation(len(losses)), 2)
        threshold = certify(confidence[first], losses[first], risk, level, seed + number).threshold
        is_kept = np.zeros(len(second), bool) if threshold is None else confidence[second] >= threshold
        coverages.append(is_kept.mean() if threshold is not None else np.nan)
        risks.append(losses[second][is_kept].mean() if is_kept.any() else np.nan)
    coverage, measured = np.array(coverages), np.array(risks)
    return {
        "n": N_SPLITS,
        "certified": float(np.isfinite(coverage).mean()),
        "coverage": float(np.nan_to_num(coverage).mean()),
        "risk": float(np.nanmean(measured)) if np.isfinite(measured).any() else None,
        "above": float((measured > risk).mean()),
    }
