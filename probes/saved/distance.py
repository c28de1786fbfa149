"""Distance between a hidden state and a set of hidden states.

The distance D is the Mahalanobis distance under probabilistic PCA (Tipping and Bishop, Probabilistic Principal
Component Analysis, 1999), divided by √d:

    D² = 1/d · [Σ_j (v_j · x)² / λ_j + (‖x‖² − Σ_j (v_j · x)²) / ρ]

Here, x is the standardised hidden state, and d is its number of coordinates. The v_j are the leading principal
directions of the set, and the λ_j are the variances in these directions. ρ is the mean variance in all other
directions.
"""

import torch
from torch import Tensor, nn

from probes.saved.head import zeros

#: Maximum number of principal directions, and number of quantiles that summarise the distances.
RANK, N_QUANTILES = 64, 101
#: Percentile above which a distance counts as novel.
START = 99
#: Lower bound on denominators.
TINY = torch.finfo(torch.float32).tiny


class Distance(nn.Module):
    """Distance of a row (a question or an answer) from the rows of a set. See the module docstring for the formula.

    The hidden state consists of the first `n_hidden` features of a row.

    Attributes:
        mean, scale: Mean and standard deviation of the set's rows, each [n_hidden]. `scale` is infinite for constant
            coordinates.
        directions: Principal directions v, [rank, n_hidden].
        variances: Variances λ in these directions, [rank].
        rest: Mean variance ρ in all other directions.
        quantiles: Percentiles 0 to 100 of the distances of the set's rows, [101]. Each row's distance comes from a
            fit that excludes its fold.
        full: Distance at which `remoteness` reaches 1. It is at least the 99th percentile.
    """

    def __init__(self, n_hidden: int, rank: int) -> None:
        super().__init__()
        self.n_hidden, self.rank = n_hidden, rank
        self.mean, self.scale = zeros(n_hidden), nn.Buffer(torch.ones(n_hidden))
        self.directions, self.variances, self.rest = zeros(rank, n_hidden), zeros(rank), zeros()
        self.quantiles, self.full = zeros(N_QUANTILES), zeros()

    def distance(self, features: Tensor) -> Tensor:
        """Return the distances [row] of `features` [row, width] from the training data."""
        x = (features[:, : self.n_hidden] - self.mean) / self.scale
        squares = (x @ self.directions.T).square()
        away = (x.square().sum(1) - squares.sum(1)).clamp_min(0)
        return (((squares / self.variances).sum(1) + away / self.rest) / self.n_hidden).sqrt()

    def percentile(self, distance: Tensor) -> Tensor:
        """Return the percentile rank, in [0, 1], of each distance [row] relative to `quantiles`."""
        above = torch.searchsorted(self.quantiles, distance.contiguous()).clamp(1, N_QUANTILES - 1)
        low, high = self.quantiles[above - 1], self.quantiles[above]
        step = ((distance - low) / (high - low).clamp_min(TINY)).clamp(0, 1)
        return (above - 1 + step) / (N_QUANTILES - 1)

    def remoteness(self, distance: Tensor) -> Tensor:
        """Map distances [row] to [0, 1]: 0 up to the 99th percentile, then rising linearly to 1 at `full`."""
        start = self.quantiles[START]
        return ((distance - start) / (self.full - start).clamp_min(TINY)).clamp(0, 1)

    def problem(self, name: str = "novelty") -> str | None:
        """Return a short description of the first invalid value, or None.

        The description refers to this module as `name`.
        """
        for key, tensor in self.named_buffers(recurse=False):
            wrong = ~tensor.isfinite() & (key != "scale")
            if key in ("scale", "variances", "rest"):
                wrong |= ~(tensor > 0)
            if wrong.any():
                return f"`{name}.{key}` contains {float(tensor[wrong].flatten()[0])}"
        if (self.quantiles.diff() < 0).any():
            return f"`{name}.quantiles` is decreasing"
        if self.full < self.quantiles[START]:
            return f"`{name}.full` is {float(self.full)}, below the 99th percentile"
        return None


def fraction_problem(name: str, value: Tensor) -> str | None:
    """Return a short error description, or None if the number is in [0, 1]."""
    return None if 0 <= value <= 1 else f"`{name}` is {float(value)}, outside [0, 1]"
