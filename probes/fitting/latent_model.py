r"""Model of the latent probe, which predicts the distribution of answer embeddings from a question's hidden state.

The model is based on ASEU (amortised semantic embedding uncertainty, arXiv 2410.22685). docs/methods.md lists the
differences. The embedding e_m of answer m has norm 1 and is modelled as

.. math:: e_m = \mu(h) + u + \varepsilon_m, \qquad u \sim N(0, \mathrm{diag}\,\tau^2), \quad
    \varepsilon_m \sim N(0, \mathrm{diag}\,\sigma^2(h)),

where an encoder computes μ(h) and σ(h) from the hidden state h. All answers to a question share the offset u. The
variances τ² are trained and are the same for all questions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probes.metrics.functional import spearman

#: Lower bound on σ. Without it, identical answers would drive the likelihood to infinity.
FLOOR = 0.01
#: Number of answers drawn to compute the score of a question.
DRAWS = 20


class Gaussian(NamedTuple):
    """Normal distributions with independent components.

    Attributes:
        mean: Mean μ, [..., component] float32.
        deviation: Standard deviation σ, [..., component] float32.
    """

    mean: Tensor
    deviation: Tensor


class Answers(NamedTuple):
    """Sufficient statistics of each question's answer embeddings.

    Attributes:
        number: Number of answers with an embedding, [question] float32.
        mean: Mean of the projected embeddings, [question, component] float32; 0 if there are no embeddings.
        variance: Mean squared deviation from `mean`, [question, component] float32; 0 if there are no embeddings.
    """

    number: Tensor
    mean: Tensor
    variance: Tensor


def principal_axes(embeddings: Tensor, n: int) -> Tensor:
    """Compute the first n principal axes [n, d] of uncentred embeddings [..., d]. Embeddings with NaN are ignored."""
    given = embeddings.flatten(0, -2).double()
    given = given[given.isfinite().all(-1)]
    return torch.linalg.eigh(given.T @ given).eigenvectors.flip(-1)[:, :n].T.to(embeddings.dtype)


def summarise(embeddings: Tensor, axes: Tensor) -> Answers:
    """Project embeddings [question, sample, d] onto `axes` [component, d] and summarise them.

    Embeddings with NaN are ignored.
    """
    given = embeddings.isfinite().all(-1)
    projected = embeddings.nan_to_num() @ axes.T
    number = given.sum(-1).to(embeddings.dtype)
    share = (given / number.clamp_min(1)[:, None])[..., None]
    mean = (share * projected).sum(1)
    return Answers(number, mean, (share * (projected - mean[:, None]).square()).sum(1))


def encode(hidden: Tensor, weight_in: Tensor, bias_in: Tensor, weight: Tensor, bias: Tensor) -> Gaussian:
    """Predict means and standard deviations with layer norm and one hidden GELU layer.

    Args:
        hidden: Standardised hidden states, [..., row, d_model].
        weight_in, bias_in: First layer, [..., d_model, hidden] and [..., 1, hidden].
        weight, bias: Second layer, [..., hidden, 2 · component] and [..., 1, 2 · component]. The first half of its
            outputs are the means. The standard deviations are the softplus of the second half, plus `FLOOR`.
    """
    normal = nn.functional.layer_norm(hidden, hidden.shape[-1:])
    mean, raw = (nn.functional.gelu(normal @ weight_in + bias_in) @ weight + bias).chunk(2, -1)
    return Gaussian(mean, nn.functional.softplus(raw) + FLOOR)


def initial_weights(n_features: int, d_model: int, hidden: int, components: int) -> dict[str, Tensor]:
    """Draw the initial weights of one encoder per feature from torch's global random generator. See `encode`."""
    bias = torch.zeros(n_features, 1, 2 * components)
    bias[..., components:] = math.log(math.expm1(max(components**-0.5 - FLOOR, FLOOR)))
    return {
        "weight_in": torch.randn(n_features, d_model, hidden) / d_model**0.5,
        "bias_in": torch.zeros(n_features, 1, hidden),
        "weight": 0.3 * torch.randn(n_features, hidden, 2 * components) / hidden**0.5,
        "bias": bias,
    }


def answer_loss(predicted: Gaussian, shared: Tensor, answers: Answers) -> Tensor:
    """Compute the negative log-likelihood of the answers in nats per answer, with shape [...].

    Args:
        predicted: Distribution [..., question, component].
        shared: Variances τ² of the shared offset u, [..., 1, component].
        answers: Statistics of the answers. Questions without answers are ignored.
    """
    n = answers.number[:, None]
    within = predicted.deviation.square()
    around = shared + within / n.clamp_min(1)
    scatter = (n - 1) * within.log() + n * answers.variance / within
    offset = (n.clamp_min(1) * around).log() + (answers.mean - predicted.mean).square() / around
    terms = (scatter + offset + n * math.log(2 * math.pi)).sum(-1) / 2
    return torch.where(answers.number > 0, terms, 0).sum(-1) / answers.number.sum().clamp_min(1)


def drawn_noise(components: int, seed: int = 0) -> Tensor:
    """Draw the standard normal noise [draw, component] that all questions share."""
    return torch.randn(DRAWS, components, generator=torch.Generator().manual_seed(seed))


def sampled_score(predicted: Gaussian, shared: Tensor, noise: Tensor) -> Tensor:
    r"""Compute the median cosine similarity over all pairs of drawn answer embeddings.

    The draws are normally distributed with the predicted standard deviation. Their mean is the predicted mean μ,
    rescaled to the norm √(‖μ‖² + `shared`).

    Args:
        predicted: Distribution of the answer embeddings, [..., component].
        shared: Total variance Σ τ² of the shared offset u, [...].
        noise: Noise from `drawn_noise`, [draw, component].

    Returns:
        Scores [...] between −1 and 1. Higher means more agreement.
    """
    mean, deviation = predicted
    longer = (1 + shared / mean.square().sum(-1).clamp_min(1e-12)).sqrt()
    drawn = (longer[..., None] * mean)[..., None, :] + deviation[..., None, :] * noise
    unit = nn.functional.normalize(drawn, dim=-1)
    first, second = torch.triu_indices(len(noise), len(noise), 1, device=noise.device)
    return (unit @ unit.mT)[..., first, second].median(-1).values


def rank_correlations(scores: Tensor, agreement: Tensor) -> Tensor:
    """Compute each candidate's Spearman correlation between scores and agreement, [candidate] float64.

    Args:
        scores: Scores of the candidates, [row, candidate]. A candidate with constant scores gets a correlation of −1.
        agreement: Mean cosine similarity between answers (1 − SEU), [row]. Rows with NaN are ignored.
    """
    given = agreement.isfinite()
    share = ((1 + agreement[given]) / 2).clamp(0, 1)  # `spearman` takes accuracies in [0, 1]
    return torch.stack([spearman(column, share, torch.ones_like(share)) for column in scores[given].T]).nan_to_num(-1)


def collapse(scores: Tensor, agreement: Tensor, deviation: Tensor) -> str | None:
    """Return a warning if the predicted spread has collapsed, and None otherwise.

    The spread has collapsed if any of these conditions holds on the validation questions:
        1. At least 99 % of the predicted standard deviations σ are within 1 % of `FLOOR`.
        2. The coefficient of variation of Σ σ² across questions is below 1 %.
        3. The standard deviation of the scores is less than 5 % of the standard deviation of the agreements.
        4. The rank correlation between scores and agreements is not significantly positive at the 5 % level.

    Args:
        scores: Scores of one candidate, [row].
        agreement: See `rank_correlations`.
        deviation: Predicted standard deviations σ, [row, component].
    """
    given = agreement.isfinite()
    scores, agreement, deviation = (values[given].double().cpu() for values in (scores, agreement, deviation))
    n, start = len(scores), "The latent spread has collapsed, so the score is meaningless: "
    at_floor = float((deviation < 1.01 * FLOOR).double().mean())
    if at_floor >= 0.99:
        return f"{start}{at_floor:.0%} of the predicted standard deviations are at their lower bound of {FLOOR:g}."
    total = deviation.square().sum(-1)
    varies = float(total.std() / total.mean())
    if varies < 0.01:
        return f"{start}the spread is the same for all {n} validation questions (variation: {varies:.2%} of its mean)."
    ratio = float(scores.std() / agreement.std())
    if ratio < 0.05:
        return (
            f"{start}the score varies only {ratio:.1%} as much as the agreement of the answers to {n} validation "
            "questions."
        )
    rank, chance = float(rank_correlations(scores[:, None], agreement)), 1.645 / math.sqrt(max(n - 1, 1))
    if rank <= chance:
        return (
            f"{start}the rank correlation of the score with the agreement of the answers to {n} validation questions "
            f"is only {rank:.2f}. Values up to {chance:.2f} can occur by chance."
        )
    return None
