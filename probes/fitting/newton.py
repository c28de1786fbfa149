"""Newton's method with conjugate gradients for many logistic regressions at once, each at its own step and end."""

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from extract.errors import InputError

#: Newton steps after which a minimum should be found; six are usual, 20 where classes separate and λ = 10⁻⁶.
MOST_STEPS = 100
#: Conjugate gradients for one Newton step; what is missing is made up for in the next.
MOST_INNER = 250


def minimise(rows: Tensor, target: Tensor, share: Tensor, l2: Tensor, dual: bool) -> tuple[Tensor, Tensor]:
    """Weights [feature, penalty, d] and biases [feature, penalty] of the penalised logistic regression.

    From w = 0 and the bias of the mean: Newton steps, each solved by conjugate gradients to a tenth of the gradient and
    ever closer as it falls (Nocedal & Wright, Numerical Optimization, alg. 7.1), and halved until the loss falls. A
    candidate ends when its gradient is below 10⁻⁵ of its penalty, which puts every weight within 10⁻⁵ of the minimum.

    The work is done in principal coordinates, of which no two are correlated: k = row of them in the dual, or d. One
    more coordinate is 1 in every row; its weight is the bias, which no penalty holds back.

    Args:
        rows: [feature, row, d] float64, centred.
        target: [row] float64 in [0, 1], not all 0 and not all 1.
        share: [row] float64 weights of sum 1.
        l2: [penalty] float64 λ > 0.
        dual: Whether to work with one coordinate a row instead of one for each of d.

    Raises:
        InputError: No minimum found, which rounding brings about at penalties next to 0.
    """
    squares, vectors = torch.linalg.eigh(rows @ rows.mT if dual else rows.mT @ rows)
    told_apart = squares > 1e-13 * squares[..., -1:]  # below that an eigenvalue is rounding
    squares = torch.where(told_apart, squares, 0.0)
    roots = squares.sqrt()
    coordinates = pad(vectors * roots[:, None] if dual else rows @ vectors, (0, 1), value=1.0)
    mean_squares = pad(squares / rows.shape[1], (0, 1), value=1.0)
    penalty = pad(l2[:, None].expand(-1, squares.shape[1]), (0, 1))

    point = pad(
        squares.new_zeros(len(rows), len(l2), squares.shape[1]), (0, 1), value=float(torch.logit(share @ target))
    )
    logits = point[..., -1:].expand(-1, -1, rows.shape[1])  # what the point gives on the rows
    enough = (1e-5 * l2.clamp_max(0.1)).clamp_min(1e-12)

    def loss(point: Tensor, logits: Tensor) -> Tensor:
        return (softplus(logits) - target * logits) @ share + (penalty / 2 * point.square()).sum(-1)

    value = loss(point, logits)
    for _ in range(MOST_STEPS):
        confidence = torch.sigmoid(logits)
        gradient = (share * (confidence - target)) @ coordinates + penalty * point
        active = gradient.norm(dim=-1) > enough
        if not active.any():
            found = (
                point[..., :-1] @ (vectors * torch.where(told_apart, 1 / roots, 0.0)[:, None] if dual else vectors).mT
            )
            return found @ rows if dual else found, point[..., -1]
        step, step_logits = _newton_step(
            coordinates, mean_squares, share * confidence * (1 - confidence), penalty, gradient, active
        )
        slope = (gradient * step).sum(-1)
        length = active.to(rows.dtype)
        while True:  # halve where the loss doesn't fall as the slope says it should
            moved = point + length[..., None] * step, logits + length[..., None] * step_logits
            new = loss(*moved)
            worse = new > value + 1e-4 * length * slope + 1e-14 * value.abs()
            if not worse.any():
                break
            length = torch.where(worse, length / 2, length)
            length = torch.where(length < 1e-9, 0.0, length)
        (point, logits), value = moved, new
    raise InputError(
        f"Expected `l2` to be large enough for a logistic regression to end, but {int(active.sum())} of "
        f"{active.numel()} had not after {MOST_STEPS} steps at {float(l2.min()):g} or more. Give larger penalties."
    )


def _newton_step(
    coordinates: Tensor, mean_squares: Tensor, curvature: Tensor, penalty: Tensor, gradient: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Minus the inverse Hessian times the gradient, nearly: the step, and what it adds to the logits.

    The Hessian is ZᵀDZ + λ with D = diag(curvature). Were D the same for all rows, it would be diagonal in principal
    coordinates; that diagonal is the preconditioner, so that the number of steps depends on how confident the candidate
    is, and hardly on the penalty. Candidates that are not active stay where they are.
    """
    diagonal = curvature.sum(-1, keepdim=True) * mean_squares[:, None] + penalty
    step, step_logits, rest = torch.zeros_like(gradient), torch.zeros_like(curvature), -gradient
    along = rest / diagonal
    size = (rest * along).sum(-1)
    norm = gradient.norm(dim=-1)
    enough = norm * norm.sqrt().clamp_max(0.1)
    for _ in range(MOST_INNER):
        along_logits = along @ coordinates.mT
        hessian = (curvature * along_logits) @ coordinates + penalty * along
        far = torch.where(active, size / (hessian * along).sum(-1), 0.0)[..., None]
        step, step_logits, rest = step + far * along, step_logits + far * along_logits, rest - far * hessian
        active = active & (rest.norm(dim=-1) > enough)
        if not active.any():
            break
        scaled = rest / diagonal
        new_size = (rest * scaled).sum(-1)
        along, size = scaled + torch.where(active, new_size / size, 0.0)[..., None] * along, new_size
    return step, step_logits
