"""Novelty of questions and answers: how far their features are from those of the training questions."""

from typing import NamedTuple

from torch import Tensor


class Confidences(NamedTuple):
    """Confidences of questions or answers, with their novelties.

    Attributes:
        confidence: [row] float32 probability of being right. The confidence of a novel row is shrunk towards the base
            rate of the training questions, unless `backoff` is False.
        novelty: [row] float32 fraction of the training questions that are less novel; NaN if the probe has no novelty.
        is_novel: [row] bool. Whether a row is so novel that its confidence is shrunk.
    """

    confidence: Tensor
    novelty: Tensor
    is_novel: Tensor
