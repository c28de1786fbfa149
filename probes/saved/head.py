"""Heads: from the features of one layer and position to a score. A saved probe is a head with its calibrator."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from probes.fitting.latent_model import DRAWS, encode, sampled_score

#: Share of two float32 vectors' squared lengths below which their squared distance is rounding.
ROUNDING = 1e-12
_CHUNK = 2**22  # distances that are in memory together


class Head(nn.Module):
    """Base: a standardiser, and a subclass's way from standardised hidden states to a score.

    A subclass keeps everything in buffers. It is created from `d_model`, the width of the hidden state, and the whole
    numbers named in `sizes`, which are also attributes of it.
    """

    #: Name of the kind in a saved probe.
    kind: ClassVar[str]
    #: Further sizes that `__init__` takes, with the largest that a saved probe may have.
    sizes: ClassVar[Mapping[str, int]] = {}

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mean, self.scale = zeros(d_model), nn.Buffer(torch.ones(d_model))

    def forward(self, hidden: Tensor) -> Tensor:
        """Scores [...] float32, higher = more likely right, from hidden states [..., d_model] of any float dtype."""
        return self.score((hidden.float() - self.mean) / self.scale)

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        raise NotImplementedError

    def filled(self, **values: Tensor) -> Self:
        """This head with the given buffers."""
        for name, value in values.items():
            getattr(self, name).copy_(value.detach())
        return self

    def problem(self) -> str | None:
        """What no training gives, in a few words; None for a head that can be used.

        All values are finite but those of `scale`, which are above 0, and infinite for what is left out.
        """
        for name, tensor in self.state_dict().items():
            wrong = ~(tensor > 0) if name == "scale" else ~tensor.isfinite()
            if wrong.any():
                return f"`{name}` holds {float(tensor[wrong].flatten()[0])}"
        return None


def zeros(*shape: int) -> nn.Buffer:
    """A buffer of zeros, to be filled."""
    return nn.Buffer(torch.zeros(shape))


class LinearHead(Head):
    """w · (h − mean) / scale + b."""

    kind = "linear"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.weight, self.bias = zeros(d_model), zeros()

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        return standardised @ self.weight + self.bias


class MLPHead(Head):
    """w₂ · relu(W₁ (h − mean) / scale + b₁) + b₂, with a hidden layer of width `hidden`."""

    kind = "mlp"
    sizes: ClassVar[Mapping[str, int]] = {"hidden": 2**14}

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__(d_model)
        self.hidden = hidden
        self.weight_in, self.bias_in = zeros(d_model, hidden), zeros(hidden)
        self.weight, self.bias = zeros(hidden), zeros()

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        return torch.relu(standardised @ self.weight_in + self.bias_in) @ self.weight + self.bias


class LatentHead(Head):
    """Median cosine of answers that are drawn around what an encoder predicts; see `probes.fitting.latent_model`.

    `hidden` is the width of the encoder's hidden layer, and `components` those of an answer's embedding.
    """

    kind = "latent"
    sizes: ClassVar[Mapping[str, int]] = {"hidden": 2**14, "components": 2**13}

    def __init__(self, d_model: int, hidden: int, components: int) -> None:
        super().__init__(d_model)
        self.hidden, self.components = hidden, components
        self.weight_in, self.bias_in = zeros(d_model, hidden), zeros(hidden)
        self.weight, self.bias = zeros(hidden, 2 * components), zeros(2 * components)
        self.shared, self.noise = zeros(), zeros(DRAWS, components)

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        predicted = encode(standardised, self.weight_in, self.bias_in, self.weight, self.bias)
        return sampled_score(predicted, self.shared, self.noise)

    def problem(self) -> str | None:
        """As for every head, and the variance `shared` is not below 0."""
        return super().problem() or (f"`shared` is {float(self.shared)}, below 0" if self.shared < 0 else None)


class KNNHead(Head):
    """Mean label of the `n_neighbors` nearest of `n_rows` training rows; see `neighbour_means`."""

    kind = "knn"
    sizes: ClassVar[Mapping[str, int]] = {"n_rows": 2**24, "n_neighbors": 2**24}

    def __init__(self, d_model: int, n_rows: int, n_neighbors: int) -> None:
        super().__init__(d_model)
        self.n_rows, self.n_neighbors = n_rows, n_neighbors
        self.points, self.labels = zeros(n_rows, d_model), zeros(n_rows)

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] in [0, 1] from standardised hidden states [..., d_model]."""
        mps = standardised.device.type == "mps"  # which has no float64
        where = torch.device("cpu") if mps else standardised.device
        rows = standardised.reshape(-1, standardised.shape[-1]).to(where)
        mean = neighbour_means(rows, self.points.to(where), self.labels.to(where), [self.n_neighbors])
        return mean.reshape(standardised.shape[:-1]).float().to(standardised.device)

    def problem(self) -> str | None:
        """As for every head, there are as many rows as neighbours, and labels are in [0, 1]."""
        if self.n_neighbors > self.n_rows:
            return f"`n_neighbors` is {self.n_neighbors}, of {self.n_rows} rows"
        outside = self.labels[(self.labels < 0) | (self.labels > 1)]
        return super().problem() or (f"`labels` holds {float(outside[0])}" if len(outside) else None)


def neighbour_means(queries: Tensor, points: Tensor, labels: Tensor, n_neighbors: Sequence[int]) -> Tensor:
    """Mean label of the nearest points, for several numbers of neighbours; in float64.

    scikit-learn's `KNeighborsRegressor(weights="distance")`, and for labels 0 and 1 its classifier's probability of 1:
    where points lie at no distance at all, their mean. Which of several points at the same distance count as the last
    neighbours is arbitrary there; here all of them do, and share the places that are left.

    Args:
        queries: [row, d] finite; a row with NaN gives NaN.
        points: [point, d] finite.
        labels: [point].
        n_neighbors: Numbers of neighbours, from 1 to the number of points.

    Returns:
        [n_neighbors, row] float64.

    >>> points, labels = torch.tensor([[0.0], [3.0], [9.0]]), torch.tensor([0.0, 1.0, 1.0])
    >>> neighbour_means(torch.tensor([[1.0], [3.0]]), points, labels, [1, 2])  # ⅔ of 0 and ⅓ of 1; a point itself
    tensor([[0.0000, 1.0000],
            [0.3333, 1.0000]], dtype=torch.float64)
    """
    points, labels = points.double(), labels.double()
    lengths, found = points.square().sum(1), []
    for chunk in queries.split(max(1, _CHUNK // len(points))):
        squared, slack, which = _nearest(chunk.double(), points, lengths, max(n_neighbors))
        found.append(torch.stack([_mean(squared, slack, labels[which], k) for k in n_neighbors]))
    return torch.cat(found, dim=1)


def _nearest(rows: Tensor, points: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest points to each row, nearest first, with all others that are as far as the last one, and some more.

    Returns:
        Their squared distances, how far these may be off, and which points they are: [row, near] each.
    """
    sizes = rows.square().sum(1, keepdim=True) + lengths
    every, n_near = torch.addmm(sizes, rows, points.T, alpha=-2), k
    while True:  # until what is left is farther away than the last neighbour
        n_near = min(2 * n_near, len(points))
        squared, which = every.topk(n_near, dim=1, largest=False)
        slack = ROUNDING * sizes.gather(1, which)
        if n_near == len(points) or not (squared[:, -1] <= squared[:, k - 1] + 2 * slack[:, -1]).any():
            return torch.where(squared <= slack, 0.0, squared), slack, which  # NaN stays


def _mean(squared: Tensor, slack: Tensor, labels: Tensor, k: int) -> Tensor:
    """Mean label [row] of the k nearest points, given near ones in their order, [row, near] each."""
    edge = squared[:, k - 1 : k]
    nearer, tied = squared < edge - slack, (squared - edge).abs() <= slack
    counted = nearer + tied * ((k - nearer.sum(1, keepdim=True)) / tied.sum(1, keepdim=True))
    here = (squared == 0) & (counted > 0)
    weight = torch.where(here.any(1, keepdim=True), counted * here, counted / squared.sqrt())
    return (weight * labels).sum(1) / weight.sum(1)


#: Closed list of heads that a saved probe may name; nothing else is ever loaded.
HEADS: dict[str, type[Head]] = {head.kind: head for head in (LinearHead, MLPHead, LatentHead, KNNHead)}
