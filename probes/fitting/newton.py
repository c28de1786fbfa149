"""Newton's method for L2-penalised logistic regression, for several feature matrices and penalties at once.

The method optimises a vector of coordinates. The weights and the bias are linear functions of this vector. If there are
fewer rows than weights, the coordinates are the coefficients of a linear combination of the rows (`_Dual`). Otherwise,
they are the weights and the bias themselves (`_Primal`).

Losses and gradients are computed in float64. Newton steps are computed in float32 unless a penalty is tiny. Float32 is
sufficient because each step corrects the errors of earlier steps.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from extract.errors import InputError

#: Maximum number of Newton steps. Most problems take six to eight, and separable classes with λ = 10⁻⁶ take 20.
MOST_STEPS = 100
#: Maximum number of conjugate-gradient iterations per Newton step.
MOST_INNER = 250
#: Factor by which the iterations of a Newton step reduce the squared norm of the preconditioned residual.
INNER_FACTOR = 1e-3
#: Smallest penalty, relative to the trace of the unpenalised Hessian, for which steps are computed in float32.
SMALLEST_PENALTY = 4e-6


def minimise(rows: Tensor, target: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """Fit logistic regression and return weights [feature, penalty, d] and biases [feature, penalty].

    The inexact Newton method with line search (Nocedal & Wright, Numerical Optimization, alg. 7.1) starts from zero
    weights. A fit has converged if the norm of its gradient is at most 10⁻⁵ · min(λ, 0.1, m (1 − m)). Here, λ is the
    penalty and m is the mean label.

    Args:
        rows: Rows, [feature, row, d] float64. Each coordinate has mean 0.
        target: Labels in [0, 1], not all 0 and not all 1, [row] float64.
        l2: Penalties λ > 0, [penalty] float64. The largest is at most about 10⁴ times the smallest.

    Raises:
        InputError: If a penalty is too small for convergence.
    """
    mean_target = target.mean()
    spread = mean_target * (1 - mean_target)
    problem = (_Dual if rows.shape[-2] < rows.shape[-1] else _Primal)(rows, spread, l2)
    enough = (1e-5 * l2.clamp_max(0.1).minimum(spread)).clamp_min(1e-12)
    zero = torch.zeros_like(spread)

    def loss(point: Tensor, logits: Tensor) -> Tensor:
        # softplus only approximates large logits
        losses = target * torch.logaddexp(-logits, zero) + (1 - target) * torch.logaddexp(logits, zero)
        return losses.mean(-1) + l2 / 2 * problem.squared_norm(point, logits)

    point = problem.constant(torch.logit(mean_target))
    logits = problem.logits(point)
    value = loss(point, logits)
    for _ in range(MOST_STEPS):
        confidence = torch.sigmoid(logits)
        gradient = problem.gradient((confidence - target) / len(target), point)
        active = problem.inner(gradient, gradient) > enough.square()
        if not active.any():
            return problem.weights(point)
        step = _newton_step(problem, confidence * (1 - confidence) / len(target), gradient, active).to(rows.dtype)
        change = problem.logits(step)
        slope = problem.slope(gradient, step, change)
        length = active.to(rows.dtype)
        while True:  # halve the step until the loss decreases sufficiently
            moved = point + length[..., None] * step, logits + length[..., None] * change
            new = loss(*moved)
            worse = new > value + 1e-4 * length * slope + 1e-12 * value.abs()
            if not worse.any():
                break
            length = torch.where(worse, length / 2, length)
            length = torch.where(length < 1e-9, 0.0, length)
        (point, logits), value = moved, new
    raise InputError(
        f"Expected `l2` to be large enough for logistic regression to converge, but {int(active.sum())} of "
        f"{active.numel()} fits did not converge within {MOST_STEPS} steps. The smallest penalty is "
        f"{float(l2.min()):g}. Use larger penalties."
    )


class _Primal:
    """Coordinate system in which a point [feature, penalty, d + 1] consists of the weights and the bias.

    The image Kβ of a vector β (see `_Dual`) is the vector itself. `spread` is the derivative of the confidence with
    respect to the logit at zero weights.
    """

    def __init__(self, rows: Tensor, spread: Tensor, l2: Tensor) -> None:
        self.rows, self.l2 = pad(rows, (0, 1), value=1.0), pad(l2[:, None].expand(-1, rows.shape[-1]), (0, 1))
        _, inverse = _inverse_at_zero(rows.mT @ rows, spread / rows.shape[-2], l2)
        self.inverse = pad(inverse, (0, 1, 0, 1))
        self.inverse[..., -1, -1] = 1 / spread
        self.step_rows, self.step_l2 = self.rows.to(inverse.dtype), self.l2.to(inverse.dtype)

    def constant(self, logit: Tensor) -> Tensor:
        """Return the point at which all weights are 0 and the bias is `logit`."""
        point = torch.zeros_like(self.l2)
        point[:, -1] = logit
        return point.expand(len(self.rows), -1, -1)

    def weights(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [feature, penalty, d] and biases [feature, penalty]."""
        return point[..., :-1], point[..., -1]

    def logits(self, point: Tensor) -> Tensor:
        """Return logits [feature, penalty, row]."""
        return point @ self.rows.mT

    def squared_norm(self, point: Tensor, logits: Tensor) -> Tensor:
        """Return the squared norms [feature, penalty] of the weights, given a point and its logits."""
        return point[..., :-1].square().sum(-1)

    def gradient(self, pull: Tensor, point: Tensor) -> Tensor:
        """Return the gradient at a point. `pull` is the derivative of the mean loss with respect to the logits."""
        return pull @ self.rows + self.l2 * point

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner products [feature, penalty] of two vectors."""
        return (a * b).sum(-1)

    def slope(self, gradient: Tensor, step: Tensor, change: Tensor) -> Tensor:
        """Return the inner products of `gradient` and `step`. The step changes the logits by `change`."""
        return self.inner(gradient, step)

    def hessian(self, vector: Tensor, image: Tensor, curvature: Tensor) -> Tensor:
        """Multiply the Hessian by a vector.

        `image` is Kβ, where β is `vector` (see `_Dual`). `curvature` is the second derivative of the mean loss with
        respect to the logits.
        """
        return torch.addcmul((curvature * (vector @ self.step_rows.mT)) @ self.step_rows, self.step_l2, vector)

    def precondition(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply the inverse of the Hessian at zero weights by a vector.

        Returns the result β and its image Kβ (see `_Dual`).
        """
        found = vector @ self.inverse
        return found, found


class _Dual:
    """Coordinate system in which a point is given by coefficients αᵢ [feature, penalty, row], one per row.

    For the methods, see `_Primal`.

    The weights are w = Σ αᵢ xᵢ. They do not depend on the mean of α, because the rows are centred. Therefore, the mean
    of α can encode the bias: b = r Σ αᵢ, where r is a constant. The logits are Kα, where K is the Gram matrix with r
    added to each entry. The inner product of α and β is α · Kβ. The vector Kβ is called the image of β. Under this
    inner product, the gradient is the derivative of the mean loss with respect to the logits, plus λ times the centred
    α. The inverse of the Hessian at zero weights maps v to β = (scale · K + shift)⁻¹ v. Here, `scale` is an argument of
    `_inverse_at_zero`, and `shift` is the penalty that it returns. The image Kβ = (v − shift · β) / scale needs no
    further matrix product.

    In Newton steps, the bias also has a small penalty. The image is computed with a `shift` slightly smaller than the
    exact one. These approximations save operations and keep the coefficients bounded if K is singular.
    """

    def __init__(self, rows: Tensor, spread: Tensor, l2: Tensor) -> None:
        self.rows, self.l2, scale = rows, l2[:, None], spread / rows.shape[-2]
        products = rows @ rows.mT
        mean_square = products.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None]
        self.bias_per_sum = torch.maximum(mean_square, 100 * l2.max() / spread)  # r
        self.kernel = products.add_(self.bias_per_sum[..., None])
        shift, self.inverse = _inverse_at_zero(self.kernel, scale, l2)
        dtype, eps = self.inverse.dtype, torch.finfo(self.inverse.dtype).eps
        shift = shift - torch.maximum(l2.min() / 100, 100 * eps * shift)
        self.step_l2, self.of_vector, self.of_found = (one.to(dtype) for one in (self.l2, 1 / scale, -shift / scale))

    def constant(self, logit: Tensor) -> Tensor:
        n_rows = self.rows.shape[-2]
        return (logit / n_rows / self.bias_per_sum)[..., None].expand(-1, len(self.l2), n_rows)

    def weights(self, point: Tensor) -> tuple[Tensor, Tensor]:
        return _centred(point) @ self.rows, self.bias_per_sum * point.sum(-1)

    def logits(self, point: Tensor) -> Tensor:
        return point @ self.kernel

    def squared_norm(self, point: Tensor, logits: Tensor) -> Tensor:
        return (_centred(point) * logits).sum(-1)

    def gradient(self, pull: Tensor, point: Tensor) -> Tensor:
        return pull + self.l2 * _centred(point)

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * self.logits(b)).sum(-1)

    def slope(self, gradient: Tensor, step: Tensor, change: Tensor) -> Tensor:
        return (gradient * change).sum(-1)

    def hessian(self, vector: Tensor, image: Tensor, curvature: Tensor) -> Tensor:
        return torch.addcmul(curvature * image, self.step_l2, vector)

    def precondition(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        found = vector @ self.inverse
        return found, torch.addcmul(self.of_vector * vector, self.of_found, found)


def _centred(point: Tensor) -> Tensor:
    return point - point.mean(-1, keepdim=True)


def _inverse_at_zero(products: Tensor, scale: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """Return a penalty [feature, 1, 1] and the inverse of the Hessian at zero weights.

    The Hessian is `scale` · `products`, with the penalty added to the diagonal. Its inverse is the preconditioner for
    all L2 penalties in `l2`. The returned penalty is the geometric mean of the smallest and the largest value in `l2`.
    If this mean is too small for the precision of the Newton steps, a larger penalty is used.
    """
    traces = products.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * scale
    dtype = torch.float64 if bool((l2.min() < SMALLEST_PENALTY * traces).any()) else torch.float32
    penalty = (l2.min() * l2.max()).sqrt()
    penalty = penalty.clamp_min(16 * torch.finfo(dtype).eps * traces)
    hessian = products.to(dtype) * scale.to(dtype)
    hessian.diagonal(dim1=-2, dim2=-1).add_(penalty[..., 0])
    return penalty, torch.cholesky_inverse(torch.linalg.cholesky(hessian))


def _newton_step(problem: _Primal | _Dual, curvature: Tensor, gradient: Tensor, active: Tensor) -> Tensor:
    """Approximate the Newton step −H⁻¹g by conjugate gradients, preconditioned with the Hessian at zero weights.

    Fits that are not `active` get a step of 0.
    """
    dtype = problem.inverse.dtype
    curvature, rest = curvature.to(dtype), -gradient.to(dtype)
    step = torch.zeros_like(rest)
    along, image = problem.precondition(rest)
    size = (rest * image).sum(-1)
    active = active & (size > 0)
    enough = INNER_FACTOR * size
    for _ in range(MOST_INNER):
        product = problem.hessian(along, image, curvature)
        far = torch.where(active, size / (product * image).sum(-1), 0.0)[..., None]
        step.addcmul_(far, along)
        rest.addcmul_(far, product, value=-1)
        found, found_image = problem.precondition(rest)
        new_size = (rest * found_image).sum(-1)
        active = active & (new_size > enough)
        if not active.any():
            break
        ratio = torch.where(active, new_size / size, 0.0)[..., None]
        along, image = torch.addcmul(found, ratio, along), torch.addcmul(found_image, ratio, image)
        size = new_size
    return step
