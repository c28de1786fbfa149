"""Novelty of questions and answers: how far their hidden states are from those of the training questions.

The distance of a standardised hidden state x with d coordinates is its Mahalanobis distance under probabilistic PCA
(Tipping and Bishop, Probabilistic Principal Component Analysis, 1999), divided by √d:

    D² = 1/d · [Σ_j (v_j · x)² / λ_j + (‖x‖² − Σ_j (v_j · x)²) / ρ]

where v_j are the leading principal directions of the training rows, λ_j are their variances, and ρ is the mean variance
in all other directions.

The back-off applies to rows that are farther away than 99 % of the training rows. It mixes the confidence of such a row
with that of a broader probe, which is a linear probe that was also trained on other stores. If there are no other
stores, it mixes the confidence with the base rate. The weight of the broader probe or base rate increases linearly with
the distance, up to a maximum weight. `probes.fitting.backoff` fits the maximum and the distance at which it is reached.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from extract.store.ragged import Ragged
from probes.saved.head import zeros

#: Numbers of principal directions and of quantiles of the distances.
RANK, N_QUANTILES = 64, 101
#: Index of the quantile at which the back-off starts. 1 % of the training rows are farther away.
START = 99


class Confidences(NamedTuple):
    """Confidences of questions or answers, with their novelties.

    Attributes:
        confidence: [row] float32 probability of being right. The confidence of a novel row is shifted towards the
            confidence of a broader probe, or towards the mean accuracy of the training rows (back-off).
        novelty: [row] float32 fraction of the training rows that are less novel. It is NaN if the probe has no novelty.
        is_novel: [row] bool. Whether the row is more novel than 99 % of the training rows.
    """

    confidence: Tensor
    novelty: Tensor
    is_novel: Tensor


class Novelty(nn.Module):
    """Compute the novelties of rows, and apply the back-off to confidences. See the module docstring for both.

    Args:
        n_hidden: Width d of the hidden states. They are the first coordinates of a probe's features.
        rank: Number of principal directions.
        n_broader: Width of the features if there is a broader probe, and 0 otherwise.

    Attributes:
        mean, scale: [d_model] mean and standard deviation of the training rows. `scale` is infinite for constants.
        directions: [component, d_model] principal directions v.
        variances: [component] variances λ in these directions.
        rest: Mean variance ρ in all other directions.
        quantiles: [101] percentiles of the distances of training rows, computed out of fold.
        full: Distance at which the back-off is complete. The back-off starts at the 99th percentile.
        weight: Weight of the broader probe or base rate when the back-off is complete, in [0, 1].
        base_rate: Mean accuracy of the training rows.
        broader_weight, broader_bias: [n_broader] weights and bias of the broader probe, which predicts log-odds.
    """

    def __init__(self, n_hidden: int, rank: int, n_broader: int = 0) -> None:
        super().__init__()
        self.n_hidden, self.rank, self.n_broader = n_hidden, rank, n_broader
        self.mean, self.scale = zeros(n_hidden), nn.Buffer(torch.ones(n_hidden))
        self.directions, self.variances, self.rest = zeros(rank, n_hidden), zeros(rank), zeros()
        self.quantiles, self.full, self.weight, self.base_rate = zeros(N_QUANTILES), zeros(), zeros(), zeros()
        if n_broader:
            self.broader_weight, self.broader_bias = zeros(n_broader), zeros()

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the constructor."""
        return {"n_hidden": self.n_hidden, "rank": self.rank, "n_broader": self.n_broader}

    def distance(self, features: Tensor) -> Tensor:
        """Compute the distances [row] from features [row, width]."""
        x = (features[:, : self.n_hidden] - self.mean) / self.scale
        squares = (x @ self.directions.T).square()
        away = (x.square().sum(1) - squares.sum(1)).clamp_min(0)
        return (((squares / self.variances).sum(1) + away / self.rest) / self.n_hidden).sqrt()

    def broader(self, features: Tensor) -> Tensor:
        """Return the confidences of the broader probe [row], or the base rate [] if there is no broader probe."""
        return (features @ self.broader_weight + self.broader_bias).sigmoid() if self.n_broader else self.base_rate

    def forward(self, features: Tensor, confidence: Tensor, backoff: bool = True) -> Confidences:
        """Return the novelties of rows and their confidences, with or without back-off.

        Args:
            features: [row, width] float32 features of the probe.
            confidence: [row] float32 confidences of the probe.
            backoff: Whether to shift the confidences of novel rows towards those of the broader probe, or towards the
                base rate if there is no broader probe.
        """
        distance, tiny = self.distance(features), torch.finfo(torch.float32).tiny
        above = torch.searchsorted(self.quantiles, distance.contiguous()).clamp(1, N_QUANTILES - 1)
        low, high = self.quantiles[above - 1], self.quantiles[above]
        step = ((distance - low) / (high - low).clamp_min(tiny)).clamp(0, 1)
        start = self.quantiles[START]
        if backoff:
            share = self.weight * ((distance - start) / (self.full - start).clamp_min(tiny)).clamp(0, 1)
            confidence = confidence.lerp(self.broader(features).to(confidence), share.to(confidence))
        return Confidences(confidence, (above - 1 + step) / (N_QUANTILES - 1), distance > start)

    def problem(self) -> str | None:
        """Describe the first invalid value in a few words, or return None if the module is usable."""
        for name, tensor in self.state_dict().items():
            wrong = ~tensor.isfinite() & (name != "scale")
            if name in ("scale", "variances", "rest"):
                wrong |= ~(tensor > 0)
            if wrong.any():
                return f"`novelty.{name}` contains {float(tensor[wrong].flatten()[0])}"
        if (self.quantiles.diff() < 0).any():
            return "`novelty.quantiles` is decreasing"
        if self.full < self.quantiles[START]:
            return f"`novelty.full` is {float(self.full)}, below the 99th percentile"
        for name, value in {"weight": self.weight, "base_rate": self.base_rate}.items():
            if not 0 <= value <= 1:
                return f"`novelty.{name}` is {float(value)}, outside [0, 1]"
        return None


def flat(features: Tensor | Ragged) -> Tensor:
    """Return features [row, width]. Ragged features [row, token, width] are averaged over the tokens of each row.

    Rows without tokens are NaN.
    """
    if isinstance(features, Ragged):
        lengths = features.lengths.to(features.values.device)
        return torch.segment_reduce(features.values.float(), "mean", lengths=lengths, axis=0)
    return features.float()
