"""Measure the novelty of questions and answers, and shift the confidences of novel ones (the back-off).

A row is a question or an answer. In this module, the training rows include the rows of the validation split.

The novelty of a row is the fraction of training rows with a smaller `Distance` from the training data. The distance of
a training row comes from a fit that excludes its fold. If a row is more novel than 99 % of the training rows, its
confidence is mixed with the base rate. The base rate is the fraction of right answers in the training rows. Its weight
increases linearly with the row's distance, up to a maximum that `probes.fitting.backoff` fits.

There can also be a broader probe, trained on the same rows and on the questions of other stores. If a novel row is
close to the broader probe's training rows, its confidence is also mixed with the broader probe's confidence. The
broader probe's weight is its maximum weight times two factors. The first factor increases linearly with the distance
from the training data, like the weight of the base rate. The second factor decreases with the distance from the broader
probe's training rows. It is 1 up to the 90th percentile of the held-out distances, and decreases linearly to 0 at their
95th percentile. To compute the held-out distances, the question groups of the other stores are divided into folds. The
distance of each of their rows comes from a fit that excludes the row's fold.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from extract.store.ragged import Ragged
from probes.saved.distance import START, TINY, Distance, fraction_problem
from probes.saved.head import zeros


class Confidences(NamedTuple):
    """Confidence and novelty of questions or answers.

    Attributes:
        confidence: Probability of being right, [row] float32. For a novel row, the probability is shifted towards the
            mean accuracy of the training and validation rows. If the row is close to the training rows of a `Broader`
            probe, the probability is also shifted towards that probe's confidence.
        novelty: Fraction of the training and validation rows that are less novel, [row] float32; NaN if the probe has
            no `Novelty`.
        is_novel: Whether the row is more novel than 99 % of the training and validation rows, [row] bool.
    """

    confidence: Tensor
    novelty: Tensor
    is_novel: Tensor


class Broader(nn.Module):
    """Linear probe trained on the saved probe's training and validation rows, and on rows of other stores.

    Attributes:
        weight, bias: Weights [n_features] and scalar bias. The score is the log-odds of a right answer.
        share: Maximum weight of this probe's confidences, in [0, 1]. See the module docstring.
        known: Measure of the distance from this probe's training rows. `known.quantiles` contains percentiles of the
            held-out distances. See the module docstring.
    """

    #: The weight of this probe decreases to 0 between these percentiles of the held-out distances.
    NEAR, FAR = 90, 95

    def __init__(self, n_features: int, n_hidden: int, rank: int) -> None:
        super().__init__()
        self.sizes = {"n_features": n_features, "rank": rank}
        self.weight, self.bias, self.share = zeros(n_features), zeros(), zeros()
        self.known = Distance(n_hidden, rank)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return this probe's confidences and their weights, both [row], for features [row, n_features]."""
        confidence, distance = (features @ self.weight + self.bias).sigmoid(), self.known.distance(features)
        near, far = self.known.quantiles[[self.NEAR, self.FAR]]
        return confidence, self.share * ((far - distance) / (far - near).clamp_min(TINY)).clamp(0, 1)

    def problem(self) -> str | None:
        """See `Distance.problem`."""
        for name, tensor in self.named_buffers(recurse=False):
            if not tensor.isfinite().all():
                return f"`novelty.broader.{name}` contains {float(tensor[~tensor.isfinite()].flatten()[0])}"
        return fraction_problem("novelty.broader.share", self.share) or self.known.problem("novelty.broader.known")


class Novelty(Distance):
    """Measures the novelty of rows, and applies the back-off to novel ones. See the module docstring.

    Attributes:
        weight: Maximum weight of the base rate, in [0, 1]. Rows whose distance is at least `Distance.full` get this
            weight.
        base_rate: Fraction of right answers in the training and validation rows.
        broader: The broader probe, whose confidences are mixed into those of novel rows, or None.
    """

    def __init__(self, n_hidden: int, rank: int, broader: dict[str, int] | None = None) -> None:
        super().__init__(n_hidden, rank)
        self.weight, self.base_rate = zeros(), zeros()
        self.broader = None if broader is None else Broader(n_hidden=n_hidden, **broader)

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        of_broader = {} if self.broader is None else {"broader": self.broader.sizes}
        return {"n_hidden": self.n_hidden, "rank": self.rank, **of_broader}

    def forward(self, features: Tensor, confidence: Tensor, backoff: bool = True) -> Confidences:
        """Compute the novelty of each row. If `backoff` is True, also apply the back-off to the confidences.

        `features` is [row, width] float32, and `confidence` is [row] float32.
        """
        distance = self.distance(features)
        if backoff:
            remoteness = self.remoteness(distance)
            confidence = confidence.lerp(self.base_rate.to(confidence), (self.weight * remoteness).to(confidence))
            if self.broader is not None:
                broader, share = self.broader(features)
                confidence = confidence.lerp(broader.to(confidence), (share * remoteness).to(confidence))
        return Confidences(confidence, self.percentile(distance), distance > self.quantiles[START])

    def problem(self, name: str = "novelty") -> str | None:
        """See `Distance.problem`."""
        return (
            super().problem(name)
            or fraction_problem(f"{name}.weight", self.weight)
            or fraction_problem(f"{name}.base_rate", self.base_rate)
            or (self.broader.problem() if self.broader is not None else None)
        )


def flat(features: Tensor | Ragged) -> Tensor:
    """Average ragged features [row, token, width] over tokens; NaN for rows without tokens.

    Other features are only converted to float32.
    """
    if isinstance(features, Ragged):
        lengths = features.lengths.to(features.values.device)
        return torch.segment_reduce(features.values.float(), "mean", lengths=lengths, axis=0)
    return features.float()
