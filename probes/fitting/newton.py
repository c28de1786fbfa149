"""Newton's method with conjugate gradients for many logistic regressions at once, each at its own step and end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extract.errors import InputError

#: Newton steps after which a minimum should be found; six are usual, 20 where classes separate and λ = 10⁻⁶.
MOST_STEPS = 100
#: Conjugate gradients for one Newton step; what is missing is made up for in the next.
MOST_INNER = 250


def principal(rows: Tensor, dual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in their principal coordinates, in which no two coordinates are correlated.

    Args:
        rows: [feature, row, d] float64 centred rows X̃.
        dual: Whether to find them by X̃X̃ᵀ instead of X̃ᵀX̃.

    Returns:
        Coordinates Z [feature, row, k] (k = row in the dual, or d), their sums of squares [feature, k], and the matrix
        that takes a direction u back: [feature, row, k] in the dual, where w = X̃ᵀ · back · u, otherwise [feature, d, k]
        and w = back · u.
    """
    squares, vectors = torch.linalg.eigh(rows @ rows.mT if dual else rows.mT @ rows)
    told_apart = squares > 1e-13 * squares[..., -1:]  # below that an eigenvalue is rounding
    squares = torch.where(told_apart, squares, 0.0)
    if not dual:
        return rows @ vectors, squares, vectors
    roots = squares.sqrt()
    inverse = torch.where(told_apart, 1 / roots, 0.0)
    return vectors * roots[:, None], squares, vectors * inverse[:, None]


def minimise(rows: Tensor, target: Tensor, share: Tensor, l2: Tensor, dual: bool) -> tuple[Tensor, Tensor]:
    """Weights [feature, penalty, d] and biases [feature, penalty] of the penalised logistic regression.

    From w = 0 and the bias of the mean: Newton steps, each solved by conjugate gradients to a tenth of the gradient and
    ever closer as it falls (Nocedal & Wright, Numerical Optimization, alg. 7.1), and halved until the loss falls. A
    candidate ends when its gradient is below 10⁻⁵ of its penalty, which puts every weight within 10⁻⁵ of the minimum.

    Args:
        rows: [feature, row, d] float64, centred.
        target: [row] float64 in [0, 1], not all 0 and not all 1.
        share: [row] float64 weights of sum 1.
        l2: [penalty] float64 λ > 0.
        dual: Whether to work with one coordinate a row instead of one for each of d.

    Raises:
        InputError: No minimum found, which rounding brings about at penalties next to 0.
    """
    coordinates, squares, back = principal(rows, dual)
    point = rows.new_zeros(len(rows), len(l2), coordinates.shape[2])
    image = rows.new_zeros(len(rows), len(l2), rows.shape[1])  # what the point gives on the rows, less the bias
    bias = torch.logit(share @ target).expand(len(rows), len(l2)).clone()
    enough = (1e-5 * l2.clamp_max(0.1)).clamp_min(1e-12)

    def loss(point: Tensor, image: Tensor, bias: Tensor) -> Tensor:
        logits = image + bias[..., None]
        return (softplus(logits) - target * logits) @ share + l2 / 2 * point.square().sum(-1)

    value = loss(point, image, bias)
    for _ in range(MOST_STEPS):
        confidence = torch.sigmoid(image + bias[..., None])
        pull = share * (confidence - target)
        gradient, gradient_bias = pull @ coordinates + l2[:, None] * point, pull.sum(-1)
        norm = (gradient.square().sum(-1) + gradient_bias**2).sqrt()
        active = norm > enough
        if not active.any():
            found = point @ back.mT
            return found @ rows if dual else found, bias
        curvature = share * confidence * (1 - confidence)
        step, step_image, step_bias = _newton_step(
            coordinates, squares, curvature, l2, gradient, gradient_bias, norm * active
        )
        slope = (gradient * step).sum(-1) + gradient_bias * step_bias
        length = active.to(rows.dtype)
        while True:  # halve where the loss doesn't fall as the slope says it should
            moved = (
                point + length[..., None] * step,
                image + length[..., None] * step_image,
                bias + length * step_bias,
            )
            new = loss(*moved)
            worse = new > value + 1e-4 * length * slope + 1e-14 * value.abs()
            if not worse.any():
                break
            length = torch.where(worse, length / 2, length)
            length = torch.where(length < 1e-9, 0.0, length)
        (point, image, bias), value = moved, new
    raise InputError(
        f"Expected `l2` to be large enough for a logistic regression to end, but {int(active.sum())} of "
        f"{active.numel()} had not after {MOST_STEPS} steps; the smallest is {float(l2.min()):g}. Give larger "
        "penalties."
    )


def _newton_step(
    coordinates: Tensor,
    squares: Tensor,
    curvature: Tensor,
    l2: Tensor,
    gradient: Tensor,
    gradient_bias: Tensor,
    norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minus the inverse Hessian times the gradient, nearly: point, image and bias.

    The Hessian is ZᵀDZ + λ with D = diag(curvature), bordered by the bias. Were D the same for all rows, it would be
    diagonal in principal coordinates; that diagonal is the preconditioner, so that the number of steps depends on how
    confident the candidate is, and hardly on the penalty. Candidates of norm 0 stay where they are.
    """
    total = curvature.sum(-1)
    diagonal = total[..., None] * (squares / coordinates.shape[1])[:, None] + l2[:, None]
    step, step_image, step_bias = torch.zeros_like(gradient), torch.zeros_like(curvature), torch.zeros_like(total)
    rest, rest_bias = -gradient, -gradient_bias
    along, along_bias = rest / diagonal, rest_bias / total
    size = (rest * along).sum(-1) + rest_bias * along_bias
    enough = norm * norm.sqrt().clamp_max(0.1)
    active = norm > 0
    for _ in range(MOST_INNER):
        along_image = along @ coordinates.mT
        bent = curvature * (along_image + along_bias[..., None])
        hessian, hessian_bias = bent @ coordinates + l2[:, None] * along, bent.sum(-1)
        bend = (hessian * along).sum(-1) + hessian_bias * along_bias
        far = torch.where(active, size / bend, 0.0)
        step, rest = step + far[..., None] * along, rest - far[..., None] * hessian
        step_image = step_image + far[..., None] * along_image
        step_bias, rest_bias = step_bias + far * along_bias, rest_bias - far * hessian_bias
        active = active & ((rest.square().sum(-1) + rest_bias**2).sqrt() > enough)
        if not active.any():
            break
        scaled, scaled_bias = rest / diagonal, rest_bias / total
        new_size = (rest * scaled).sum(-1) + rest_bias * scaled_bias
        turn = torch.where(active, new_size / size, 0.0)
        along, along_bias = scaled + turn[..., None] * along, scaled_bias + turn * along_bias
        size = new_size
    return step, step_image, step_bias
