"""P-values for the hypothesis that the mean loss exceeds a given risk, for many thresholds at once."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def hoeffding_p_values(losses: Array, is_kept: Mask, risk: float) -> Array:
    r"""Compute p-values [threshold] from Hoeffding's inequality.

    The hypothesis is that the mean loss exceeds `risk`. Answered questions contribute loss − risk, and unanswered
    questions contribute 0. If x̄ is the mean of these contributions over all N questions, the p-value is

    .. math:: p = \exp(-2 N \max(0, -\bar x)^2)

    This test is the baseline in Learn then Test (Angelopoulos et al., arXiv 2110.01052). See `betting_p_values` for the
    arguments.
    """
    total = np.einsum("qt,qt->t", np.broadcast_to(losses - risk, is_kept.shape), is_kept)
    margin = np.maximum(0, -total / len(losses))
    return np.exp(-2 * len(losses) * margin**2)


def betting_p_values(losses: Array, is_kept: Mask, risk: float, level: float | Array) -> Array:
    r"""Compute p-values [threshold] from a betting martingale.

    The hypothesis is that the mean loss exceeds `risk`. A gambler starts with wealth K = 1. In the given order, the
    gambler bets a fraction of K on each answered question:

    .. math:: K_t = K_{t-1} \, (1 + b_t (\mathrm{risk} - \ell_t)), \qquad 0 \le b_t \le \frac{1}{1 - \mathrm{risk}}

    If the mean loss is at least `risk`, K is a nonnegative supermartingale. Therefore, p = 1 / max K is a p-value
    (Ville's inequality; Waudby-Smith and Ramdas, arXiv 2010.09686). The bet here is

    .. math:: b = \frac{\varphi(\Phi^{-1}(u))}{u \, \sigma \sqrt n}

    where δ = 1 − level, u = δ K, n is the number of remaining answered questions, and σ is the standard deviation
    estimated from earlier losses. φ and Φ are the density and the distribution function of the standard normal
    distribution. Betting stops at u = 1. For normally distributed losses, this bet maximises the probability that K
    reaches 1 / δ by the last question (Browne, Reaching Goals by a Deadline, 1999).

    Args:
        losses: Losses in [0, 1], [question, threshold] or [question, 1]. The order of the questions must not depend on
            their losses.
        is_kept: Whether the question is answered, [question, threshold] bool.
        risk: The tested hypothesis is that the mean loss exceeds this bound.
        level: Confidence level 1 − δ, such as 0.9, or one level per threshold.
    """
    left = np.maximum(is_kept.sum(0).astype(float), 1)
    goal = np.broadcast_to(1 - np.asarray(level), left.shape).copy()  # wealth as a fraction of the target 1 / δ
    highest, seen = goal.copy(), np.zeros_like(goal)
    total, squares = np.full_like(goal, risk), np.full_like(goal, 0.25)  # start from one pseudo-loss
    for row, is_answered in zip(losses, is_kept, strict=True):
        loss = np.where(is_answered, row, risk)  # a loss of `risk` leaves the wealth unchanged
        fraction = np.maximum(goal, 1e-100)
        density = np.exp(-(ndtri(fraction) ** 2) / 2) / np.sqrt(2 * np.pi)
        bet = density / (fraction * np.sqrt(squares / (1 + seen) * left))
        bet = np.minimum(bet, np.minimum((1 / fraction - 1) / risk, 1 / (1 - risk)))  # a win cannot exceed the target
        goal = np.minimum(goal * (1 + bet * (risk - loss)), 1)
        highest = np.maximum(highest, goal)
        squares += np.where(is_answered, (loss - total / (1 + seen)) ** 2, 0)
        total += np.where(is_answered, loss, 0)
        seen += is_answered
        left = np.maximum(left - is_answered, 1)
    return (1 - level) / highest
