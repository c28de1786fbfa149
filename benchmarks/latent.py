"""Whether the latent score finds the spread of a question's answers, where it is planted, and says when it finds nothing.

A question has eight traits, of which the hidden state is a noisy linear map. Its answers' embeddings scatter around a
direction on the unit sphere; how widely is a curved function of two traits. In the regime `told` the direction is a
function of the traits as well, in `untold` it has nothing to do with them and questions lie far apart, as those of a
store do. The encoder learns from sampled embeddings alone and stops by its rank correlation with SEU on validation
questions; its score is then compared with the planted spread of questions that it has not seen.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.result import report
from probes.latent_model import (
    Answers,
    Gaussian,
    answer_loss,
    collapse,
    drawn_noise,
    encode,
    expected_score,
    initial_weights,
    principal_axes,
    rank_correlations,
    sampled_score,
    summarise,
)

TRAIN, VAL, TEST = slice(0, 300), slice(300, 400), slice(400, 700)


class Simulated(NamedTuple):
    """Questions: hidden states [question, d_model], answers' embeddings [question, sample, d], true spread [question]."""

    hidden: Tensor
    embeddings: Tensor
    spread: Tensor

    @property
    def agreement(self) -> Tensor:
        """Mean cosine of two answers, 1 − SEU, [question]."""
        n = self.embeddings.shape[1]
        return (self.embeddings.sum(1).square().sum(-1) - n) / (n * (n - 1))


def simulate(told: bool, seed: int, d_model: int = 576, d: int = 64, n: int = 700, k: int = 10) -> Simulated:
    """Draw questions.

    Args:
        told: Whether the hidden state knows the direction of the answers.
        seed: Seed.
        d_model: Width of the hidden states.
        d: Width of the embeddings.
        n: Questions.
        k: Answers a question.
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
    """An encoder's μ and σ of every question, and Σ τ²."""

    predicted: Gaussian
    shared: Tensor


def fit(data: Simulated, hierarchical: bool = True, hidden: int = 128, epochs: int = 40, seed: int = 0) -> Fitted:
    """Train one encoder by Adam and keep the epoch of the best rank correlation with SEU on validation questions."""
    torch.manual_seed(seed)
    width = data.embeddings.shape[-1]
    weights = initial_weights(1, data.hidden.shape[1], hidden, width)
    parameters = {name: value[0].requires_grad_() for name, value in weights.items()}
    log_shared = torch.full((1, width), -torch.inf if not hierarchical else 0.0).log_softmax(-1) if hierarchical else torch.full((1, width), -torch.inf)
    log_shared.requires_grad_(hierarchical)
    answers = summarise(data.embeddings, principal_axes(data.embeddings[TRAIN], width))
    optimizer = torch.optim.Adam([*parameters.values(), *([log_shared] if hierarchical else [])], lr=1e-3)
    noise, best, kept = drawn_noise(width), -2.0, None
    for epoch in range(epochs):
        for rows in torch.randperm(TRAIN.stop).split(60):
            loss = answer_loss(encode(data.hidden[rows], **parameters), log_shared.exp(), Answers(*(one[rows] for one in answers)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 5 == 4:
            with torch.no_grad():
                now = Fitted(encode(data.hidden, **parameters), log_shared.exp().sum())
                score = sampled_score(*now, noise)
                rank = float(rank_correlations(score[VAL, None], data.agreement[VAL]))
            if rank > best:
                best, kept = rank, now
    return kept
