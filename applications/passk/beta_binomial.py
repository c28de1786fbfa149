"""Beta-binomial and zero-inflated beta-binomial models of per-question accuracy.

The probability p of a right answer has a Beta(α, β) distribution over questions (arXiv 2510.05197). In the
zero-inflated model, p is 0 for a fraction π₀ of questions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, digamma
from scipy.stats import chi2

from applications.passk.estimators import Counts, Values

#: Bounds of α and β.
LEAST, MOST = 1e-3, 1e4
PARAMETERS = ("alpha", "beta", "zero_share")


class BetaBinomial(NamedTuple):
    """Parameters of a beta-binomial model. A fraction π₀ of questions (`zero_share`) is never answered correctly."""

    alpha: float
    beta: float
    zero_share: float = 0.0

    def pass_at_k(self, k: Sequence[int]) -> Values:
        """Return the mean Pass@K [k] over the population of questions. It is (1 − π₀)(1 − B(α, β + k)/B(α, β))."""
        none = np.exp(betaln(self.alpha, self.beta + np.array(k)) - betaln(self.alpha, self.beta))
        return (1 - self.zero_share) * (1 - none)

    def posterior_pass_at_k(self, right: Counts, known: Counts, k: Sequence[int]) -> Values:
        r"""Return the probability that at least one of k further answers is right, given that c of n answers are right.

        .. math:: (1 - w) \Big(1 - \frac{B(\alpha+c, \beta+n-c+k)}{B(\alpha+c, \beta+n-c)}\Big)

        where w is the posterior probability that the question's accuracy p is 0. If c > 0, w is 0.

        Returns:
            Probabilities, [k, question].
        """
        a, b = self.alpha + right, self.beta + known - right
        none = np.exp(betaln(a, b + np.array(k)[:, None]) - betaln(a, b))
        zero = np.where(right == 0, self.zero_share, 0) / np.exp(self.log_likelihood(right, known))
        return (1 - zero) * (1 - none)

    def log_likelihood(self, right: Counts, known: Counts) -> Values:
        """Return the log-probability of each question's sequence of grades, [question]."""
        graded = betaln(self.alpha + right, self.beta + known - right) - betaln(self.alpha, self.beta)
        with np.errstate(divide="ignore"):  # ln 0 = −∞
            return np.where(
                right == 0,
                np.logaddexp(np.log(self.zero_share), np.log1p(-self.zero_share) + graded),
                np.log1p(-self.zero_share) + graded,
            )


def moments(right: Counts, known: Counts, weights: Values) -> tuple[float, float]:
    """Estimate α and β by the method of moments, and clip them to a finite range.

    If c of n answers to a question are right, the sampling variance of c/n is estimated by c(n − c)/(n²(n − 1)). The
    variance of the accuracy over questions is estimated as var(c/n) minus the mean sampling variance.
    """
    mean = np.clip(np.average(right / known, weights=weights), 1e-3, 1 - 1e-3)
    several = known >= 2
    if not weights[several].any():
        return float(mean), float(1 - mean)
    c, n, w = right[several], known[several], weights[several]
    variance = np.average((c / n - mean) ** 2 - c * (n - c) / (n**2 * (n - 1)), weights=w)
    size = mean * (1 - mean) / max(variance, 1e-4) - 1
    alpha, beta = np.clip([size * mean, size * (1 - mean)], 10 * LEAST, MOST / 10)
    return float(alpha), float(beta)


def fit(
    right: Counts,
    known: Counts,
    weights: Values | None = None,
    zero_inflated: bool = False,
    fixed: Mapping[str, float] | None = None,
    starts: Sequence[BetaBinomial] = (),
) -> BetaBinomial:
    """Fit ln α, ln β and π₀ by maximum likelihood, starting from each initial model. Returns the best fit.

    Args:
        right: Number of right answers, [question]. For speed, pass each distinct pair of `right` and
            `known` once, with its frequency in `weights`.
        known: Number of graded answers, [question].
        weights: Weight of each question, [question]. By default, all weights are equal.
        zero_inflated: Whether to fit π₀. If False, π₀ is 0.
        fixed: Values of parameters that are not fitted, by name.
        starts: Initial models. By default, the fit starts from the result of `moments`. A zero-inflated fit also starts
            from a positive π₀.
    """
    weights = np.ones(len(right)) if weights is None else weights
    weights = weights / weights.sum()
    zeros = right == 0
    most_zeros = float(weights[zeros].sum()) if zero_inflated else 0.0  # a higher π₀ is never more likely
    if not starts:
        starts = [BetaBinomial(*moments(right, known, weights))]
        if zero_inflated and most_zeros < 1:
            starts.append(BetaBinomial(*moments(right, known, weights * np.where(zeros, 0.5, 1)), most_zeros / 2))
    limits = _limits(most_zeros, fixed or {})
    results = []
    for start in starts:
        at = np.clip(_coordinates(start), *limits.T)
        results.append(
            minimize(
                _loss,
                at,
                args=(right, known, weights),
                jac=True,
                method="L-BFGS-B",
                bounds=limits,
                options={"ftol": 1e-12, "gtol": 1e-6},
            )
        )
    return _model(min(results, key=lambda result: float(result.fun)).x)


def _coordinates(model: BetaBinomial) -> Values:
    """Return the coordinates [3] of a fit: ln α, ln β and π₀."""
    return np.array([np.log(model.alpha), np.log(model.beta), model.zero_share])


def _model(at: Values) -> BetaBinomial:
    return BetaBinomial(float(np.exp(at[0])), float(np.exp(at[1])), float(at[2]))


def _limits(most_zeros: float, fixed: Mapping[str, float]) -> Values:
    """Return the lower and upper bounds of ln α, ln β and π₀, [3, 2]. The bounds of a fixed parameter are equal."""
    bounds = dict(zip(PARAMETERS, [(LEAST, MOST), (LEAST, MOST), (0.0, min(most_zeros, 1 - 1e-9))], strict=True))
    bounds |= {name: (value, value) for name, value in fixed.items()}
    return np.array([*np.log([bounds["alpha"], bounds["beta"]]), bounds["zero_share"]])


def _loss(at: Values, right: Counts, known: Counts, weights: Values) -> tuple[float, Values]:
    """Return the weighted negative log-likelihood and its gradient [3] at the coordinates `at`."""
    (alpha, beta), share, zeros = np.exp(at[:2]), at[2], right == 0
    value = BetaBinomial(alpha, beta, share).log_likelihood(right, known)
    graded = BetaBinomial(alpha, beta).log_likelihood(right, known)
    together = digamma(alpha + beta) - digamma(known + alpha + beta)
    by_alpha = alpha * (digamma(alpha + right) - digamma(alpha) + together)
    by_beta = beta * (digamma(beta + known - right) - digamma(beta) + together)
    from_beta = (1 - share) * np.exp(graded - value)  # posterior probability of p > 0
    by_share = np.where(zeros, np.exp(-value) - np.exp(graded - value), -1 / (1 - share))
    return -float(weights @ value), -np.stack([from_beta * by_alpha, from_beta * by_beta, by_share]) @ weights


def deviance(
    right: Counts, known: Counts, weights: Values, best: BetaBinomial, fixed: Mapping[str, float], zero_inflated: bool
) -> float:
    """Return the deviance 2 ln(L₁/L₀).

    L₁ is the likelihood of the model `best`. L₀ is the maximum likelihood with the parameters in `fixed` held at their
    values.
    """
    starts = [best, BetaBinomial(*moments(right, known, weights), best.zero_share)]
    other = fit(right, known, weights, zero_inflated, fixed, starts)
    return max(0.0, 2 * float(weights @ (best.log_likelihood(right, known) - other.log_likelihood(right, known))))


#: Function of the coordinates that returns a quantity and its gradient [3].
Quantity = Callable[[Values], tuple[float, Values]]


def coordinate(name: str) -> Quantity:
    """Return the function that selects ln α, ln β or π₀. `name` is an entry of `PARAMETERS`. See `Quantity`."""
    slope = np.eye(3)[PARAMETERS.index(name)]
    return lambda at: (float(slope @ at), slope)


def pass_at(k: int) -> Quantity:
    """Return the function that computes the mean Pass@K from ln α, ln β and π₀. See `Quantity`."""

    def quantity(at: Values) -> tuple[float, Values]:
        (alpha, beta), share = np.exp(at[:2]), at[2]
        none = np.exp(betaln(alpha, beta + k) - betaln(alpha, beta))
        together = digamma(alpha + beta) - digamma(alpha + beta + k)
        by_beta = beta * (together + digamma(beta + k) - digamma(beta))
        kept = (1 - share) * none
        return float((1 - share) * (1 - none)), np.array([-kept * alpha * together, -kept * by_beta, none - 1])

    return quantity


def profile_interval(
    right: Counts,
    known: Counts,
    weights: Values,
    best: BetaBinomial,
    quantity: Quantity,
    zero_inflated: bool,
    level: float = 0.95,
) -> tuple[float, float]:
    """Compute the profile-likelihood interval of a function of ln α, ln β and π₀.

    The interval covers the function's values at all points whose deviance does not exceed a limit. This limit is the
    `level` quantile of the χ² distribution with one degree of freedom. At π₀ = 0, the interval is conservative. See
    `fit` for the counts and weights.
    """
    n, center = weights.sum(), _coordinates(best)
    most_zeros = float(weights[right == 0].sum() / n) if zero_inflated else 0.0
    counts, limits = (right, known, weights), _limits(most_zeros, {})
    allowed = _loss(center, *counts)[0] + float(chi2.ppf(level, 1)) / 2
    likely: dict[str, Any] = {
        "type": "ineq",
        "fun": lambda at: allowed - _loss(at, *counts)[0],
        "jac": lambda at: -_loss(at, *counts)[1],
    }
    ends = []
    for sign in (-1, 1):
        step, slope = sign * 1.0, quantity(center)[1]
        while likely["fun"](start := np.clip(center + step * slope, *limits.T)) < 0:
            step /= 2  # start inside the region; at the maximum, the gradient of the constraint is zero
        found = minimize(
            _scaled(quantity, -sign * n**0.5),
            start,
            jac=True,
            method="SLSQP",
            bounds=limits,
            constraints=[likely],
            options={"ftol": 1e-6, "maxiter": 200},
        )
        ends.append(quantity(found.x)[0])
    return ends[0], ends[1]


def _scaled(quantity: Quantity, factor: float) -> Quantity:
    def scaled(at: Values) -> tuple[float, Values]:
        value, slope = quantity(at)
        return factor * value, factor * slope

    return scaled
