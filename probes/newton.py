"""Newton's method with conjugate gradients for many logistic regressions at once, each at its own step and end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from extract.errors import InputError

#: Newton steps after which a minimum should be found; ten are usual.
MOST_STEPS = 100
#: Conjugate gradients for one Newton step; what is missing is made up for in the next.
MOST_INNER = 250


class Space:
    """Directions in coordinates, for all features of a chunk: `w` itself, or `a` of w = X̃ᵀa.

    A point is a pair: coordinates [feature, penalty, k] (k = d, or row in the dual) and what they give on the rows,
    its image X̃w [feature, penalty, row]. Products of w with w need no more than that: w·w' = a·(X̃w') in the dual.

    Args:
        rows: [feature, row, d] float64 centred rows X̃.
        dual: Whether coordinates are `a`.
    """

    def __init__(self, rows: Tensor, dual: bool) -> None:
        self.rows, self.dual = rows, dual
        self.map = rows @ rows.mT if dual else rows.mT

    def image(self, point: Tensor) -> Tensor:
        """X̃w."""
        return point @ self.map

    def pull(self, rows: Tensor) -> Tensor:
        """Coordinates of X̃ᵀr for r [feature, penalty, row]."""
        return rows if self.dual else rows @ self.rows

    def product(self, point: Tensor, other: Tensor, other_image: Tensor) -> Tensor:
        """w·w' [feature, penalty]."""
        return (point * (other_image if self.dual else other)).sum(-1)

    def direction(self, point: Tensor) -> Tensor:
        """W [feature, penalty, d]."""
        return point @ self.rows if self.dual else point


def minimise(rows: Tensor, target: Tensor, share: Tensor, l2: Tensor, dual: bool) -> tuple[Tensor, Tensor]:
    """Weights [feature, penalty, d] and biases [feature, penalty] of the penalised logistic regression.

    From w = 0 and the bias of the mean: Newton steps, each solved by conjugate gradients to a tenth of the gradient and
    ever closer as it falls (Nocedal & Wright, Numerical Optimization, alg. 7.1), and halved until the loss falls. A
    candidate ends when its gradient is below 10⁻⁶ of its penalty, which puts every weight within 10⁻⁶ of the minimum.

    Args:
        rows: [feature, row, d] float64, centred.
        target: [row] float64 in [0, 1], not all 0 and not all 1.
        share: [row] float64 weights of sum 1.
        l2: [penalty] float64 λ > 0.
        dual: Whether to work with one coordinate a row instead of one for each of d.

    Raises:
        InputError: No minimum found, which rounding brings about at penalties next to 0.
    """
    space = Space(rows, dual)
    point = rows.new_zeros(len(rows), len(l2), rows.shape[1] if dual else rows.shape[2])
    image = rows.new_zeros(len(rows), len(l2), rows.shape[1])
    bias = torch.logit(share @ target).expand(len(rows), len(l2)).clone()
    enough = (1e-5 * l2.clamp_max(0.1)).clamp_min(1e-12)

    def loss(point: Tensor, image: Tensor, bias: Tensor) -> Tensor:
        logits = image + bias[..., None]
        return (softplus(logits) - target * logits) @ share + l2 / 2 * space.product(point, point, image)

    value = loss(point, image, bias)
    for _ in range(MOST_STEPS):
        confidence = torch.sigmoid(image + bias[..., None])
        pull = share * (confidence - target)
        gradient = space.pull(pull) + l2[:, None] * point
        gradient_image, gradient_bias = space.image(gradient), pull.sum(-1)
        norm = (space.product(gradient, gradient, gradient_image).clamp_min(0) + gradient_bias**2).sqrt()
        active = norm > enough
        if not active.any():
            return space.direction(point), bias
        curvature = share * confidence * (1 - confidence)
        step, step_image, step_bias = _newton_step(
            space, curvature, l2, (gradient, gradient_image, gradient_bias), norm * active
        )
        slope = space.product(gradient, step, step_image) + gradient_bias * step_bias
        length = active.to(rows.dtype)
        while True:  # halve where the loss doesn't fall as the slope says it should
            moved = (point + length[..., None] * step, image + length[..., None] * step_image, bias + length * step_bias)
            new = loss(*moved)
            worse = new > value + 1e-4 * length * slope + 1e-14 * value.abs()
            if not worse.any():
                break
            length = torch.where(worse, length / 2, length)
            length = torch.where(length < 1e-9, 0.0, length)
        (point, image, bias), value = moved, new
    raise InputError(
        f"Expected `l2` to be large enough for a logistic regression to end, but {int(active.sum())} of {active.numel()} had not after {MOST_STEPS} steps; the smallest is {float(l2.min()):g}. Give larger penalties."
    )


def _newton_step(
    space: Space, curvature: Tensor, l2: Tensor, gradient: tuple[Tensor, Tensor, Tensor], norm: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Minus the inverse Hessian times the gradient, nearly: coordinates, image and bias.

    The Hessian is X̃ᵀDX̃ + λ with D = diag(curvature), bordered by the bias. Candidates of norm 0 stay where they are.
    """
    step, step_image, step_bias = (torch.zeros_like(part) for part in gradient)
    rest, rest_image, rest_bias = (-part for part in gradient)
    along, along_image, along_bias = rest, rest_image, rest_bias
    length = norm**2
    enough = length * norm.clamp_max(0.1) ** 2
    for _ in range(MOST_INNER):
        active = length > enough
        if not active.any():
            break
        bent = curvature * (along_image + along_bias[..., None])
        hessian, hessian_bias = space.pull(bent) + l2[:, None] * along, bent.sum(-1)
        bend = space.product(hessian, along, along_image) + hessian_bias * along_bias
        far = torch.where(active, length / bend.clamp_min(1e-300), 0.0)
        step = step + far[..., None] * along
        step_image, step_bias = step_image + far[..., None] * along_image, step_bias + far * along_bias
        rest = rest - far[..., None] * hessian
        rest_image, rest_bias = space.image(rest), rest_bias - far * hessian_bias
        shorter = space.product(rest, rest, rest_image).clamp_min(0) + rest_bias**2
        turn = torch.where(active, shorter / length.clamp_min(1e-300), 0.0)
        along, along_bias = rest + turn[..., None] * along, rest_bias + turn * along_bias
        along_image = rest_image + turn[..., None] * along_image
        length = torch.where(active, shorter, length)
    return step, step_image, step_bias
