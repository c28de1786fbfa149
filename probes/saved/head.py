"""Heads, which are modules that map features to a score."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from probes.fitting.latent_model import DRAWS, encode, sampled_score

#: Rounding error of a squared distance, relative to the sum of the two squared lengths.
ROUNDING = 1e-12
CHUNK = 2**22  # number of distances in memory at once


class Head(nn.Module, ABC):
    """Base class for heads. A head standardises the features [d_model] of a question or answer and computes a score.

    To add a head, write a subclass of `VectorHead` or `SequenceHead` and add it to `probes.saved.heads`. Keep all
    tensors in buffers. `load_probe` creates the head from `d_model` and `sizes`, and restores its `state_dict`.

    Attributes:
        mean: Mean of the features over the training split, [d_model] float32.
        scale: Standard deviation over the training split, [d_model] float32; infinite for constant features.
    """

    #: Name of the head in config.json.
    kind: ClassVar[str]
    #: Upper limits of the integer arguments that follow `d_model` in `__init__`. The subclass stores these arguments as
    #: attributes.
    sizes: ClassVar[Mapping[str, int]] = {}

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mean, self.scale = zeros(d_model), nn.Buffer(torch.ones(d_model))

    @abstractmethod
    def forward(self, hidden: Any) -> Tensor:
        """Compute float32 scores from raw features. Higher means more likely to be right."""

    def filled(self, **values: Tensor) -> Self:
        """Copy the values into the buffers with the same names, and return the head."""
        for name, value in values.items():
            getattr(self, name).copy_(value.detach())
        return self

    def problem(self) -> str | None:
        """Return a short description of the first invalid value, or None.

        The values of `scale` must be positive and can be infinite. All other values must be finite.
        """
        for name, tensor in self.state_dict().items():
            wrong = ~(tensor > 0) if name == "scale" else ~tensor.isfinite()
            if wrong.any():
                return f"`{name}` contains {float(tensor[wrong].flatten()[0])}"
        return None


def zeros(*shape: int) -> nn.Buffer:
    """Create a buffer of zeros."""
    return nn.Buffer(torch.zeros(shape))


class VectorHead(Head):
    """Base class for heads that read one vector per question or answer."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute scores [...] float32 from raw features [..., d_model]."""
        return self.score((hidden.float() - self.mean) / self.scale)

    @abstractmethod
    def score(self, standardised: Tensor) -> Tensor:
        """Compute scores [...] float32 from standardised features [..., d_model] float32."""


class LinearHead(VectorHead):
    """Linear head with the score w · (h − mean) / scale + b."""

    kind = "linear"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.weight, self.bias = zeros(d_model), zeros()

    def score(self, standardised: Tensor) -> Tensor:
        """See `VectorHead.score`."""
        return standardised @ self.weight + self.bias


class CountsHead(VectorHead):
    """Classifier that predicts the number of right answers. For k answers, there are k + 1 classes.

    The score is the log-odds of the expected fraction of right answers.
    """

    kind = "counts"
    sizes: ClassVar[Mapping[str, int]] = {"n_classes": 2**14}

    def __init__(self, d_model: int, n_classes: int) -> None:
        super().__init__(d_model)
        self.n_classes = n_classes
        self.weight, self.bias = zeros(n_classes, d_model), zeros(n_classes)

    def score(self, standardised: Tensor) -> Tensor:
        """See `VectorHead.score`."""
        return expected_log_odds(standardised @ self.weight.T + self.bias)

    def problem(self) -> str | None:
        """See `Head.problem`. In addition, there must be at least two classes."""
        return super().problem() or ("`n_classes` is 1" if self.n_classes < 2 else None)


def expected_log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds of the expected fraction Σ j p_j / k.

    Here, p is the softmax of `logits` [..., class]. The classes are j = 0 … k.

    >>> torch.sigmoid(expected_log_odds(torch.tensor([0.1, 0.5, 0.4]).log()))  # (0.5 · 1 + 0.4 · 2) / 2
    tensor(0.6500)
    """
    j = torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logits + j.log()).logsumexp(-1) - (logits + j.flip(0).log()).logsumexp(-1)


class MLPHead(VectorHead):
    """Multilayer perceptron with the score w₂ · relu(W₁ (h − mean) / scale + b₁) + b₂."""

    kind = "mlp"
    sizes: ClassVar[Mapping[str, int]] = {"hidden": 2**14}

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__(d_model)
        self.hidden = hidden
        self.weight_in, self.bias_in = zeros(d_model, hidden), zeros(hidden)
        self.weight, self.bias = zeros(hidden), zeros()

    def score(self, standardised: Tensor) -> Tensor:
        """See `VectorHead.score`."""
        return torch.relu(standardised @ self.weight_in + self.bias_in) @ self.weight + self.bias


class LatentHead(VectorHead):
    """Head that draws answer embeddings and returns the median cosine similarity between them.

    See `probes.fitting.latent_model`.

    Attributes:
        shared: Scalar Σ τ², summed over components. τ² is the variance of the random offset shared by all answers to a
            question.
        noise: Standard normal draws, [draw, component], which are the same for all questions.
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
        """See `VectorHead.score`."""
        predicted = encode(standardised, self.weight_in, self.bias_in, self.weight, self.bias)
        return sampled_score(predicted, self.shared, self.noise)

    def problem(self) -> str | None:
        """See `Head.problem`. In addition, `shared` must not be negative."""
        return super().problem() or (f"`shared` is {float(self.shared)}, below 0" if self.shared < 0 else None)


class KNNHead(VectorHead):
    """Nearest-neighbour head. The score is the weighted mean label of the nearest training rows. See `neighbour_means`.

    Attributes:
        points: Standardised features of the training rows, [n_rows, d_model] float32.
        labels: Labels of the training rows in [0, 1], [n_rows] float32.
    """

    kind = "knn"
    sizes: ClassVar[Mapping[str, int]] = {"n_rows": 2**24, "n_neighbors": 2**24}

    def __init__(self, d_model: int, n_rows: int, n_neighbors: int) -> None:
        super().__init__(d_model)
        self.n_rows, self.n_neighbors = n_rows, n_neighbors
        self.points, self.labels = zeros(n_rows, d_model), zeros(n_rows)

    def score(self, standardised: Tensor) -> Tensor:
        """See `VectorHead.score`. The scores are in [0, 1]."""
        mps = standardised.device.type == "mps"  # MPS has no float64
        where = torch.device("cpu") if mps else standardised.device
        rows = standardised.reshape(-1, standardised.shape[-1]).to(where)
        mean = neighbour_means(rows, self.points.to(where), self.labels.to(where), [self.n_neighbors])
        return mean.reshape(standardised.shape[:-1]).float().to(standardised.device)

    def problem(self) -> str | None:
        """See `Head.problem`. In addition, labels must be in [0, 1], and `n_neighbors` must be at most `n_rows`."""
        if self.n_neighbors > self.n_rows:
            return f"`n_neighbors` is {self.n_neighbors}, more than the {self.n_rows} rows"
        outside = self.labels[(self.labels < 0) | (self.labels > 1)]
        return super().problem() or (f"`labels` contains {float(outside[0])}" if len(outside) else None)


def neighbour_means(queries: Tensor, points: Tensor, labels: Tensor, n_neighbors: Sequence[int]) -> Tensor:
    """Average the labels of the nearest points, weighted by inverse distance.

    The result equals that of scikit-learn's `KNeighborsRegressor(weights="distance")`, except for ties. If t points tie
    for the last r places among the k neighbours, each of them counts as r / t of a neighbour. If points are at distance
    0 from a row, the result is their mean label.

    Args:
        queries: Features of the rows, [row, d]. The result for a row with NaN is NaN.
        points: Finite features of the points, [point, d].
        labels: Labels of the points, [point].
        n_neighbors: Numbers of neighbours, from 1 to the number of points.

    Returns:
        Means, [n_neighbors, row] float64.

    >>> points, labels = torch.tensor([[0.0], [3.0], [9.0]]), torch.tensor([0.0, 1.0, 1.0])
    >>> neighbour_means(torch.tensor([[1.0], [3.0]]), points, labels, [1, 2])  # the row at 1.0: ⅔ · 0 + ⅓ · 1
    tensor([[0.0000, 1.0000],
            [0.3333, 1.0000]], dtype=torch.float64)
    """
    points, labels = points.double(), labels.double()
    lengths, found = points.square().sum(1), []
    for chunk in queries.split(max(1, CHUNK // len(points))):
        squared, slack, which = _nearest(chunk.double(), points, lengths, max(n_neighbors))
        found.append(torch.stack([_mean(squared, slack, labels[which], k) for k in n_neighbors]))
    return torch.cat(found, dim=1)


def _nearest(rows: Tensor, points: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the nearest points of each row.

    Returns the squared distances, their rounding errors, and the indices of the points, each [row, near]. The points
    are sorted by distance. They include the k nearest points and all points tied with the kth.
    """
    sizes = rows.square().sum(1, keepdim=True) + lengths
    every, n_near = torch.addmm(sizes, rows, points.T, alpha=-2), k
    while True:  # until all remaining points are farther away than the last neighbour
        n_near = min(2 * n_near, len(points))
        squared, which = every.topk(n_near, dim=1, largest=False)
        slack = ROUNDING * sizes.gather(1, which)
        if n_near == len(points) or not (squared[:, -1] <= squared[:, k - 1] + 2 * slack[:, -1]).any():
            return torch.where(squared <= slack, 0.0, squared), slack, which  # keeps NaN


def _mean(squared: Tensor, slack: Tensor, labels: Tensor, k: int) -> Tensor:
    """Compute the weighted mean label [row] of the k nearest points.

    The points were found by `_nearest`. `squared` contains their squared distances, `slack` the rounding errors, and
    `labels` the labels, each [row, near].
    """
    edge = squared[:, k - 1 : k]
    nearer, tied = squared < edge - slack, (squared - edge).abs() <= slack
    counted = nearer + tied * ((k - nearer.sum(1, keepdim=True)) / tied.sum(1, keepdim=True))
    here = (squared == 0) & (counted > 0)
    weight = torch.where(here.any(1, keepdim=True), counted * here, counted / squared.sqrt())
    return (weight * labels).sum(1) / weight.sum(1)
