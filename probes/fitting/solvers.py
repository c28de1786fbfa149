"""Solvers that fit linear probes for all layers and penalties at once. Coefficients are accurate to 10⁻⁵.

The solvers take finite, standardised `features` [feature, row, d] and a `target` [row] of labels or expected accuracies
in [0, 1]. `penalties` contains one or more L2 penalties λ > 0. The results are weights [penalty, feature, d] and biases
[penalty, feature] with the dtype and device of the features.

Solutions are computed in float64, because ridge regression in float32 had errors of up to 10⁻³ with a penalty of 0.001
(31 layers, 288 rows). If there are fewer rows than coordinates, the dual problem is solved. On a CPU, each layer is
fitted by a single thread, and the layers are divided among torch's threads. The results therefore do not depend on the
number of threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from extract.errors import InputError

#: Maximum size in bytes of a chunk of float64 features that are fitted together on a GPU.
CHUNK_BYTES = 2**28
#: Maximum number of Newton steps. Most problems take six steps. Separable classes with λ = 10⁻⁶ take 20.
MOST_STEPS = 100
#: Smallest penalty, relative to the mean squared norm of the rows, for which steps are computed in float32.
SMALLEST_PENALTY = 1e-6
#: Maximum number of conjugate-gradient iterations per Newton step. Later Newton steps correct the remaining error.
MOST_INNER = 250


def ridge(features: Tensor, target: Tensor, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Fit ridge regression, which is least squares with an L2 penalty on the weights but not on the bias.

    .. math:: \min_{w,b} \tfrac1{2n} \sum_i (y_i - w x_i - b)^2 + \tfrac\lambda2 \lVert w \rVert^2

    where x_i and y_i are the features and the target of row i, n is the number of rows, w are the weights, b is the
    bias and λ is the penalty. The solution equals that of scikit-learn's `Ridge` with alpha = λ n.

    With d coordinates per row, m = min(n, d) and P penalties, fitting one feature (such as one layer) takes n·m·d
    multiply-adds for the Gram matrix, m³/6 per penalty for the Cholesky factor, and 2·n·d·P for the weights. An
    eigendecomposition would take about 9·m³.

    Raises:
        InputError: If a penalty is not positive.
    """
    share = check_fit(target, penalties)
    root, mean_target = share.sqrt(), share @ target.double()
    centred = (root * (target.double() - mean_target))[:, None]

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        weighted = rows.mul_(root[:, None])
        if len(rows) == 1:
            weighted = weighted[0]  # torch's batched kernels are 1.5 times slower for a batch of one
        in_rows = rows.shape[1] < rows.shape[2]
        gram = weighted @ weighted.mT if in_rows else weighted.mT @ weighted
        right_side = (centred if in_rows else weighted.mT @ centred).expand(*gram.shape[:-1], 1)
        solution, diagonal, added = [], gram.diagonal(dim1=-2, dim2=-1), 0.0
        for penalty in penalties:  # the diagonal is changed in place, without a copy per penalty
            diagonal += penalty - added
            added = penalty
            solution.append(torch.cholesky_solve(right_side, torch.linalg.cholesky(gram))[..., 0])
        found = torch.stack(solution, dim=-2)
        found = (found @ weighted if in_rows else found).reshape(len(rows), len(penalties), -1)
        return found, mean_target.expand(found.shape[:2])

    return _solve_centred(features, share, solve)


def logistic(features: Tensor, target: Tensor, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Fit logistic regression on soft labels, with an L2 penalty on the weights but not on the bias.

    .. math:: \min_{w,b} \tfrac1n \sum_i [\log(1 + e^{z_i}) - y_i z_i] + \tfrac\lambda2 \lVert w \rVert^2, \quad
        z_i = w x_i + b

    where x_i and y_i are the features and the label of row i, n is the number of rows, w are the weights, b is the bias
    and λ is the penalty. The solution equals that of scikit-learn's `LogisticRegression` with C = 1 / (λ n), if each
    row is replaced by a positive row with sample weight y_i and a negative row with sample weight 1 − y_i.

    With d coordinates per row, m = min(n, d) and P penalties, fitting one feature (such as one layer) takes n·m·d
    multiply-adds for the Gram matrix, about 9·m³ for its eigendecomposition, and 2·n·m·P for each of about 30
    conjugate-gradient iterations. The Gram matrix and the gradients are computed in float64. All other steps are
    computed in float32, unless the penalties are tiny.

    Raises:
        InputError: If a penalty is not positive or is too small for convergence, or if the targets are all 0 or all 1.
    """
    share = check_fit(target, penalties, both=True)
    l2 = torch.tensor(list(penalties), dtype=torch.float64, device=features.device)

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        # torch's batched kernels are slower for a batch of one
        found = _minimise(rows[0] if len(rows) == 1 else rows, target.double(), share, l2)
        weight, bias = (values.reshape(len(rows), len(l2), -1) for values in found)
        return weight, bias[..., 0]

    return _solve_centred(features, share, solve)


def difference_of_means(features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute difference-of-means probes (arXiv 2509.10625) with weights w = μ₁ − μ₀ and bias b = −w·(μ₁ + μ₀)/2.

    μ₁ and μ₀ are weighted means of the features. A row with soft label y has weight y in μ₁ and 1 − y in μ₀. There are
    no penalties, so the penalty axis of the results has length 1. The scores of these probes are not log-odds.

    Raises:
        InputError: If the targets are all 0 or all 1.
    """
    share = check_fit(target, both=True)
    mass = torch.stack([share * target.double(), share * (1 - target.double())])
    mass = mass / mass.sum(1, keepdim=True)

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        right, wrong = (mass @ rows)[:, :, None].unbind(1)  # relative to the common mean, for precision
        return right - wrong, -((right - wrong) * (right + wrong) / 2).sum(-1)

    return _solve_centred(features, share, solve)


def check_fit(target: Tensor, penalties: Sequence[float] = (), both: bool = False) -> Tensor:
    """Check the arguments and return equal row weights, [row] float64 with sum 1.

    If `both` is true, the targets must not be all 0 or all 1.
    """
    if any(penalty <= 0 for penalty in penalties):
        raise InputError(
            f"Expected `l2` to contain only penalties above 0, but got {list(penalties)}. Without a penalty, the "
            "solution is not unique. Use a small penalty, such as 0.01."
        )
    mean_target = float(target.double().mean())
    if both and not 0 < mean_target < 1:
        raise InputError(
            f"Expected `target` to contain right and wrong answers, but all {len(target)} values are {mean_target:g}. "
            "Use more or different questions."
        )
    return torch.full_like(target, 1 / len(target), dtype=torch.float64)


def _solve_centred(
    features: Tensor, share: Tensor, solve: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Fit chunks of centred features, and return weights [penalty, feature, d] and biases [penalty, feature].

    On a CPU, a chunk is a single feature, so that it fits in the cache. On a GPU, it has up to `CHUNK_BYTES` bytes.
    `solve` maps centred rows [chunk, row, d] to weights [chunk, penalty, d] and biases [chunk, penalty].
    """

    def solve_chunk(chunk: Tensor) -> tuple[Tensor, Tensor]:
        rows = chunk.to(torch.float64, memory_format=torch.contiguous_format)  # `features` can be a transposed view
        centre = share @ rows
        weight, bias = solve(rows - centre[:, None])
        return weight, bias - (weight @ centre[..., None])[..., 0]

    if features.is_cuda:
        found = map(solve_chunk, features.split(max(1, CHUNK_BYTES // max(1, 8 * features[0].numel()))))
        weights, biases = zip(*found, strict=True)
    else:
        n_threads = torch.get_num_threads()
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            weights, biases = zip(*pool.map(solve_chunk, features.split(1)), strict=True)
        torch.set_num_threads(n_threads)  # the initializer also changed the default of later threads
    weight, bias = (torch.cat(parts).transpose(0, 1).to(features.dtype) for parts in (weights, biases))
    return weight.contiguous(), bias.contiguous()


def _minimise(rows: Tensor, target: Tensor, share: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """Fit penalised logistic regression and return weights [..., penalty, d] and biases [..., penalty].

    The inexact Newton method with line search (Nocedal & Wright, Numerical Optimization, alg. 7.1) starts from zero
    weights. Each step is found by conjugate gradients, with a residual of at most a tenth of the gradient norm. If the
    gradient norm is below 10⁻⁵ times the penalty, each weight is within 10⁻⁵ of its optimal value, and the candidate
    has converged.

    A step is computed in principal coordinates. An additional coordinate is 1 in every row, and its weight is the bias.
    In the dual problem, the weight vector is a linear combination of the rows, and the coefficients of this combination
    are fitted. The `rows` [..., row, d] are centred, and `share` [row] are the row weights.
    """
    n, d = rows.shape[-2:]
    dual = n < d
    gram = rows @ rows.mT if dual else rows.mT @ rows
    basis = gram if dual else rows.mT  # logits = coefficients @ basis + bias
    traces = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    tiny = bool((l2.min() < SMALLEST_PENALTY * traces / n).any())
    squares, vectors = torch.linalg.eigh(gram.to(torch.float64 if tiny else torch.float32))
    eps = torch.finfo(squares.dtype).eps
    squares = squares.clamp_min(eps * squares[..., -1:]).clamp_min(torch.finfo(squares.dtype).tiny)  # rounding errors
    roots = squares.sqrt()[..., None, :]
    coordinates = pad(vectors * roots if dual else rows.to(vectors.dtype) @ vectors, (0, 1), value=1.0)
    mean_squares = pad(squares / n, (0, 1), value=1.0)[..., None, :]
    penalty = pad(l2[:, None].expand(-1, squares.shape[-1]), (0, 1)).to(squares.dtype)

    point = rows.new_zeros(*rows.shape[:-2], len(l2), basis.shape[-2])
    bias = torch.logit(share @ target).expand(point.shape[:-1])
    products = rows.new_zeros(*point.shape[:-1], n)  # logits without the bias
    enough = (1e-5 * l2.clamp_max(0.1)).clamp_min(1e-12)

    def loss(point: Tensor, products: Tensor, bias: Tensor) -> Tensor:
        logits = products + bias[..., None]
        norm = (point * (products if dual else point)).sum(-1)  # of the weights, squared
        return (softplus(logits) - target * logits) @ share + l2 / 2 * norm

    value = loss(point, products, bias)
    for _ in range(MOST_STEPS):
        confidence = torch.sigmoid(products + bias[..., None])
        pull = share * (confidence - target)
        slopes = (pull if dual else pull @ rows) + l2[:, None] * point
        principal = slopes.to(vectors.dtype) @ vectors
        gradient = torch.cat([principal * roots if dual else principal, pull.sum(-1, keepdim=True).to(principal)], -1)
        active = gradient.norm(dim=-1) > enough
        if not active.any():
            return point @ rows if dual else point, bias
        curvature = (share * confidence * (1 - confidence)).to(vectors.dtype)
        step = _newton_step(coordinates, mean_squares, curvature, penalty, gradient, active)
        slope = (gradient * step).sum(-1)
        moves = ((step[..., :-1] / roots if dual else step[..., :-1]) @ vectors.mT).to(rows.dtype)
        steps = moves, moves @ basis, step[..., -1].to(rows.dtype)
        length = active.to(rows.dtype)
        while True:  # halve the step until the loss decreases sufficiently
            moved = (
                point + length[..., None] * steps[0],
                products + length[..., None] * steps[1],
                bias + length * steps[2],
            )
            new = loss(*moved)
            worse = new > value + 1e-4 * length * slope + 1e-14 * value.abs()
            if not worse.any():
                break
            length = torch.where(worse, length / 2, length)
            length = torch.where(length < 1e-9, 0.0, length)
        (point, products, bias), value = moved, new
    raise InputError(
        f"Expected `l2` to be large enough for logistic regression to converge, but {int(active.sum())} of "
        f"{active.numel()} fits did not converge within {MOST_STEPS} steps. The smallest penalty is "
        f"{float(l2.min()):g}. Use larger penalties."
    )


def _newton_step(
    coordinates: Tensor, mean_squares: Tensor, curvature: Tensor, penalty: Tensor, gradient: Tensor, active: Tensor
) -> Tensor:
    """Approximate the Newton step −H⁻¹g by preconditioned conjugate gradients.

    The Hessian is H = ZᵀDZ + diag(`penalty`), where Z are the `coordinates` of the rows, D = diag(`curvature`) and g is
    the `gradient`. The preconditioner is H with all entries of `curvature` replaced by their mean. It is diagonal
    because the columns of Z are orthogonal. Candidates that are not `active` get a step of 0.
    """
    inverse = 1 / (curvature.sum(-1, keepdim=True) * mean_squares + penalty)
    step, rest = torch.zeros_like(gradient), -gradient
    along = rest * inverse
    size = (rest * along).sum(-1)
    norm = gradient.norm(dim=-1)
    enough = norm * norm.sqrt().clamp_max(0.1)
    for _ in range(MOST_INNER):
        hessian = torch.addcmul((curvature * (along @ coordinates.mT)) @ coordinates, penalty, along)
        far = torch.where(active, size / (hessian * along).sum(-1), 0.0)[..., None]
        step.addcmul_(far, along)
        rest.addcmul_(far, hessian, value=-1)
        active = active & (rest.norm(dim=-1) > enough)
        if not active.any():
            break
        scaled = rest * inverse
        new_size = (rest * scaled).sum(-1)
        along = torch.addcmul(scaled, torch.where(active, new_size / size, 0.0)[..., None], along)
        size = new_size
    return step
