"""Solvers that fit linear probes for all layers and penalties at once. Weights are accurate to about 10⁻⁵.

The solvers take finite, standardised `features` [feature, row, d], a `target` [row] of labels or expected accuracies in
[0, 1], and one or more L2 `penalties` λ > 0. They return weights [penalty, feature, d] and biases [penalty, feature]
with the dtype and device of the features.

Solutions are computed in float64. In float32, ridge regression had errors of up to 10⁻³. The results do not depend on
the number of CPU threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from extract.errors import InputError
from probes.fitting.newton import minimise

#: Maximum ratio of two penalties for which logistic regressions are fitted together.
MOST_RATIO = 1e4
#: Maximum size in bytes of a chunk of float64 features that `logistic` fits together on a CPU.
CPU_CHUNK_BYTES = 2**23
#: The same limit for all solvers on a GPU.
GPU_CHUNK_BYTES = 2**28


def ridge(features: Tensor, target: Tensor, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Fit ridge regression. The bias is not penalised.

    .. math:: \min_{w,b} \tfrac1{2n} \sum_i (y_i - w x_i - b)^2 + \tfrac\lambda2 \lVert w \rVert^2

    where n is the number of rows. The solution equals that of scikit-learn's `Ridge` with alpha = λ n.

    Raises:
        InputError: If a penalty is not positive.
    """
    share = check_fit(target, penalties)
    root, mean_target = share.sqrt(), share @ target.double()
    centred = (root * (target.double() - mean_target))[:, None]

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        weighted = rows.mul_(root[:, None])
        in_rows = rows.shape[1] < rows.shape[2]
        products = weighted @ weighted.mT if in_rows else weighted.mT @ weighted
        right_side = (centred if in_rows else weighted.mT @ centred).expand(*products.shape[:-1], 1)
        solution, diagonal, added = [], products.diagonal(dim1=-2, dim2=-1), 0.0
        for penalty in penalties:  # changes the diagonal in place
            diagonal += penalty - added
            added = penalty
            solution.append(torch.cholesky_solve(right_side, torch.linalg.cholesky(products))[..., 0])
        found = torch.stack(solution, dim=-2)
        found = found @ weighted if in_rows else found
        return found, mean_target.expand(found.shape[:2])

    return _solve_centred(features, share, solve)


def logistic(features: Tensor, target: Tensor, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Fit L2-penalised logistic regression on soft labels. The bias is not penalised.

    .. math:: \min_{w,b} \tfrac1n \sum_i [\log(1 + e^{z_i}) - y_i z_i] + \tfrac\lambda2 \lVert w \rVert^2, \quad
        z_i = w x_i + b

    where n is the number of rows. The solution equals that of scikit-learn's `LogisticRegression` with C = 1 / (λ n) on
    two copies of each row. The positive copy has sample weight y_i, and the negative copy has sample weight 1 − y_i.

    Raises:
        InputError: If a penalty is not positive or is too small for convergence, or if the targets are all 0 or all 1.
    """
    share = check_fit(target, penalties, both=True)
    l2 = torch.tensor(list(penalties), dtype=torch.float64, device=features.device)
    groups: list[list[int]] = []  # indices of penalties that are fitted together
    for index in l2.argsort().tolist():
        if not groups or penalties[index] > MOST_RATIO * penalties[groups[-1][0]]:
            groups.append([])
        groups[-1].append(index)
    place = torch.tensor([index for group in groups for index in group], device=features.device).argsort()

    def solve(rows: Tensor) -> tuple[Tensor, Tensor]:
        weights, biases = zip(*(minimise(rows, target.double(), l2[group]) for group in groups), strict=True)
        return torch.cat(weights, 1)[:, place], torch.cat(biases, 1)[:, place]

    return _solve_centred(features, share, solve, CPU_CHUNK_BYTES)


def difference_of_means(features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute difference-of-means probes (arXiv 2509.10625) with weights w = μ₁ − μ₀ and bias b = −w·(μ₁ + μ₀)/2.

    μ₁ and μ₀ are weighted means of the features. A row with soft label y has weight y in μ₁ and weight 1 − y in μ₀. The
    penalty axis of the results has length 1. The scores are not log-odds.

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
    """Check the arguments of a solver, and return equal row weights [row] float64 that sum to 1.

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
    features: Tensor, share: Tensor, solve: Callable[[Tensor], tuple[Tensor, Tensor]], cpu_chunk_bytes: int = 0
) -> tuple[Tensor, Tensor]:
    """Centre features and fit probes, in chunks. Return weights [penalty, feature, d] and biases [penalty, feature].

    `solve` maps centred rows [chunk, row, d] to weights [chunk, penalty, d] and biases [chunk, penalty].
    """

    def solve_chunk(chunk: Tensor) -> tuple[Tensor, Tensor]:
        # `features` can be a transposed view. The copy is centred in place to avoid a second copy.
        rows = chunk.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        centre = share @ rows
        weight, bias = solve(rows.sub_(centre[:, None]))
        return weight, bias - (weight @ centre[..., None])[..., 0]

    chunk_bytes = GPU_CHUNK_BYTES if features.is_cuda else cpu_chunk_bytes
    chunks = features.split(max(1, chunk_bytes // max(1, 8 * features[0].numel())))
    if features.is_cuda:
        weights, biases = zip(*map(solve_chunk, chunks), strict=True)
    else:
        n_threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                weights, biases = zip(*pool.map(solve_chunk, chunks), strict=True)
        finally:
            torch.set_num_threads(n_threads)  # the initializer also changed the default for later threads
    weight, bias = (torch.cat(parts).transpose(0, 1).to(features.dtype) for parts in (weights, biases))
    return weight.contiguous(), bias.contiguous()
