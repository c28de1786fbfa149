"""Extrapolation of Pass@K beyond the number of sampled answers, with beta-binomial models."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from applications.intervals import estimate, mean_of
from applications.passk.beta_binomial import (
    LEAST,
    MOST,
    PARAMETERS,
    BetaBinomial,
    coordinate,
    deviance,
    fit,
    pass_at,
    profile_interval,
)
from applications.passk.estimators import Counts, Values, distinct

#: Names of the models, and whether π₀ is fitted.
MODELS = {"beta_binomial": False, "zero_inflated": True}
#: Minimum number of questions.
LEAST_QUESTIONS = 20
_FOLDS = 5
#: Number of values of π₀ in the profile.
_PROFILE = 25


class Extrapolation(NamedTuple):
    """Fitted models by name (see `MODELS`), and their record (see `extrapolate`)."""

    models: dict[str, BetaBinomial]
    record: dict[str, Any]

    @property
    def likelier(self) -> BetaBinomial:
        """The model with the higher held-out log-likelihood."""
        return self.models[self.record["likelier"]]


def why_not(right: Counts, known: Counts) -> str | None:
    """Return why no model can be fitted to the counts [question], or None if one can be fitted."""
    if len(right) < LEAST_QUESTIONS:
        return f"at least {LEAST_QUESTIONS} questions are required, but there are {len(right)}"
    if known.max() < 2:
        return "there is only one graded answer to each question"
    if not right.any():
        return "no answer is right"
    return "all answers are right" if (right == known).all() else None


def extrapolate(right: Counts, known: Counts, k: Sequence[int], n_resamples: int, seed: int) -> Extrapolation:
    """Fit the models in `MODELS` to counts [question], and estimate Pass@K for each k.

    Call this function only if `why_not` returns None for the counts. Intervals come from the profile likelihood.
    Held-out log-likelihoods come from five-fold cross-validation.

    Returns:
        The models and a record with these entries:

        - `k`: The values of k.
        - `likelier`: Name of the model with the higher held-out log-likelihood.
        - `zero_inflated_minus_beta_binomial`: Mean difference in held-out log-likelihood per question, with a bootstrap
          interval.
        - `profile`: Values of π₀ (`zero_share`) and the `deviance` at each value. None if every question has a right
          answer.
        - `beta_binomial`, `zero_inflated`: For each model, a dict with its parameters, `pass_at_k` [k], the total
          held-out log-likelihood (`held_out`), and the names of parameters at a bound (`at_bounds`).
    """
    (c, n), place = distinct(right, known)
    weights = np.bincount(place).astype(np.float64)
    fold = np.random.default_rng(seed).permutation(len(right)) % _FOLDS
    models, held_out, records = dict[str, BetaBinomial](), dict[str, Values](), dict[str, Any]()
    for name, inflated in MODELS.items():
        model = fit(c, n, weights, inflated)
        interval = partial(profile_interval, c, n, weights, model, zero_inflated=inflated)
        ends = {key: interval(coordinate(key)) for key in PARAMETERS[: 2 + inflated]}
        ends |= {key: tuple(np.exp(ends[key])) for key in ("alpha", "beta")}
        models[name], held_out[name] = model, _held_out(c, n, place, fold, inflated)
        records[name] = {
            **{key: _estimate(model._asdict()[key], *both) for key, both in ends.items()},
            "pass_at_k": [_estimate(model.pass_at_k([one])[0], *interval(pass_at(one))) for one in k],
            "held_out": float(held_out[name].sum()),
            "at_bounds": [key for key in PARAMETERS[:2] if not 1.01 * LEAST < model._asdict()[key] < MOST / 1.01],
        }
    difference = held_out["zero_inflated"] - held_out["beta_binomial"]
    shares = np.linspace(0, weights[c == 0].sum() / weights.sum(), _PROFILE)[:-1].tolist()
    deviances = [deviance(c, n, weights, models["zero_inflated"], {"zero_share": share}, True) for share in shares]
    record = {
        "k": list(k),
        "likelier": "zero_inflated" if difference.sum() > 0 else "beta_binomial",
        "zero_inflated_minus_beta_binomial": estimate(mean_of(difference), len(right), n_resamples, seed),
        "profile": {"zero_share": shares, "deviance": deviances} if any(shares) else None,
    }
    return Extrapolation(models, record | records)


def _estimate(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": float(value), "low": float(low), "high": float(high)}


def _held_out(c: Counts, n: Counts, place: Counts, fold: Counts, zero_inflated: bool) -> Values:
    """Return each question's log-likelihood under a model fitted to the other folds."""
    found = np.empty(len(place))
    for number in range(_FOLDS):
        test = fold == number
        model = fit(c, n, np.bincount(place[~test], minlength=len(c)).astype(float), zero_inflated)
        found[test] = model.log_likelihood(c, n)[place[test]]
    return found
