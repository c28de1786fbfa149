"""Calibrators fitted to counts of right answers: Platt scaling, temperature scaling and isotonic regression."""

import math
from collections.abc import Callable

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits

from extract.errors import InputError
from probes.saved.calibrators import Calibrator, Isotonic, Platt, Temperature

#: Minimum number of rows for isotonic regression. With fewer rows, most steps of the fitted function are noise.
LEAST_ISOTONIC_ROWS = 30
#: Penalty per answer on the squared slope of standardised scores.
RIDGE = 1e-4
#: Maximum number of scores that `candidate_losses` processes at once.
MOST_SCORES = 2**22


def fit_platt(scores: Tensor, right: Tensor, known: Tensor, ridge: float = RIDGE) -> Platt:
    r"""Fit Platt scaling (Platt 1999) to counts of right answers by penalised maximum likelihood.

    .. math::
        \min_{a,b} \sum_i -c_i \log f_i - (n_i - c_i) \log (1 - f_i) + \frac{\rho}{2} N a^2, \qquad
        f_i = \sigma\Big(a \frac{s_i - \bar s}{\mathrm{sd}(s)} + b\Big), \quad N = \sum_i n_i

    where row i has the score s_i and c_i right answers out of n_i. σ is the logistic function, and s̄ and sd(s) are the
    mean and standard deviation of the scores. The calibrator maps s_i to the confidence f_i.

    Args:
        scores: Finite scores, [row]. Higher means more likely to be right.
        right: Number c of right answers, [row].
        known: Number n of graded answers, [row].
        ridge: Ridge coefficient ρ, at least 0. A positive ρ keeps the slope finite if the scores separate right from
            wrong answers.

    Returns:
        The calibrator. If the fitted slope is negative, or the answers are all right or all wrong, the calibrator
        always returns the base rate. See `base_rate_calibrator`.

    >>> scores, right, known = torch.tensor([0.0, 1.0]), torch.tensor([1, 3]), torch.tensor([4, 4])
    >>> fit_platt(scores, right, known, ridge=0.0)(scores)  # the measured accuracies
    tensor([0.2500, 0.7500])
    >>> float(fit_platt(-scores, right, known).slope)
    0.0
    """
    slope, intercept = fit_platt_many(scores[None], right, known, ridge)
    return Platt(slope[0], intercept[0])


def fit_platt_many(scores: Tensor, right: Tensor, known: Tensor, ridge: float = RIDGE) -> tuple[Tensor, Tensor]:
    """Fit Platt scaling to several candidates at once. `scores` [candidate, row] can contain non-finite values.

    Returns slopes and intercepts, each [candidate] float64. If no positive slope can be fitted, the slope is 0 and
    the intercept is the log-odds of the base rate.
    """
    scores, right, known = scores.double(), right.double(), known.double()
    base = float(base_rate_calibrator(right, known).intercept)
    centre = scores.mean(1)
    scale = scores.std(1) if scores.shape[1] > 1 else torch.zeros_like(centre)
    varies = (scale > 1e-9) & (0 < right.sum() < known.sum())
    x = (scores - centre[:, None]) / torch.where(varies, scale, 1.0)[:, None]
    penalty = ridge * known.sum()
    a, b = torch.zeros_like(centre), torch.full_like(centre, base)
    for _ in range(100):
        mean = torch.sigmoid(a[:, None] * x + b[:, None])
        residual, curvature = known * mean - right, known * mean * (1 - mean)
        # gradient, then the three entries of the Hessian
        down_a, down_b = (residual * x).sum(1) + penalty * a, residual.sum(1)
        h_aa = (curvature * x * x).sum(1) + penalty + 1e-12
        h_ab, h_bb = (curvature * x).sum(1), curvature.sum(1) + 1e-12
        determinant = h_aa * h_bb - h_ab**2
        step = torch.stack([h_bb * down_a - h_ab * down_b, h_aa * down_b - h_ab * down_a]) / determinant
        size = step.abs().amax(0)
        a, b = torch.stack([a, b]) - step * (4 / size).clamp_max(1)  # bounded to prevent overshooting
        if not (size[varies] > 1e-10).any():
            break
    slope = a / scale
    fitted = varies & (slope > 0)
    return torch.where(fitted, slope, 0.0), torch.where(fitted, b - slope * centre, base)


def fit_temperature(scores: Tensor, right: Tensor, known: Tensor) -> Temperature:
    r"""Fit a temperature T (Guo et al. 2017) to counts of right answers by penalised maximum likelihood.

    The scores are log-odds. The confidence for the score s is σ(s/T), where σ is the logistic function. T / r is
    restricted to [1e-5, 1e3]. Here, r is the root mean square of the scores, weighted by `known`. T is positive, so it
    cannot reverse the ranking. If higher scores indicate wrong answers, T becomes very large and all confidences are
    close to ½. See `fit_platt` for the arguments.

    >>> scores, right, known = torch.tensor([-2.0, 2.0]), torch.tensor([1, 3]), torch.tensor([4, 4])
    >>> fit_temperature(scores, right, known)(scores)  # close to the measured accuracies
    tensor([0.2501, 0.7499])
    """
    scores, right, known = scores.double(), right.double(), known.double()
    size = float((known * scores.square()).sum() / known.sum()) ** 0.5
    if size < 1e-9:
        return Temperature(1.0)
    x, penalty = scores / size, RIDGE * known.sum()

    def descent(log_temperature: float) -> float:
        """Return the derivative of the penalised loss with respect to 1/T."""
        inverse = math.exp(-log_temperature)
        return float((x * (known * torch.sigmoid(inverse * x) - right)).sum() + penalty * inverse)

    lowest, highest = math.log(1e-5), math.log(1e3)
    if descent(highest) >= 0:
        return Temperature(size * 1e3)
    return Temperature(size * math.exp(brentq(descent, lowest, highest, xtol=1e-12)))


def fit_isotonic(scores: Tensor, right: Tensor, known: Tensor) -> Isotonic:
    """Fit an isotonic regression of accuracy on score. Each row is weighted by its number of answers.

    To keep the log-loss finite, confidences are clipped to [m, 1 − m]. Here, m is ½ divided by the total number of
    answers. See `fit_platt` for the arguments.

    Raises:
        InputError: If there are fewer than `LEAST_ISOTONIC_ROWS` rows.
    """
    from sklearn.isotonic import IsotonicRegression  # takes a second to import

    if len(scores) < LEAST_ISOTONIC_ROWS:
        raise InputError(
            f"Expected at least {LEAST_ISOTONIC_ROWS} rows for an isotonic calibrator, but got {len(scores)}. Use the "
            "`platt` calibrator, or use more questions."
        )
    scores, right, known = scores.double(), right.double(), known.double()
    margin = 0.5 / float(known.sum())
    regression = IsotonicRegression(y_min=margin, y_max=1 - margin, out_of_bounds="clip")
    regression.fit(scores.numpy(), (right / known).numpy(), sample_weight=known.numpy())
    return Isotonic(torch.as_tensor(regression.X_thresholds_), torch.as_tensor(regression.y_thresholds_))


def fit_calibrator(kind: str, scores: Tensor, right: Tensor, known: Tensor) -> Calibrator:
    """Fit the calibrator named `kind` in `CALIBRATORS`. See `fit_platt` for the other arguments.

    If every answer is right, or every answer is wrong, the calibrator returns the base rate.

    Raises:
        InputError: If there are too few rows for the calibrator.
    """
    if right.sum() in (0, known.sum()):
        return base_rate_calibrator(right, known)
    fits: dict[str, Callable[[Tensor, Tensor, Tensor], Calibrator]]
    fits = {Platt.kind: fit_platt, Temperature.kind: fit_temperature, Isotonic.kind: fit_isotonic}
    return fits[kind](scores, right, known)


def base_rate_calibrator(right: Tensor, known: Tensor) -> Platt:
    """Return a calibrator that always returns the base rate, the fraction of right answers.

    The confidence is clipped to [m, 1 − m], where m = ½ / n for n answers. If there are no answers, the confidence is
    ½.
    """
    n = known.double().sum().clamp_min(1)
    rate = (right.double().sum() / n).clamp(0.5 / n, 1 - 0.5 / n)
    return Platt(torch.zeros((), dtype=torch.float64), torch.logit(rate))


def cross_fitted_losses(kind: str | None, scores: Tensor, right: Tensor, known: Tensor, question: Tensor) -> Tensor:
    """Compute the cross-entropies [row] between cross-fitted confidences and accuracies, in nats (float64).

    The calibrator of each fold of questions is fitted on the other four folds. If `kind` is None or the calibrator
    cannot be fitted, the confidence is the base rate of the other folds. `question` [row] is the question of each row.
    """
    fold = question.unique(return_inverse=True)[1] % 5
    confidence = torch.empty(len(scores), dtype=torch.float64)
    for held in (fold == number for number in fold.unique()):
        others = right[~held], known[~held]
        try:
            calibrator = base_rate_calibrator(*others) if kind is None else fit_calibrator(kind, scores[~held], *others)
        except InputError:
            calibrator = base_rate_calibrator(*others)
        confidence[held] = calibrator(scores[held].double())
    return binary_cross_entropy(confidence, right.double() / known.double(), reduction="none")


def soft_label_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the mean binary cross-entropy [penalty, feature] of logits [penalty, row, feature], in nats."""
    label = target.to(logits.dtype)[None, :, None].expand_as(logits)
    return binary_cross_entropy_with_logits(logits, label, reduction="none").mean(1)


def candidate_losses(scores: Tensor, target: Tensor, log_odds: bool) -> Tensor:
    """Compute the cross-entropy [penalty, input] in nats between scores [penalty, row, input] and targets [row].

    Scores that are not log-odds are first calibrated by Platt scaling on the same rows.
    """
    n_inputs = max(1, MOST_SCORES // scores[:, :, 0].numel())
    loss = soft_label_loss if log_odds else _calibrated_loss
    return torch.cat([loss(part.double(), target) for part in scores.split(n_inputs, dim=2)], dim=1)


def _calibrated_loss(scores: Tensor, target: Tensor) -> Tensor:
    flat = scores.transpose(1, 2).flatten(0, 1)
    slope, intercept = fit_platt_many(flat, target, torch.ones_like(target))
    logits = (slope[:, None] * flat + intercept[:, None]).T[None]
    return soft_label_loss(logits, target).reshape(len(scores), -1)
