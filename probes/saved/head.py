"""Heads: from the features of one layer and position to a score. A saved probe is a head with its calibrator."""

from collections.abc import Mapping
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from extract.errors import InputError
from probes.fitting.latent_model import drawn_noise, encode, sampled_score
from probes.fitting.neighbours import neighbour_means

HeadType = TypeVar("HeadType", bound="Head")
_MOST_VALUES = 2**30  # float32 numbers of a tensor that grows with the training split


class Head(nn.Module):
    """Base: a standardiser, and a subclass's way from standardised hidden states to a score.

    A subclass keeps everything in buffers, and is created from `d_model` and the whole numbers named in `sizes`.

    Args:
        d_model: Width of the hidden state.
        **buffers: Tensors of the subclass.
    """

    #: Name of the kind in a saved probe.
    kind: ClassVar[str]
    #: Further sizes that `__init__` takes, with the largest that a saved probe may have.
    sizes: ClassVar[Mapping[str, int]] = {}
    mean: Tensor
    scale: Tensor

    def __init__(self, d_model: int, **buffers: Tensor) -> None:
        super().__init__()
        for name, tensor in {"mean": torch.zeros(d_model), "scale": torch.ones(d_model), **buffers}.items():
            self.register_buffer(name, tensor)

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


class LinearHead(Head):
    """w · (h − mean) / scale + b."""

    kind = "linear"
    weight: Tensor
    bias: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, weight=torch.zeros(d_model), bias=torch.tensor(0.0))

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        return standardised @ self.weight + self.bias


class MLPHead(Head):
    """w₂ · relu(W₁ (h − mean) / scale + b₁) + b₂.

    Args:
        d_model: Width of the hidden state.
        hidden: Width of the hidden layer.
    """

    kind = "mlp"
    sizes: ClassVar[Mapping[str, int]] = {"hidden": 2**14}
    weight_in: Tensor
    bias_in: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, d_model: int, hidden: int) -> None:
        first = {"weight_in": torch.zeros(d_model, hidden), "bias_in": torch.zeros(hidden)}
        super().__init__(d_model, **first, weight=torch.zeros(hidden), bias=torch.tensor(0.0))

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        return torch.relu(standardised @ self.weight_in + self.bias_in) @ self.weight + self.bias


class LatentHead(Head):
    """Median cosine of answers that are drawn around what an encoder predicts; see `probes.fitting.latent_model`.

    Args:
        d_model: Width of the hidden state.
        hidden: Width of the encoder's hidden layer.
        components: Components of an answer's embedding.
    """

    kind = "latent"
    sizes: ClassVar[Mapping[str, int]] = {"hidden": 2**14, "components": 2**13}
    weight_in: Tensor
    bias_in: Tensor
    weight: Tensor
    bias: Tensor
    shared: Tensor
    noise: Tensor

    def __init__(self, d_model: int, hidden: int, components: int) -> None:
        super().__init__(
            d_model,
            weight_in=torch.zeros(d_model, hidden),
            bias_in=torch.zeros(hidden),
            weight=torch.zeros(hidden, 2 * components),
            bias=torch.zeros(2 * components),
            shared=torch.tensor(0.0),
            noise=drawn_noise(components),
        )

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] from standardised hidden states [..., d_model]."""
        predicted = encode(standardised, self.weight_in, self.bias_in, self.weight, self.bias)
        return sampled_score(predicted, self.shared, self.noise)

    def problem(self) -> str | None:
        """As for every head, and the variance `shared` is not below 0."""
        return super().problem() or (f"`shared` is {float(self.shared)}, below 0" if self.shared < 0 else None)


class KNNHead(Head):
    """Mean label of the nearest training rows, each weighing one over its distance; see `probes.fitting.neighbours`.

    Args:
        d_model: Width of the hidden state.
        n_rows: Training rows.
        n_neighbors: How many of them count.

    Raises:
        InputError: More numbers than fit into a memory, which a saved probe may claim to hold.
    """

    kind = "knn"
    sizes: ClassVar[Mapping[str, int]] = {"n_rows": 2**24, "n_neighbors": 2**24}
    points: Tensor
    labels: Tensor

    def __init__(self, d_model: int, n_rows: int, n_neighbors: int) -> None:
        if n_rows * d_model > _MOST_VALUES:
            raise InputError(
                f"Expected `sizes` of a knn head with at most {_MOST_VALUES} numbers, but {n_rows} rows of width "
                f"{d_model} have more. Train on fewer rows."
            )
        super().__init__(d_model, points=torch.zeros(n_rows, d_model), labels=torch.zeros(n_rows))
        self.n_neighbors = n_neighbors

    def score(self, standardised: Tensor) -> Tensor:
        """Scores [...] in [0, 1] from standardised hidden states [..., d_model]."""
        mps = standardised.device.type == "mps"  # which has no float64
        where = torch.device("cpu") if mps else standardised.device
        rows = standardised.reshape(-1, standardised.shape[-1]).to(where)
        mean = neighbour_means(rows, self.points.to(where), self.labels.to(where), [self.n_neighbors])
        return mean.reshape(standardised.shape[:-1]).float().to(standardised.device)

    def problem(self) -> str | None:
        """As for every head, there are as many rows as neighbours, and labels are in [0, 1]."""
        outside = self.labels[(self.labels < 0) | (self.labels > 1)]
        if self.n_neighbors > len(self.labels):
            return f"`n_neighbors` is {self.n_neighbors}, of {len(self.labels)} rows"
        return super().problem() or (f"`labels` holds {float(outside[0])}" if len(outside) else None)


#: Closed list of heads that a saved probe may name; nothing else is ever loaded.
HEADS: dict[str, type[Head]] = {head.kind: head for head in (LinearHead, MLPHead, LatentHead, KNNHead)}
