"""Unbiased estimates of the squared errors of Pass@K predictions for individual questions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from applications.beta_priors import beta_priors
from applications.intervals import estimate, mean_of
from applications.passk.estimators import (
    Counts,
    Values,
    oracle_errors,
    pass_at_k,
    predict,
    predict_from_prior,
    squared_errors,
)
from probes.baselines.registry import is_half

#: Number of folds for estimating the concentration of the priors.
_N_FOLDS = 5


def others_mean(values: Values) -> Values:
    """For each question, return the mean of `values` [..., question] over all other questions.

    >>> others_mean(np.array([0.0, 0.5, 1.0])).tolist()
    [0.75, 0.5, 0.25]
    """
    return (values.sum(-1, keepdims=True) - values) / (values.shape[-1] - 1)


def error_records(
    confidences: Mapping[str, Values],
    counts: Mapping[bool, tuple[Counts, Counts]],
    k: Sequence[int],
    n_resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Score how well confidences and three baselines predict the Pass@K of individual questions.

    The baselines are:

    - `base_rate`: uses the mean accuracy on the other questions as the confidence.
    - `mean_pass_at_k`: predicts the mean Pass@K of the other questions.
    - `oracle`: uses the accuracy on half of the question's answers as the confidence.

    Args:
        confidences: Confidences [question] by name.
        counts: Dict of pairs. A pair contains the numbers of right answers and of graded answers, each [question]. The
            pair with the key `False` counts all answers. The pair with the key `True` counts only answers with odd
            indices. It is used to score confidences computed from answers with even indices.
        k: Values of K in Pass@K, in ascending order.

    Returns:
        A list with one dict per method. The list is empty if there is only one question. The dicts have these entries:

        - `name`: Name of the method.
        - `baseline`: Whether the method is a baseline.
        - `prediction`: ``plug-in`` for `predict`, ``Bayesian`` for `predict_from_prior`, or empty for baselines.
        - `half`: Whether the method is scored only on answers with odd indices.
        - `squared_error`: Mean squared error, [k]; None where k exceeds half the smallest number of graded answers.
        - `minus_mean_pass_at_k`: Paired difference from the squared error of `mean_pass_at_k`, [k], or None.
    """
    n = len(counts[False][0])
    fold = np.random.default_rng(seed).permutation(n) % _N_FOLDS
    records: list[dict[str, Any]] = []
    for half, (right, known) in counts.items() if n > 1 else ():
        usable = [one for one in k if 2 * one <= known.min()]

        def scored(predicted: Values, c: Counts = right, m: Counts = known, k: Sequence[int] = usable) -> Values:
            return squared_errors(predicted, c, m, k)

        baselines = {
            "base_rate": scored(predict(others_mean(right / np.maximum(known, 1)), usable)),
            "mean_pass_at_k": scored(others_mean(pass_at_k(right, known, usable))),
            "oracle": oracle_errors(right, known, usable),
        }
        methods = {(name, ""): errors for name, errors in baselines.items()}
        for name, of in confidences.items():
            if is_half(name) == half:
                methods[name, "plug-in"] = scored(predict(of, usable))
                if prior := beta_priors(of, right, known, fold):
                    methods[name, "Bayesian"] = scored(predict_from_prior(*prior, usable))
        for (name, prediction), errors in methods.items():
            record: dict[str, Any] = {"name": name, "baseline": not prediction, "prediction": prediction, "half": half}
            for figure, values in (
                ("squared_error", errors),
                ("minus_mean_pass_at_k", errors - baselines["mean_pass_at_k"]),
            ):
                found = [estimate(mean_of(of_k), n, n_resamples, seed) for of_k in values]
                record[figure] = [*found, *[None] * (len(k) - len(found))]
            records.append(record)
    return records
