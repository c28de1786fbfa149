"""Beta-binomial models of accuracies, with and without questions that are never answered right.

The probability p of a right answer has a Beta(α, β) distribution over questions (arXiv 2510.05197). In the
zero-inflated model, it is 0 for a share π₀ of the questions. The models give Pass@K for any k, also for k > n.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import betaln, digamma
from scipy.stats import chi2

from applications.passk.estimators import Counts, Values

#: Bounds of α and β.
LEAST, MOST = 1e-3, 1e4
#: Names of the parameters, in the order of `BetaBinomial`.
PARAMETERS = ("alpha", "beta", "zero_share")


class BetaBinomial(NamedTuple):
    """Parameters of a model.

    Attributes:
        alpha: First parameter α of the beta distribution.
        beta: Second parameter β of the beta distribution.
        zero_share: Share π₀ of the questions that are never answered right. It is 0 in the beta-binomial model.
    """

    alpha: float
    beta: float
    zero_share: float = 0.0

    def pass_at_k(self, k: Sequence[int]) -> Values:
        """Return Pass@K [k] for questions from the population, (1 − π₀)(1 − B(α, β + k)/B(α, β))."""
        none = np.exp(betaln(self.alpha, self.beta + np.array(k)) - betaln(self.alpha, self.beta))
        return (1 - self.zero_share) * (1 - none)

    def posterior_pass_at_k(self, right: Counts, known: Counts, k: Sequence[int]) -> Values:
        r"""Return the probability that at least one of k further answers is right, given c of n right ones.

        .. math:: (1 - w) \Big(1 - \frac{B(\alpha+c, \beta+n-c+k)}{B(\alpha+c, \beta+n-c)}\Big)

        where w is the posterior probability of p = 0. It is 0 if c > 0.

        Returns:
            [k, question] probabilities.
        """
        a, b = self.alpha + right, self.beta + known - right
        none = np.exp(betaln(a, b + np.array(k)[:, None]) - betaln(a, b))
        zero = np.where(right == 0, self.zero_share, 0) / np.exp(self.log_likelihood(right, known))
        return (1 - zero) * (1 - none)

    def log_likelihood(self, right: Counts, known: Counts) -> Values:
        """Return the log-probability [question] of the grades of each question, in the order of the answers."""
        graded = betaln(self.alpha + right, self.beta + known - right) - betaln(self.alpha, self.beta)
        with np.errstate(divide="ignore"):  # ln 0 = −∞
            return np.where(
                right == 0,
                np.logaddexp(np.log(self.zero_share), np.log1p(-self.zero_share) + graded),
                np.log1p(-self.zero_share) + graded,
            )


def moments(right: Counts, known: Counts, weights: Values) -> tuple[float, float]:
    """Estimate α and β by the method of moments, within the bounds.

    The variance of p is the variance of c/n less the mean sampling variance c(n − c)/(n²(n − 1)). Questions with one
    answer are used for the mean only.
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
    """Fit a model by maximum likelihood, over ln α, ln β and π₀ (L-BFGS-B with exact gradients).

    Args:
        right: [question] numbers of right answers. Repeated pairs of counts are cheaper as one pair with a weight.
        known: [question] numbers of graded answers.
        weights: [question] how often each question counts, by default once.
        zero_inflated: Whether π₀ is fitted. Otherwise, it is 0.
        fixed: Parameters that are not fitted, by name.
        starts: Where to start. By default, fits start from the moments and, if zero-inflated, from the moments of half
            of the questions without right answers.

    Returns:
        The best fit of all starts. Every parameter is within its bounds, so that the fit exists for any counts.
    """
    weights = np.ones(len(right)) if weights is None else weights
    weights = weights / weights.sum()
    zeros = right == 0
    most_zeros = float(weights[zeros].sum()) if zero_inflated else 0.0  # a higher π₀ is never more likely
    if not starts:
        starts = [BetaBinomial(*moments(right, known, weights))]
        if zero_inflated and most_zeros < 1:
            starts.append(BetaBinomial(*moments(right, known, weights * np.where(zeros, 0.5, 1)), most_zeros / 2))
    bounds = dict(zip(PARAMETERS, [(LEAST, MOST), (LEAST, MOST), (0.0, min(most_zeros, 1 - 1e-9))], strict=True))
    bounds |= {name: (value, value) for name, value in (fixed or {}).items()}
    limits = np.array([*np.log([bounds["alpha"], bounds["beta"]]), bounds["zero_share"]])

    def loss(parameters: Values) -> tuple[float, Values]:
        alpha, beta, share = *np.exp(parameters[:2]), parameters[2]
        model = BetaBinomial(alpha, beta, share)
        value = model.log_likelihood(right, known)
        graded = BetaBinomial(alpha, beta).log_likelihood(right, known)
        together = digamma(alpha + beta) - digamma(known + alpha + beta)
        by_alpha = alpha * (digamma(alpha + right) - digamma(alpha) + together)
        by_beta = beta * (digamma(beta + known - right) - digamma(beta) + together)
        from_beta = (1 - share) * np.exp(graded - value)  # posterior probability of p > 0
        by_share = np.where(zeros, np.exp(-value) - np.exp(graded - value), -1 / (1 - share))
        slopes = np.stack([from_beta * by_alpha, from_beta * by_beta, by_share])
        return -float(weights @ value), -slopes @ weights

    results = []
    for start in starts:
        at = np.clip([np.log(start.alpha), np.log(start.beta), start.zero_share], *limits.T)
        options = {"ftol": 1e-12, "gtol": 1e-6}
        results.append(minimize(loss, at, jac=True, method="L-BFGS-B", bounds=limits, options=options))
    best = min(results, key=lambda result: float(result.fun)).x
    return BetaBinomial(float(np.exp(best[0])), float(np.exp(best[1])), float(best[2]))


class Profile:
    """Profile likelihood of a parameter: the maximum of the log-likelihood for each of its values.

    Args:
        right: [question] numbers of right answers.
        known: [question] numbers of graded answers.
        weights: [question] how often each question counts.
        best: The maximum likelihood fit.
        name: Name of the parameter.
        zero_inflated: Whether π₀ is fitted.
    """

    def __init__(
        self, right: Counts, known: Counts, weights: Values, best: BetaBinomial, name: str, zero_inflated: bool
    ) -> None:
        self._right, self._known, self._weights = right, known, weights
        self._best, self._name, self._zero_inflated = best, name, zero_inflated
        self.value = float(best._asdict()[name])

    def deviance(self, value: float) -> float:
        """Return twice the loss of log-likelihood if the parameter is fixed to a value."""
        fixed, counts = {self._name: value}, (self._right, self._known)
        starts = [self._best, BetaBinomial(*moments(*counts, self._weights), self._best.zero_share)]
        other = fit(*counts, self._weights, self._zero_inflated, fixed, starts)
        loss = self._best.log_likelihood(*counts) - other.log_likelihood(*counts)
        return max(0.0, 2 * float(self._weights @ loss))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the values whose deviance is at most the quantile of the χ² distribution with one degree of freedom.

        An end that reaches the bounds of the parameter is that bound. At the boundary π₀ = 0, the interval is
        conservative.
        """
        critical = float(chi2.ppf(level, 1))
        none_right = self._right == 0
        most = min(float(self._weights[none_right].sum() / self._weights.sum()), 1 - 1e-9)
        share = self._name == "zero_share"
        low, high = (0.0, most) if share else (float(np.log(LEAST)), float(np.log(MOST)))
        best = self.value if share else float(np.log(self.value))

        def excess(at: float) -> float:
            return self.deviance(at if share else float(np.exp(at))) - critical

        ends = [end if excess(end) <= 0 else brentq(excess, *sorted((best, end)), xtol=1e-4) for end in (low, high)]
        return (ends[0], ends[1]) if share else (float(np.exp(ends[0])), float(np.exp(ends[1])))
