"""Fits of calibrators on c right answers out of n: Platt scaling, temperature scaling, isotonic regression."""

import math
from collections.abc import Callable

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from extract.errors import InputError
from probes.saved.calibrators import Calibrator, Isotonic, Platt, Temperature

#: Rows that isotonic regression is fitted on at least: with fewer, most of its steps are noise.
LEAST_ISOTONIC_ROWS = 30
#: Penalty per answer on the square of a slope over standardised scores; keeps it finite where the classes separate.
RIDGE = 1e-4


def fit_platt(scores: Tensor, right: Tensor, known: Tensor, ridge: float = RIDGE) -> Platt:
    r"""Fit by penalised maximum likelihood of c right answers out of n (Platt 1999, with counts for labels).

    .. math::
        \min_{a,b} \sum_i -c_i \log f_i - (n_i - c_i) \log (1 - f_i) + \frac{\rho}{2} N a^2, \qquad
        f_i = \sigma\Big(a \frac{s_i - \bar s}{\mathrm{sd}(s)} + b\Big), \quad N = \sum_i n_i

    The ridge term keeps the slope a of the standardised scores finite where they separate right from wrong answers, for
    which Platt smooths the labels. It shrinks a typical slope (a ≈ 1) by less than 0.1 %. Newton's method solves it.

    Args:
        scores: [row] finite scores, higher = more likely right.
        right: [row] right answers c.
        known: [row] graded answers n.
        ridge: ρ, at least 0.

    Returns:
        The calibrator. Where higher scores go with wrong answers, the constant mean accuracy.

    Raises:
        InputError: Answers all right or all wrong.

    >>> scores, right, known = torch.tensor([0.0, 1.0]), torch.tensor([1, 3]), torch.tensor([4, 4])
    >>> fit_platt(scores, right, known, ridge=0.0)(scores)  # as often right as measured
    tensor([0.2500, 0.7500])
    >>> float(fit_platt(-scores, right, known).slope)
    0.0
    """
    slope, intercept = fit_platt_many(scores[None], right, known, ridge)
    return Platt(slope[0], intercept[0])


def fit_platt_many(scores: Tensor, right: Tensor, known: Tensor, ridge: float = RIDGE) -> tuple[Tensor, Tensor]:
    """`fit_platt` of many candidates' scores for the same rows, in one run of Newton's method.

    Arguments and errors are those of `fit_platt`, with `scores` [candidate, row], finite or not.

    Returns:
        Slopes and intercepts, [candidate] float64. A candidate that is constant, not finite, or higher for wrong
        answers has the slope 0 and the intercept of the mean accuracy.
    """
    scores, right, known, accuracy = _checked(scores, right, known)
    base = math.log(accuracy / (1 - accuracy))
    centre = scores.mean(1)
    scale = scores.std(1) if scores.shape[1] > 1 else torch.zeros_like(centre)
    varies = scale > 1e-9
    x = (scores - centre[:, None]) / torch.where(varies, scale, 1.0)[:, None]
    penalty = ridge * known.sum()
    a, b = torch.zeros_like(centre), torch.full_like(centre, base)
    for _ in range(100):
        mean = torch.sigmoid(a[:, None] * x + b[:, None])
        residual, curvature = known * mean - right, known * mean * (1 - mean)
        # the gradient, then the three entries of the Hessian
        down_a, down_b = (residual * x).sum(1) + penalty * a, residual.sum(1)
        h_aa = (curvature * x * x).sum(1) + penalty + 1e-12
        h_ab, h_bb = (curvature * x).sum(1), curvature.sum(1) + 1e-12
        determinant = h_aa * h_bb - h_ab**2
        step = torch.stack([h_bb * down_a - h_ab * down_b, h_aa * down_b - h_ab * down_a]) / determinant
        size = step.abs().amax(0)
        a, b = torch.stack([a, b]) - step * (4 / size).clamp_max(1)  # bounded, so that no step overshoots
        if not (size[varies] > 1e-10).any():
            break
    slope = a / scale
    fitted = varies & (slope > 0)
    return torch.where(fitted, slope, 0.0), torch.where(fitted, b - slope * centre, base)


def fit_temperature(scores: Tensor, right: Tensor, known: Tensor) -> Temperature:
    r"""Fit the temperature by maximum likelihood of c right answers out of n (Guo et al. 2017, with counts for labels).

    The likelihood is concave in 1/T, so that its slope has one root at most; Brent's method finds it over log T,
    between 1e-5 and 1e3 times the scores' root mean square. The same ridge term as in Platt scaling bounds 1/T.

    Arguments and errors are those of `fit_platt`; the scores are log-odds. Where higher scores go with wrong answers,
    the temperature is the highest, and all confidences are hardly other than ½.

    >>> scores, right, known = torch.tensor([-2.0, 2.0]), torch.tensor([1, 3]), torch.tensor([4, 4])
    >>> fit_temperature(scores, right, known)(scores)  # nearly as often right as measured
    tensor([0.2501, 0.7499])
    """
    scores, right, known, _ = _checked(scores, right, known)
    size = float((known * scores.square()).sum() / known.sum()) ** 0.5
    if size < 1e-9:
        return Temperature(1.0)
    x, penalty = scores / size, RIDGE * known.sum()

    def descent(log_temperature: float) -> float:
        """Slope of the penalised loss over 1/T, which rises with 1/T."""
        inverse = math.exp(-log_temperature)
        return float((x * (known * torch.sigmoid(inverse * x) - right)).sum() + penalty * inverse)

    lowest, highest = math.log(1e-5), math.log(1e3)
    if descent(highest) >= 0:
        return Temperature(size * 1e3)
    return Temperature(size * math.exp(brentq(descent, lowest, highest, xtol=1e-12)))


def fit_isotonic(scores: Tensor, right: Tensor, known: Tensor) -> Isotonic:
    """Fit isotonic regression of p̂ = c/n on the score, each row weighing its n answers (scikit-learn's).

    Steps are kept half an answer, of all that were graded, away from 0 and 1, where the log-loss is infinite. Arguments
    are those of `fit_platt`; the calibrator has the knots that matter, both ends of each step.

    Raises:
        InputError: Answers all right or all wrong, or fewer than `LEAST_ISOTONIC_ROWS` rows.
    """
    from sklearn.isotonic import IsotonicRegression  # takes a second to import

    if len(scores) < LEAST_ISOTONIC_ROWS:
        raise InputError(
            f"Expected at least {LEAST_ISOTONIC_ROWS} validation rows for an isotonic calibrator, but got "
            f"{len(scores)}. Use platt, or more validation questions."
        )
    scores, right, known, _ = _checked(scores, right, known)
    margin = 0.5 / float(known.sum())
    regression = IsotonicRegression(y_min=margin, y_max=1 - margin, out_of_bounds="clip")
    regression.fit(scores.numpy(), (right / known).numpy(), sample_weight=known.numpy())
    return Isotonic(torch.as_tensor(regression.X_thresholds_), torch.as_tensor(regression.y_thresholds_))


def fit_calibrator(kind: str, scores: Tensor, right: Tensor, known: Tensor) -> Calibrator:
    """Fit a calibrator of a kind in `CALIBRATORS`, see `fit_platt`.

    Raises:
        InputError: Rows that the kind cannot be fitted on.
    """
    fits: dict[str, Callable[[Tensor, Tensor, Tensor], Calibrator]]
    fits = {Platt.kind: fit_platt, Temperature.kind: fit_temperature, Isotonic.kind: fit_isotonic}
    return fits[kind](scores, right, known)


def cross_fitted_loss(kind: str, scores: Tensor, right: Tensor, known: Tensor, question: Tensor) -> float | None:
    """Cross-entropy of calibrated confidences against p̂ = c/n, of rows that their calibrator was not fitted on.

    Arguments are those of `fit_calibrator`, and the question of each row, [row]: each of five folds takes questions in
    turn, with all their rows.

    Returns:
        Mean over rows in nats; None where the rows outside a fold do not allow a calibrator.
    """
    fold = question.unique(return_inverse=True)[1] % 5
    confidence = torch.empty(len(scores), dtype=torch.float64)
    for held in (fold == number for number in fold.unique()):
        try:
            calibrator = fit_calibrator(kind, scores[~held], right[~held], known[~held])
        except InputError:
            return None
        confidence[held] = calibrator(scores[held].double())
    return float(binary_cross_entropy(confidence, right.double() / known.double()))


def _checked(scores: Tensor, right: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """All in float64, and the share of right answers, strictly between 0 and 1."""
    scores, right, known = scores.double(), right.double(), known.double()
    share = float(right.sum() / known.sum())
    if not 0 < share < 1:
        raise InputError(
            f"Expected right and wrong answers to calibrate on, but all {int(known.sum())} are "
            f"{'right' if share else 'wrong'}. Use more validation questions."
        )
    return scores, right, known, share
