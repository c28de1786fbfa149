"""Simulated questions whose answers have a planted spread, and the latent model fitted on them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from probes.fitting.latent_model import (
    Answers,
    Gaussian,
    answer_loss,
    collapse,
    drawn_noise,
    encode,
    initial_weights,
    principal_axes,
    rank_correlations,
    sampled_score,
    summarise,
)

TRAIN, VAL, TEST = slice(0, 300), slice(300, 400), slice(400, 700)


class Simulated(NamedTuple):
    """Hidden states [question, d_model], answer embeddings [question, sample, d] and true spread [question]."""

    hidden: Tensor
    embeddings: Tensor
    spread: Tensor

    @property
    def agreement(self) -> Tensor:
        """Return the mean cosine similarity of two answers, 1 − SEU, [question]."""
        n = self.embeddings.shape[1]
        return (self.embeddings.sum(1).square().sum(-1) - n) / (n * (n - 1))


def simulate(told: bool, seed: int, d_model: int = 576, d: int = 64, n: int = 700, k: int = 10) -> Simulated:
    """Draw simulated questions.

    Args:
        told: Whether the hidden state determines the direction of the answers.
        seed: Random seed.
        d_model: Width of the hidden states.
        d: Width of the embeddings.
        n: Number of questions.
        k: Number of answers per question.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    traits = drawn(n, 8)
    hidden = traits @ drawn(8, d_model) / 8**0.5 + 0.3 * drawn(n, d_model)
    direction = torch.tanh(traits @ drawn(8, 8)) @ drawn(8, d) / 8**0.5 + 0.5 * drawn(d) if told else drawn(n, d)
    spread = torch.exp(0.8 * torch.tanh(1.5 * traits[:, 0]) + 0.5 * traits[:, 1].abs() - (0.9 if told else 1.9))
    scatter = spread[:, None, None] * drawn(n, k, d) / d**0.5
    embeddings = normalize(normalize(direction, dim=-1)[:, None] + scatter, dim=-1)
    return Simulated((hidden - hidden[TRAIN].mean(0)) / hidden[TRAIN].std(0), embeddings, spread)


class Fitted(NamedTuple):
    """Outputs of an encoder for every question: μ and σ, Σ τ², scores [question], and the warning about a collapse."""

    predicted: Gaussian
    shared: Tensor
    scores: Tensor
    collapsed: str | None

    def rank(self, data: Simulated) -> float:
        """Return the rank correlation of the scores with the negative planted spread on test questions."""
        narrow = 1 / (1 + data.spread[TEST])
        return float(rank_correlations(self.scores[TEST, None], narrow))


def fit(data: Simulated, hierarchical: bool = True, l2: float = 0.0, epochs: int = 40, seed: int = 0) -> Fitted:
    """Train an encoder with Adam, and keep the epoch whose validation ranking agrees best with SEU.

    Args:
        data: Questions.
        hierarchical: Whether the answers to a question share a component that μ(h) does not predict.
        l2: Penalty on the squares of all weights.
        epochs: Number of passes over the training questions.
        seed: Seed of the weights and batches.
    """
    torch.manual_seed(seed)
    width = data.embeddings.shape[-1]
    weights = {
        name: one[0].requires_grad_() for name, one in initial_weights(1, data.hidden.shape[1], 64, width).items()
    }
    log_shared = torch.full((1, width), -math.log(width) if hierarchical else -math.inf, requires_grad=hierarchical)
    answers = summarise(data.embeddings, principal_axes(data.embeddings[TRAIN], width))
    optimizer = torch.optim.Adam([*weights.values(), *([log_shared] if hierarchical else [])], lr=1e-3)
    noise, best, found = drawn_noise(width), -2.0, None
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(TRAIN.stop).split(60):
            of_rows = Answers(*(one[rows] for one in answers))
            loss = answer_loss(encode(data.hidden[rows], **weights), log_shared.exp(), of_rows)
            squares = weights["weight_in"].square().sum() + weights["weight"].square().sum()
            optimizer.zero_grad()
            (loss + l2 / 2 * squares).backward()
            optimizer.step()
        if epoch % 5 == 0:
            with torch.no_grad():
                predicted, shared = encode(data.hidden, **weights), log_shared.exp().sum()
                scores = sampled_score(predicted, shared, noise)
            rank = float(rank_correlations(scores[VAL, None], data.agreement[VAL]))
            if rank > best:
                best, found = rank, (predicted, shared, scores)
    assert found is not None
    said = collapse(found[2][VAL], data.agreement[VAL], found[0].deviation[VAL])
    return Fitted(*found, said)


def forced(data: Simulated) -> dict[str, Fitted]:
    """Return encoders that cannot learn the spread: shuffled or constant hidden states, or a very large penalty."""
    shuffled = data.hidden[torch.randperm(len(data.hidden), generator=torch.Generator().manual_seed(0))]
    return {
        "shuffled": fit(data._replace(hidden=shuffled)),
        "constant": fit(data._replace(hidden=torch.ones_like(data.hidden))),
        "penalised": fit(data, l2=1e4),
    }
