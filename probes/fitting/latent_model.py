r"""Model of the latent probe: predicts the distribution of answer embeddings from a hidden state, and its spread.

After ASEU (arXiv 2410.22685); docs/methods.md has the differences. An encoder maps a hidden state h to a mean μ(h) and
standard deviations σ(h). It is trained on answer embeddings e of length 1. The answers to a question share u:

.. math:: e_m = \mu(h) + u + \varepsilon_m, \qquad u \sim N(0, \mathrm{diag}\,\tau^2), \quad
    \varepsilon_m \sim N(0, \mathrm{diag}\,\sigma^2(h)).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probes.metrics.functional import spearman

#: Lower bound of σ. Identical answers would drive it to 0 and the likelihood to infinity.
FLOOR = 0.01
#: Number of answers drawn per question for a score.
DRAWS = 20


class Gaussian(NamedTuple):
    """Normal distributions with independent components.

    Attributes:
        mean: [..., component] float32 μ.
        deviation: [..., component] float32 σ.
    """

    mean: Tensor
    deviation: Tensor


class Answers(NamedTuple):
    """Sufficient statistics of the answer embeddings of each question.

    Attributes:
        number: [question] float32, number of answers with an embedding.
        mean: [question, component] float32, mean projected embedding; 0 without answers.
        variance: [question, component] float32, mean squared distance from `mean`; 0 without answers.
    """

    number: Tensor
    mean: Tensor
    variance: Tensor


def principal_axes(embeddings: Tensor, n: int) -> Tensor:
    """First n ≤ d uncentred principal axes [n, d] of embeddings [..., d]. Rows with NaN are ignored.

    Embeddings are not centred, because cosine similarity depends on their common mean.
    """
    given = embeddings.flatten(0, -2).double()
    given = given[given.isfinite().all(-1)]
    return torch.linalg.eigh(given.T @ given).eigenvectors.flip(-1)[:, :n].T.to(embeddings.dtype)


def summarise(embeddings: Tensor, axes: Tensor) -> Answers:
    """Summarise embeddings [question, sample, d] along `axes` [component, d]. Missing embeddings are NaN."""
    given = embeddings.isfinite().all(-1)
    projected = embeddings.nan_to_num() @ axes.T
    number = given.sum(-1).to(embeddings.dtype)
    share = (given / number.clamp_min(1)[:, None])[..., None]
    mean = (share * projected).sum(1)
    return Answers(number, mean, (share * (projected - mean[:, None]).square()).sum(1))


def encode(hidden: Tensor, weight_in: Tensor, bias_in: Tensor, weight: Tensor, bias: Tensor) -> Gaussian:
    """Encode hidden states to μ(h) and σ(h): layer norm, linear, GELU, linear.

    Args:
        hidden: [..., row, d_model] standardised hidden states.
        weight_in: [..., d_model, hidden].
        bias_in: [..., 1, hidden].
        weight: [..., hidden, 2 · component]; the first half gives μ, the second σ before softplus and `FLOOR`.
        bias: [..., 1, 2 · component].

    """
    normal = nn.functional.layer_norm(hidden, hidden.shape[-1:])
    mean, raw = (nn.functional.gelu(normal @ weight_in + bias_in) @ weight + bias).chunk(2, -1)
    return Gaussian(mean, nn.functional.softplus(raw) + FLOOR)


def initial_weights(n_features: int, d_model: int, hidden: int, components: int) -> dict[str, Tensor]:
    """Random weights for `encode`, one encoder per feature, from torch's global generator.

    The initial σ is 1/√components, the value for unrelated embeddings of length 1.
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
    """Negative log-likelihood of the answers [...], in nats per answer.

    The mean of a question's n answers has variance τ² + σ²/n around μ; the answers have variance σ² around their mean.

    Args:
        predicted: [..., question, component].
        shared: [..., 1, component] variance τ² of the component u that the answers to a question share.
        answers: Statistics of the same questions. Questions without answers are ignored.
    """
    n = answers.number[:, None]
    within = predicted.deviation.square()
    around = shared + within / n.clamp_min(1)
    scatter = (n - 1) * within.log() + n * answers.variance / within
    offset = (n.clamp_min(1) * around).log() + (answers.mean - predicted.mean).square() / around
    terms = (scatter + offset + n * math.log(2 * math.pi)).sum(-1) / 2
    return torch.where(answers.number > 0, terms, 0).sum(-1) / answers.number.sum().clamp_min(1)


def drawn_noise(components: int, seed: int = 0) -> Tensor:
    """Standard normal draws [draw, component], shared by all questions so that equal inputs have equal scores."""
    return torch.randn(DRAWS, components, generator=torch.Generator().manual_seed(seed))


def sampled_score(predicted: Gaussian, shared: Tensor, noise: Tensor) -> Tensor:
    r"""Compute 1 − ASEU: the median cosine similarity of all pairs of `DRAWS` answers drawn for a question.

    As in SEU, cosines are not centred. The draws are centred on μ, rescaled to the expected length of the mean of the
    question's answers, √(‖μ‖² + Σ τ²).

    Args:
        predicted: [..., component].
        shared: [...] Σ τ² over the components.
        noise: [draw, component] from `drawn_noise`.

    Returns:
        [...] in [−1, 1], higher = more agreement. For an even number of pairs, the lower of the two middle values.
    """
    mean, deviation = predicted
    longer = (1 + shared / mean.square().sum(-1).clamp_min(1e-12)).sqrt()
    drawn = (longer[..., None] * mean)[..., None, :] + deviation[..., None, :] * noise
    unit = nn.functional.normalize(drawn, dim=-1)
    first, second = torch.triu_indices(len(noise), len(noise), 1, device=noise.device)
    return (unit @ unit.mT)[..., first, second].median(-1).values


def rank_correlations(scores: Tensor, agreement: Tensor) -> Tensor:
    """Spearman correlation [candidate] float64 of scores and agreement of the answers; −1 if either is constant.

    Args:
        scores: [row, candidate].
        agreement: [row] mean cosine of two answers, 1 − SEU; NaN rows are ignored.
    """
    given = agreement.isfinite()
    share = ((1 + agreement[given]) / 2).clamp(0, 1)  # `spearman` takes right answers out of one
    return torch.stack([spearman(column, share, torch.ones_like(share)) for column in scores[given].T]).nan_to_num(-1)


def collapse(scores: Tensor, agreement: Tensor, deviation: Tensor) -> str | None:
    """Describe how the spread of a fitted encoder has collapsed, in a sentence for reports; None if it has not.

    Checks, in this order, on validation questions:
        1. At least 99 % of all σ are within 1 % of `FLOOR`.
        2. The standard deviation of Σ σ² over questions is less than 1 % of its mean.
        3. The standard deviation of the scores is less than 5 % of that of the agreement.
        4. The rank correlation of scores and agreement is not significant (one-sided, level 5 %).

    Args:
        scores: [row], of one candidate.
        agreement: [row] mean cosine of two answers, 1 − SEU; NaN rows are ignored.
        deviation: [row, component] σ(h).
    """
    given = agreement.isfinite()
    scores, agreement, deviation = (values[given].double().cpu() for values in (scores, agreement, deviation))
    n, start = len(scores), "The latent spread has collapsed and its score means nothing: "
    at_floor = float((deviation < 1.01 * FLOOR).double().mean())
    if at_floor >= 0.99:
        return f"{start}{at_floor:.0%} of its standard deviations are at their floor of {FLOOR:g}."
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
            f"and chance gives up to {chance:.2f}."
        )
    return None
