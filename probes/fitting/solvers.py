"""Linear probes without gradient descent: every layer and penalty solved at once, each coefficient to within 10⁻⁵.

All take `features` [feature, row, d], finite and standardised; `target` [row] in [0, 1], a label or the expected
accuracy p̂; and `penalties` λ > 0, one or more. They return weights [penalty, feature, d] and biases [penalty, feature]
in the dtype of the features, on their device. The arithmetic is float64: in float32 ridge on 31 layers of 288 rows came
out wrong by up to 10⁻³ at λ = 0.001. Of n rows with fewer coordinates than rows it is done in d × d, and else (the
dual) with the row × row Gram matrix X̃X̃ᵀ of centred rows, because w = X̃ᵀa by the representer theorem.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from extract.errors import InputError

#: Bytes of float64 rows that are worked on together on a GPU, where more than one feature fits.
CHUNK_BYTES = 2**28
#: Newton steps after which a minimum should be found; six are usual, 20 where classes separate and λ = 10⁻⁶.
MOST_STEPS = 100
#: Conjugate gradients for one Newton step; what is missing is made up for in the next.
MOST_INNER = 250


def ridge(features: Tensor, target: Tensor, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Least squares with an L2 penalty on the direction, the bias free.

    .. math:: \min_{w,b} \tfrac1{2n} \sum_i (y_i - w x_i - b)^2 + \tfrac\lambda2 \lVert w \rVert^2

    scikit-learn's `Ridge` at alpha = λ n. Its bias makes up for the means, so rows and target are centred first.
    With n rows, m = min(n, d) and P penalties a feature costs n·m·d multiply-adds for one Gram matrix, m³/6 for each
    penalty's Cholesky factor and 2·n·d·P for the way back; an eigendecomposition for all penalties some 9·m³.

    Raises:
        InputError: A penalty that isn't above 0.
    """
    share = _check(target, penalties)
    root, mean_target = share.sqrt(), share @ target.double()
    centred = (root * (target.double() - mean_target))[:, None]

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        weighted = rows.mul_(root[:, None])
        if len(rows) == 1:
            weighted = weighted[0]  # torch's batched kernels take half as long again for a batch of one
        in_rows = rows.shape[1] < rows.shape[2]
        gram = weighted @ weighted.mT if in_rows else weighted.mT @ weighted
        right_side = (centred if in_rows else weighted.mT @ centred).expand(*gram.shape[:-1], 1)
        solution, diagonal, added = [], gram.diagonal(dim1=-2, dim2=-1), 0.0
        for penalty in penalties:  # the diagonal changes in place: no copy for each penalty
            diagonal += penalty - added
            added = penalty
            solution.append(torch.cholesky_solve(right_side, torch.linalg.cholesky(gram))[..., 0])
        found = torch.stack(solution, dim=-2)
        found = (found @ weighted if in_rows else found).reshape(len(rows), len(penalties), -1)
        return found, mean_target.expand(found.shape[:2])

    return _solve_centred(features, share, solve)


def logistic(features: Tensor, target: Tensor, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Logistic regression on soft labels with an L2 penalty on the direction, the bias free.

    .. math:: \min_{w,b} \tfrac1n \sum_i [\log(1 + e^{z_i}) - y_i z_i] + \tfrac\lambda2 \lVert w \rVert^2, \quad
        z_i = w x_i + b

    scikit-learn's `LogisticRegression` at C = 1 / (λ n), where a soft label stands for two rows of weights y and
    1 − y. The penalty keeps the minimum finite where the classes separate. With n rows, m = min(n, d) and P penalties a
    feature costs n·m·d multiply-adds for one Gram matrix, some 9·m³ for its eigendecomposition, which serves all
    penalties, and 2·n·m·P for each of some 30 steps of conjugate gradients (six of Newton's).

    Raises:
        InputError: A penalty that isn't above 0, or so little that rounding hides the minimum; or a target that is 0 or
            1 throughout.
    """
    share = _check(target, penalties, both=True)
    l2 = torch.tensor(list(penalties), dtype=torch.float64, device=features.device)

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        return _minimise(rows, target.double(), share, l2, dual=rows.shape[1] < rows.shape[2])

    return _solve_centred(features, share, solve)


def difference_of_means(features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """From the mean of the wrong to the mean of the right: w = μ₁ − μ₀, and 0 half-way: b = −w·(μ₁ + μ₀)/2.

    A soft label counts for y in μ₁ and for 1 − y in μ₀. No hyperparameter, so the penalty axis is of length 1; the
    score is no log-odds until it is calibrated (2509.10625). 2·n·d multiply-adds a feature.

    Raises:
        InputError: A target that is 0 or 1 throughout.
    """
    share = _check(target, both=True)
    mass = torch.stack([share * target.double(), share * (1 - target.double())])
    mass = mass / mass.sum(1, keepdim=True)

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        right, wrong = (mass @ rows)[:, :, None].unbind(1)  # from the common mean, which keeps digits
        return right - wrong, -((right - wrong) * (right + wrong) / 2).sum(-1)

    return _solve_centred(features, share, solve)


def _check(target: Tensor, penalties: Sequence[float] = (), both: bool = False) -> Tensor:
    """Equal weights [row] float64 of sum 1, once penalties and target, where it has to hold `both`, are in order."""
    if any(penalty <= 0 for penalty in penalties):
        raise InputError(
            f"Expected `l2` to be one or more penalties above 0, but got {list(penalties)}. Without one a closed form "
            "has no single answer; 0.01 is a small one."
        )
    mean_target = float(target.double().mean())
    if both and not 0 < mean_target < 1:
        raise InputError(
            f"Expected `target` to hold right and wrong answers, but all {len(target)} rows are {mean_target:g}. Use "
            "more or other questions."
        )
    return torch.full_like(target, 1 / len(target), dtype=torch.float64)


def _solve_centred(
    features: Tensor, share: Tensor, solve: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Weights [penalty, feature, d] and biases [penalty, feature] of all features, some at a time.

    On a CPU one by one, whose matrices then stay in the cache. On a GPU as many as fit into the chunk. `solve` takes
    centred rows [chunk, row, d] float64, which it may overwrite; it returns [chunk, penalty, d] and [chunk, penalty].
    """
    chunk_size = max(1, CHUNK_BYTES // max(1, 8 * features[0].numel())) if features.is_cuda else 1
    weights, biases = [], []
    for chunk in features.split(chunk_size):
        rows = chunk.to(torch.float64, memory_format=torch.contiguous_format)  # the features of a row lie apart
        centre = share @ rows
        weight, bias = solve(rows - centre[:, None])
        weights.append(weight)
        biases.append(bias - (weight @ centre[..., None])[..., 0])
    weight, bias = (torch.cat(parts).transpose(0, 1).to(features.dtype) for parts in (weights, biases))
    return weight.contiguous(), bias.contiguous()


def _minimise(rows: Tensor, target: Tensor, share: Tensor, l2: Tensor, dual: bool) -> tuple[Tensor, Tensor]:
    """Weights [feature, penalty, d] and biases [feature, penalty] of the penalised logistic regression.

    From w = 0 and the bias of the mean: Newton steps, each solved by conjugate gradients to a tenth of the gradient and
    ever closer as it falls (Nocedal & Wright, Numerical Optimization, alg. 7.1), and halved until the loss falls. A
    candidate ends when its gradient is below 10⁻⁵ of its penalty, which puts every weight within 10⁻⁵ of the minimum.

    The work is done in principal coordinates, as many as rows in the dual, or d. One more coordinate is 1 in every row;
    its weight is the bias, which no penalty holds back.

    Takes centred `rows` [feature, row, d], `target` and equal weights `share` [row], and `l2` [penalty], all float64.
    """
    squares, vectors = torch.linalg.eigh(rows @ rows.mT if dual else rows.mT @ rows)
    told_apart = squares > 1e-13 * squares[..., -1:]  # below that an eigenvalue is rounding
    squares = torch.where(told_apart, squares, 0.0)
    roots = squares.sqrt()
    coordinates = pad(vectors * roots[:, None] if dual else rows @ vectors, (0, 1), value=1.0)
    mean_squares = pad(squares / rows.shape[1], (0, 1), value=1.0)
    penalty = pad(l2[:, None].expand(-1, squares.shape[1]), (0, 1))

    start = squares.new_zeros(len(rows), len(l2), squares.shape[1])
    point = pad(start, (0, 1), value=float(torch.logit(share @ target)))
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
            back = vectors * torch.where(told_apart, 1 / roots, 0.0)[:, None] if dual else vectors
            found = point[..., :-1] @ back.mT
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
    coordinates; that diagonal is the preconditioner. Candidates that are not active stay where they are.
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
