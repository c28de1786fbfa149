r"""The latent probe's arithmetic: from hidden states to a distribution of a question's answers, and their spread.

After ASEU (arXiv 2410.22685); docs/methods.md has the differences. An encoder of hidden states h gives a mean μ(h) and
deviations σ(h). They are learnt from embeddings e of answers, of length 1, with one u a question, integrated out:

.. math:: e_m = \mu(h) + u + \varepsilon_m, \qquad u \sim N(0, \mathrm{diag}\,\tau^2), \quad
    \varepsilon_m \sim N(0, \mathrm{diag}\,\sigma^2(h)).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probes.metrics.functional import spearman

#: Least σ; identical answers would drive it to 0 and the likelihood to infinity.
FLOOR = 0.01
#: Draws of an answer behind a score.
DRAWS = 20


class Gaussian(NamedTuple):
    """Normal distributions with independent components: μ and σ, [..., component] each."""

    mean: Tensor
    deviation: Tensor


class Answers(NamedTuple):
    """What the likelihood needs to know of the embedded answers to each question: nothing of their order.

    Attributes:
        number: [question] float32, answers with an embedding.
        mean: [question, component] float32; 0 without answers.
        variance: [question, component] float32, mean squared distance from `mean`; 0 without answers.
    """

    number: Tensor
    mean: Tensor
    variance: Tensor


def principal_axes(embeddings: Tensor, n: int) -> Tensor:
    """The n ≤ d directions in which embeddings [..., d] reach furthest from 0, [n, d]; rows of NaN are left out.

    Not centred, unlike principal components: cosines are measured from 0, so what all embeddings share has to stay.
    """
    given = embeddings.flatten(0, -2).double()
    given = given[given.isfinite().all(-1)]
    return torch.linalg.eigh(given.T @ given).eigenvectors.flip(-1)[:, :n].T.to(embeddings.dtype)


def summarise(embeddings: Tensor, axes: Tensor) -> Answers:
    """Moments along `axes` [component, d] of the answers' `embeddings` [question, sample, d]; missing ones are NaN."""
    given = embeddings.isfinite().all(-1)
    projected = embeddings.nan_to_num() @ axes.T
    number = given.sum(-1).to(embeddings.dtype)
    share = (given / number.clamp_min(1)[:, None])[..., None]
    mean = (share * projected).sum(1)
    return Answers(number, mean, (share * (projected - mean[:, None]).square()).sum(1))


def encode(hidden: Tensor, weight_in: Tensor, bias_in: Tensor, weight: Tensor, bias: Tensor) -> Gaussian:
    """μ(h) and σ(h): normalise over d_model, linear, GELU, linear.

    Args:
        hidden: [..., row, d_model] standardised hidden states.
        weight_in: [..., d_model, hidden].
        bias_in: [..., 1, hidden].
        weight: [..., hidden, 2 · component]; first half μ, second half σ before the softplus and the floor.
        bias: [..., 1, 2 · component].
    """
    normal = nn.functional.layer_norm(hidden, hidden.shape[-1:])
    mean, raw = (nn.functional.gelu(normal @ weight_in + bias_in) @ weight + bias).chunk(2, -1)
    return Gaussian(mean, nn.functional.softplus(raw) + FLOOR)


def initial_weights(n_features: int, d_model: int, hidden: int, components: int) -> dict[str, Tensor]:
    """Random weights of an encoder for each feature, as `encode` takes them, from torch's global generator.

    At first σ is 1/√components everywhere, that of embeddings of length 1 that agree in nothing.
    """
    bias = torch.zeros(n_features, 1, 2 * components)
    bias[..., components:] = math.log(math.expm1(max(components**-0.5 - FLOOR, FLOOR)))
    return {
        "weight_in": torch.randn(n_features, d_model, hidden) / d_model**0.5,
        "bias_in": torch.zeros(n_features, 1, hidden),
        "weight": 0.3 * torch.randn(n_features, hidden, 2 * components) / hidden**0.5,
        "bias": bias,
    }


def answer_loss(predicted: Gaussian, shared: Tensor, answers: Answers) -> Tensor:
    """Negative log-likelihood of the answers, in nats per answer: [...].

    The mean of a question's n answers has the variance τ² + σ²/n around μ, their scatter around it is σ²'s alone.

    Args:
        predicted: [..., question, component].
        shared: [..., 1, component] variance τ² of what the answers to a question have in common beyond μ(h).
        answers: Of the same questions; those without answers don't count.
    """
    n = answers.number[:, None]
    within = predicted.deviation.square()
    around = shared + within / n.clamp_min(1)
    scatter = (n - 1) * within.log() + n * answers.variance / within
    offset = (n.clamp_min(1) * around).log() + (answers.mean - predicted.mean).square() / around
    terms = (scatter + offset + n * math.log(2 * math.pi)).sum(-1) / 2
    return torch.where(answers.number > 0, terms, 0).sum(-1) / answers.number.sum().clamp_min(1)


def drawn_noise(components: int, seed: int = 0) -> Tensor:
    """Standard normal numbers [draw, component], the same for all questions, so that equal inputs have equal scores."""
    return torch.randn(DRAWS, components, generator=torch.Generator().manual_seed(seed))


def sampled_score(predicted: Gaussian, shared: Tensor, noise: Tensor) -> Tensor:
    r"""1 − ASEU: median cosine of all pairs of `DRAWS` answers drawn to a question, [...]; higher = more agreement.

    Cosines are not centred, as SEU's are not. The draws scatter around a mean that points like μ and is as long as that
    of the question's answers is expected to be, √(‖μ‖² + Σ τ²).

    Args:
        predicted: [..., component].
        shared: [...] Σ τ² over the components.
        noise: [draw, component] from `drawn_noise`.

    Returns:
        [...] in [−1, 1]; of an even number of pairs the lower middle one.
    """
    mean, deviation = predicted
    longer = (1 + shared / mean.square().sum(-1).clamp_min(1e-12)).sqrt()
    drawn = (longer[..., None] * mean)[..., None, :] + deviation[..., None, :] * noise
    unit = nn.functional.normalize(drawn, dim=-1)
    first, second = torch.triu_indices(len(noise), len(noise), 1, device=noise.device)
    return (unit @ unit.mT)[..., first, second].median(-1).values


def rank_correlations(scores: Tensor, agreement: Tensor) -> Tensor:
    """Spearman of scores [row, candidate] with the agreement of the answers, 1 − SEU [row]: [candidate] float64.

    It is −1 where either is constant. Rows without an agreement (NaN) are left out.
    """
    given = agreement.isfinite()
    share = ((1 + agreement[given]) / 2).clamp(0, 1)  # what `spearman` takes: right answers out of one
    return torch.stack([spearman(column, share, torch.ones_like(share)) for column in scores[given].T]).nan_to_num(-1)


def collapse(scores: Tensor, agreement: Tensor, deviation: Tensor) -> str | None:
    """How a fitted encoder's spread has collapsed, as a sentence for a report; None where it tells questions apart.

    Looked at in this order, over validation questions: σ at its floor (99 % of the values within 1 % of it); the same σ
    for every question (Σ σ² varies by less than 1 % of its mean); scores that hardly vary (their deviation below 5 % of
    that of the agreement); scores whose rank correlation with the agreement chance gives one time in twenty.

    Args:
        scores: [row] of one candidate.
        agreement: [row] mean cosine of two answers, 1 − SEU; NaN rows are left out.
        deviation: [row, component] σ(h).
    """
    given = agreement.isfinite()
    scores, agreement, deviation = (values[given].double().cpu() for values in (scores, agreement, deviation))
    n, start = len(scores), "The latent spread has collapsed and its score means nothing: "
    at_floor = float((deviation < 1.01 * FLOOR).double().mean())
    if at_floor >= 0.99:
        return f"{start}{at_floor:.0%} of its deviations are at their floor of {FLOOR:g}."
    total = deviation.square().sum(-1)
    varies = float(total.std() / total.mean())
    if varies < 0.01:
        return f"{start}it is the same for all of {n} validation questions (it varies by {varies:.2%} of its mean)."
    ratio = float(scores.std() / agreement.std())
    if ratio < 0.05:
        return f"{start}over {n} validation questions it varies {ratio:.1%} as much as the agreement of their answers."
    rank, chance = float(rank_correlations(scores[:, None], agreement)), 1.645 / math.sqrt(max(n - 1, 1))
    if rank <= chance:
        return (
            f"{start}its rank correlation with the agreement of the answers to {n} validation questions is {rank:.2f}, "
            f"of which chance gives up to {chance:.2f}."
        )
    return None
