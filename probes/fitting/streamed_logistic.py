"""Quasi-Newton logistic regression for streamed features. Each step takes one pass over the rows."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from extract.errors import InputError
from probes.fitting.solvers import check_fit
from probes.fitting.streamed import Fits, targets_vary
from probes.fitting.sums import Column, outside_folds

#: Maximum number of passes. Most problems take about ten. With fewer rows than coordinates, some take up to 150.
MOST_PASSES = 1000
#: Number of earlier steps that determine the next step.
MEMORY = 10


def logistic(column: Column, target: Tensor, fold: Tensor, penalties: Sequence[float]) -> Fits:
    """Fit logistic regression to a feature. The objective is the same as in `solvers.logistic`.

    L-BFGS (Nocedal & Wright, Numerical Optimization, alg. 7.4) starts from zero weights. Its initial inverse Hessian is
    the exact one at this point. Each fitted weight is within 10⁻⁷ of its optimal value.

    Args:
        column: The feature.
        target: Targets in [0, 1], [row] float64. If all targets of a fit are equal, its weights and bias are 0.
        fold: Fold of each row, [row] int64.
        penalties: L2 penalties λ > 0.

    Raises:
        InputError: If a penalty is not positive or is too small for convergence.
    """
    check_fit(target, penalties)
    l2, moments = torch.tensor(list(penalties), dtype=torch.float64, device=target.device), []
    for statistics in outside_folds(column, target, fold, products=True):
        moments.append(statistics[:5])
        covariance = statistics.covariance
    mean, scale, _, rate, cross = map(torch.stack, zip(*moments, strict=True))
    outside = torch.stack([fold != number for number in range(len(rate))])  # [fit, row]
    varies = torch.stack([targets_vary(target[rows]) for rows in outside])
    bias = torch.where(varies, rate, 0.5).logit()
    shape = len(bias), len(l2)
    point = torch.cat([cross.new_zeros(*shape, cross.shape[1]), bias[:, None, None].expand(*shape, 1)], -1)
    start = (softplus(bias) - rate * bias)[:, None].expand(shape), pad(-cross, (0, 1))[:, None].expand_as(point)
    found = minimise(
        passes(column, target, outside, mean - column.reference, 1 / scale.double(), l2),
        newton_step(covariance, l2, rate[-1] * (1 - rate[-1])),
        (point, *start),
        torch.where(varies[:, None], 1e-7 * l2.clamp_max(0.1), torch.inf),
    )
    if found is None:
        raise InputError(
            "Expected `l2` to be large enough for logistic regression to converge, but some fits did not converge "
            f"within {MOST_PASSES} passes. The smallest penalty is {min(penalties):g}. Use larger penalties."
        )
    return Fits(mean, scale, found[..., :-1].float(), found[..., -1].float())


def passes(
    column: Column, target: Tensor, outside: Tensor, centre: Tensor, inverse: Tensor, l2: Tensor
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function that computes losses and gradients at given points in one pass over the rows.

    The losses have shape [fit, penalty]. Points and gradients have shape [fit, penalty, d + 1]. The last axis of a
    point holds the d weights of the standardised feature, followed by the bias.

    Args:
        column, target: See `logistic`.
        outside: Mask of the rows used in each fit, [fit, row] bool.
        centre: Mean minus `column.reference`, [fit, d].
        inverse: 1 / scale, [fit, d].
        l2: Penalties, [penalty].
    """
    share = outside.double() / outside.sum(1, keepdim=True)

    def evaluate(point: Tensor) -> tuple[Tensor, Tensor]:
        weight = point[..., :-1] * inverse[:, None]
        bias = point[..., -1] - (weight * centre[:, None]).sum(-1)

        def of_rows(places: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            logits = (rows @ weight.flatten(0, 1).T + bias.flatten()).unflatten(1, bias.shape)  # [row, fit, penalty]
            part, label = share[:, places].T[..., None], target[places, None, None]
            residual = part * (logits.sigmoid() - label)
            losses = (part * (softplus(logits) - label * logits)).sum(0)
            return losses, residual.sum(0), (residual.flatten(1).T @ rows).view_as(weight)

        loss, of_bias, of_weight = torch.zeros_like(bias), torch.zeros_like(bias), torch.zeros_like(weight)
        for _, parts in column.chunks(of_rows):
            for total, part in zip((loss, of_bias, of_weight), parts, strict=True):
                total += part
        of_weight = (of_weight - of_bias[..., None] * centre[:, None]) * inverse[:, None] + l2[:, None] * point[
            ..., :-1
        ]
        loss += l2 / 2 * point[..., :-1].square().sum(-1)
        return loss, torch.cat([of_weight, of_bias[..., None]], -1)

    return evaluate


def newton_step(covariance: Tensor, l2: Tensor, curvature: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies gradients [fit, penalty, d + 1] by the inverse Hessian at zero weights.

    `covariance` [d, d] is the covariance of the standardised rows, and is overwritten. `curvature` is p (1 − p), where
    p is the mean label.
    """
    hessian, factors = covariance.mul_(curvature), covariance.new_empty(len(l2), *covariance.shape)
    for added, factor in zip(l2.diff(prepend=l2.new_zeros(1)), factors, strict=True):
        hessian.diagonal().add_(added)
        torch.linalg.cholesky(hessian, out=factor)

    def product(gradient: Tensor) -> Tensor:
        solved = torch.cholesky_solve(gradient[..., :-1].permute(1, 2, 0), factors).permute(2, 0, 1)
        return torch.cat([solved, gradient[..., -1:] / curvature], -1)

    return product


def minimise(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    precondition: Callable[[Tensor], Tensor],
    start: tuple[Tensor, Tensor, Tensor],
    enough: Tensor,
) -> Tensor | None:
    """Minimise the losses of all candidates with L-BFGS. Returns None if any candidate does not converge.

    `evaluate` maps points [fit, penalty, d + 1] to losses [fit, penalty] and gradients. `start` contains the
    initial points and their losses and gradients. A candidate has converged if its gradient norm is at most `enough`
    [fit, penalty].
    """
    point, loss, gradient = start
    history: list[tuple[Tensor, Tensor, Tensor]] = []  # steps, changes of the gradient, and 1 / (step · change)
    direction, length = -precondition(gradient), torch.ones_like(loss)
    for _ in range(MOST_PASSES):
        active = gradient.norm(dim=-1) > enough
        if not active.any():
            return point
        step = (active * length)[..., None] * direction
        new_loss, new_gradient = evaluate(point + step)
        better = new_loss <= loss + 1e-4 * (gradient * step).sum(-1) + 1e-14 * loss.abs()
        step, change = (torch.where(better[..., None], one, 0.0) for one in (step, new_gradient - gradient))
        point, loss, gradient = point + step, torch.where(better, new_loss, loss), gradient + change
        product = (step * change).sum(-1)
        history = [*history, (step, change, torch.where(product > 0, 1 / product, 0.0))][-MEMORY:]
        length = torch.where(better, 1.0, length / 2)
        direction = torch.where(better[..., None], -two_loops(gradient, history, precondition), direction)
    return None


def two_loops(
    gradient: Tensor, history: Sequence[tuple[Tensor, Tensor, Tensor]], precondition: Callable[[Tensor], Tensor]
) -> Tensor:
    """Multiply gradients [fit, penalty, d + 1] by the L-BFGS approximation of the inverse Hessian."""
    along = []
    for step, change, inverse in reversed(history):
        along.append(inverse * (step * gradient).sum(-1))
        gradient = gradient - along[-1][..., None] * change
    found = precondition(gradient)
    for (step, change, inverse), size in zip(history, reversed(along), strict=True):
        found = found + (size - inverse * (change * found).sum(-1))[..., None] * step
    return found
