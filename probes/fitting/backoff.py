"""Fit the `Novelty` of a probe, which detects novel questions and shifts their confidences (back-off).

The shift depends on how good the confidences of novel questions are. To measure this, groups of training questions are
held out in turn. Fitting the probe again for every group would be too slow, so a ridge regression is fitted instead. If
the datamodule has broader stores, their questions are used instead of the held-out groups.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datamodules.batches import Batch
from datamodules.token_states import TokenStates
from datamodules.union import broader_rows
from probes.fitting.broader import fit_broader
from probes.fitting.calibration import fit_platt
from probes.fitting.group_ridge import each_fold, few_layers, held_out_scores, whole_groups
from probes.fitting.module import ProbeModule
from probes.fitting.standardiser import standardiser
from probes.saved.novelty import N_QUANTILES, RANK, START, Confidences, Novelty, flat

#: Number of folds of questions.
N_FOLDS = 5
#: If there are fewer than `LEAST_GROUPS` groups, `N_CLUSTERS` clusters of similar questions take their place.
LEAST_GROUPS, N_CLUSTERS = 3, 5
#: Minimum number of rows per principal direction. With fewer rows, the remaining variance is underestimated.
ROWS_PER_DIRECTION = 10
#: Maximum number of rows for computing the principal directions. The time grows with the square of this number.
MOST_ROWS = 2048
#: Quantile of the distances of held-out questions at which the back-off is complete.
FULL = 0.1
#: Prior weight of the base rate, and the penalty on the squared difference between the fitted and the prior weight. The
#: penalty is needed because a few held-out groups are weak evidence of how a probe behaves on other kinds of questions.
PRIOR, PENALTY = 0.1, 1.0


def fit_novelty(module: ProbeModule) -> Novelty:
    """Fit the `Novelty` of a fitted probe to the rows of the training and validation splits.

    If the probe was trained on prefixes of answers, these rows include the prefixes. Without them, the probe would flag
    the prefixes in a stream as novel.
    """
    assert module.choice is not None
    data, rows = module.data, module.data.batch("train", "val", prefixes=True)
    features = chosen_features(rows.features, module.choice.features)
    groups = [data.table.groups[row] for row in rows.question.tolist()]
    groups = groups if len(set(groups)) >= LEAST_GROUPS else clusters(features[:, 0], rows.question)
    n_tokens = len(data.pooled.names) if data.pooled is not None and module.choice.layers else 0
    n_hidden = features.shape[2] - n_tokens
    random, held_out = data.inner_folds(rows.question, N_FOLDS), whole_groups(groups)
    held_out = held_out if held_out.any() else random  # all questions are alike
    novelty = fit_backoff(features, n_hidden, rows.right, rows.known, random, held_out)
    if not data.broader:
        return novelty
    other, groups = broader_rows(data)
    every = Batch.cat([rows, other])
    chosen = torch.cat([features, chosen_features(other.features, module.choice.features)])
    labels = [None] * len(features) + groups
    return fit_broader(novelty, chosen, every.right, every.known, labels, module.predict(every.features))


@torch.no_grad()
def backed_off(module: ProbeModule, novelty: Novelty, features: Any) -> Confidences:
    """Return a probe's novelties and confidences with back-off, each [row], from features [row, feature, d_model]."""
    assert module.choice is not None
    return novelty(flat(module.selected(features, module.choice.features)), module.predict(features))


def chosen_features(features: Any, chosen: Sequence[int]) -> Tensor:
    """Return the chosen features [row, layer, width]. The states of an answer's tokens are averaged."""
    if isinstance(features, TokenStates):
        return torch.stack([flat(features[:, feature]) for feature in chosen], 1)
    return features[:, list(chosen)]


def clusters(features: Tensor, question: Tensor) -> list[int]:
    """Divide questions into clusters with k-means, and return the cluster of each row.

    Args:
        features: [row, width] features. They are averaged over the rows of a question.
        question: [row] int64 question of each row.
    """
    from sklearn.cluster import KMeans  # takes a second to import

    _, place, counts = question.unique(return_inverse=True, return_counts=True)
    mean, scale = standardiser(features[:, None])
    total = torch.zeros(len(counts), features.shape[1]).index_add_(0, place, (features - mean[0]) / scale[0])
    means = total / counts[:, None]
    k_means = KMeans(min(N_CLUSTERS, len(means.unique(dim=0))), n_init=4, random_state=0)
    found = k_means.fit_predict(means.numpy())
    return [int(found[i]) for i in place.tolist()]


def fit_backoff(
    features: Tensor, n_hidden: int, right: Tensor, known: Tensor, random: Tensor, groups: Tensor
) -> Novelty:
    """Fit a `Novelty` without a broader probe.

    Args:
        features: [row, layer, width] float32 features. The novelty reads the hidden states of the first layer.
        n_hidden: Width of the hidden states, which are the first coordinates of the features.
        right, known: [row] numbers of right answers and of graded answers.
        random: [row] int64 fold of each row if the questions are divided at random.
        groups: [row] int64 fold of each row if the questions are divided by group.
    """
    hidden, few = features[:, 0, :n_hidden], few_layers(features)
    n_least = len(hidden) - int(max(random.bincount().max(), groups.bincount().max()))
    rank = min(RANK, n_least // ROWS_PER_DIRECTION)  # the same for all fits, so that their distances are comparable
    novelty, accuracy = principal(hidden, rank), right / known
    novelty.quantiles.copy_(_distances(hidden, rank, random).quantile(torch.linspace(0, 1, N_QUANTILES)))
    novelty.full.copy_(torch.maximum(_distances(hidden, rank, groups).quantile(FULL), novelty.quantiles[START]))
    novelty.base_rate.copy_(right.sum() / known.sum())
    calibrator = fit_platt(held_out_scores(few, accuracy, random), right, known)
    confidence = calibrator(held_out_scores(few, accuracy, groups))
    base_rate = torch.zeros_like(confidence)
    for held, others in each_fold(groups):
        base_rate[held] = (right[others].sum() / known[others].sum()).double()
    share = 1 / groups.bincount()[groups]  # all folds have the same weight
    novelty.weight.copy_(base_rate_weight(confidence, base_rate, accuracy.double(), share / share.sum()))
    return novelty


def principal(hidden: Tensor, rank: int) -> Novelty:
    """Return a `Novelty` with the mean, scale and up to `rank` principal directions of hidden states [row, d_model]."""
    mean, scale = (one[0] for one in standardiser(hidden[:, None]))
    rows = hidden[:: -(-len(hidden) // MOST_ROWS)]  # evenly spaced, because rows are ordered by question
    _, singular, directions = torch.linalg.svd((rows - mean) / scale, full_matrices=False)
    variances = singular.square() / len(rows)
    rank = min(rank, max(0, int((variances > 1e-6 * variances[0]).sum()) - 1))
    novelty = Novelty(hidden.shape[1], rank)
    rest = variances[rank:].sum() / (hidden.shape[1] - rank)
    values = {"mean": mean, "scale": scale, "directions": directions[:rank], "variances": variances[:rank]}
    for name, value in {**values, "rest": rest if rest > 0 else torch.ones(())}.items():
        getattr(novelty, name).copy_(value)
    return novelty


def base_rate_weight(confidence: Tensor, base_rate: Tensor, accuracy: Tensor, share: Tensor) -> Tensor:
    r"""Return the weight of the base rate with the lowest penalised squared error on held-out rows.

    .. math:: \min_{0 \le w \le 1} \sum_i s_i [(1 - w) f_i + w r_i - \hat p_i]^2 + \rho (w - w_0)^2

    where f_i is the confidence of row i, r_i is the base rate of all groups except its own, p̂_i is its measured
    accuracy, and s_i is its weight. The prior weight w₀ is `PRIOR`, and the penalty ρ is `PENALTY`.

    Args:
        confidence, base_rate, accuracy, share: [row] float64 values f, r, p̂ and s. The weights s sum to 1.

    >>> ones = torch.ones(4, dtype=torch.float64)
    >>> base_rate_weight(0.9 * ones, 0.4 * ones, 0.4 * ones, ones / 4)  # (0.5 · 0.5 + 1 · 0.1) / (0.5² + 1)
    tensor(0.2800, dtype=torch.float64)
    """
    gap = confidence - base_rate
    best = (share * (confidence - accuracy) * gap).sum() + PENALTY * PRIOR
    return (best / ((share * gap.square()).sum() + PENALTY)).clamp(0, 1)


def _distances(hidden: Tensor, rank: int, fold: Tensor) -> Tensor:
    """Return the distance [row] of each row from the rows in all other folds."""
    distances = hidden.new_zeros(len(hidden))
    for held, others in each_fold(fold):
        distances[held] = principal(hidden[others], rank).distance(hidden[held])
    return distances
