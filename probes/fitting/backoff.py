"""Fit the novelty measure and the back-off of a probe. See `probes.saved.novelty`.

Back-off shifts the confidences of novel questions towards the base rate. The base rate is the fraction of right answers
in the training and validation rows. The back-off is fitted to ridge-regression predictions on held-out groups of
questions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datamodules.batches import Batch
from datamodules.token_states import TokenStates
from datamodules.union import broader_rows, original_ids
from probes.fitting.broader import fit_broader
from probes.fitting.calibration import fit_platt
from probes.fitting.distance import fit_distance
from probes.fitting.group_ridge import MOST_LAYERS, each_fold, few_layers, held_out_scores, whole_groups
from probes.fitting.module import ProbeModule
from probes.fitting.standardiser import standardiser
from probes.saved.novelty import Confidences, Novelty, flat

N_FOLDS = 5
#: With fewer groups than `LEAST_GROUPS`, the questions are divided into `N_CLUSTERS` clusters.
LEAST_GROUPS, N_CLUSTERS = 3, 5
#: Prior weight of the base rate, and penalty on the squared deviation from this prior.
PRIOR, PENALTY = 0.1, 1.0
#: Maximum size of the features for fitting, in bytes. The fit needs six times as much memory.
MOST_BYTES = 96 * 2**20


def fit_novelty(module: ProbeModule) -> Novelty:
    """Fit a probe's novelty measure and back-off on the training and validation splits.

    If the features of these splits take up more than `MOST_BYTES` bytes, only evenly spaced rows are used.
    """
    assert module.choice is not None
    data, rows, chosen = module.data, module.data.batch("train", "val", prefixes=True), module.choice.features
    few = chosen[:: -(-len(chosen) // MOST_LAYERS)]
    most = max(1, MOST_BYTES // (4 * len(few) * rows.features.shape[2]))
    if len(rows.row) > most:
        rows = rows.take(torch.arange(0, len(rows.row), -(-len(rows.row) // most)))
    features = chosen_features(rows.features, chosen if data.broader else few)
    groups = [data.table.groups[row] for row in rows.question.tolist()]
    groups = groups if len(set(groups)) >= LEAST_GROUPS else clusters(features[:, 0], rows.question)
    n_tokens = len(data.pooled.names) if data.pooled is not None and module.choice.layers else 0
    n_hidden = features.shape[2] - n_tokens
    random, held_out = data.inner_folds(rows.question, N_FOLDS), whole_groups(groups)
    held_out = held_out if held_out.any() else random  # only one group
    novelty = fit_backoff(features, n_hidden, rows.right, rows.known, random, held_out)
    if data.broader:
        (other, other_groups, other_ids), originals = broader_rows(data), original_ids(data)
        other = other._replace(features=chosen_features(other.features, chosen))
        every, ids = (
            Batch.cat([rows._replace(features=features), other]),
            [originals[i] for i in rows.question.tolist()],
        )
        is_own = torch.arange(len(every.row)) < len(groups)
        names, counts = [*map(str, groups), *other_groups], (every.right, every.known)
        novelty.broader = fit_broader(every.features, n_hidden, *counts, names, ids + other_ids, is_own)
    return novelty


@torch.no_grad()
def backed_off(module: ProbeModule, novelty: Novelty, features: Any) -> Confidences:
    """Apply a probe and its back-off to features [row, feature, d_model]."""
    assert module.choice is not None
    head, calibrator = module.head().to(features.device), module.choice.calibrator.to(features.device)

    def of_chosen(chosen: Any) -> Tensor:
        return torch.stack([column.double() for column in novelty(flat(chosen), calibrator(head(chosen)))], 1)

    confidence, novelties, is_novel = module.of_input(of_chosen, features, module.choice.features).unbind(1)
    return Confidences(confidence, novelties, is_novel.bool())


def chosen_features(features: Any, chosen: Sequence[int]) -> Tensor:
    """Return the features [row, layer, width] at the indices `chosen`. Token states are averaged over each answer."""
    if isinstance(features, TokenStates):
        return torch.stack([flat(features[:, feature]) for feature in chosen], 1)
    return features[:, list(chosen)]


def clusters(features: Tensor, question: Tensor) -> list[int]:
    """Divide questions into clusters with k-means, and return the cluster of each row.

    `question` [row] int64 is the question of each row. `features` [row, width] are averaged over each question's rows.
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
    """Fit a novelty measure and its back-off.

    Args:
        features: Features, [row, layer, width] float32. The novelty is computed from the hidden states of the first
            layer.
        n_hidden: Width of the hidden states, which are the first coordinates of the features.
        right, known: Number of right answers and number of graded answers, [row].
        random: Fold of each row, [row] int64, with questions assigned to folds at random.
        groups: Fold of each row, [row] int64, with question groups kept together.
    """
    distance = fit_distance(features[:, 0, :n_hidden], random, groups)
    novelty = Novelty(n_hidden, distance.rank)
    novelty.load_state_dict(distance.state_dict(), strict=False)
    few, accuracy = few_layers(features), right / known
    novelty.base_rate.copy_(right.sum() / known.sum())
    calibrator = fit_platt(held_out_scores(few, accuracy, random), right, known)
    confidence = calibrator(held_out_scores(few, accuracy, groups))
    base_rate = torch.zeros_like(confidence)
    for held, others in each_fold(groups):
        base_rate[held] = (right[others].sum() / known[others].sum()).double()
    share = 1 / groups.bincount()[groups]  # all folds have the same weight
    novelty.weight.copy_(base_rate_weight(confidence, base_rate, accuracy.double(), share / share.sum()))
    return novelty


def base_rate_weight(confidence: Tensor, base_rate: Tensor, accuracy: Tensor, share: Tensor) -> Tensor:
    r"""Compute the weight w of the base rate by minimising the penalised squared error on held-out rows.

    .. math:: \min_{0 \le w \le 1} \sum_i s_i [(1 - w) f_i + w r_i - \hat p_i]^2 + \rho (w - w_0)^2

    where f_i is the confidence for row i, p̂_i is its measured accuracy, and s_i is its share of the total row weight.
    The base rate r_i is computed from the folds that do not contain row i. The prior weight w₀ is `PRIOR`, and the
    penalty ρ is `PENALTY`.

    Args:
        confidence, base_rate, accuracy, share: Each [row] float64. The shares sum to 1.

    >>> ones = torch.ones(4, dtype=torch.float64)
    >>> base_rate_weight(0.9 * ones, 0.4 * ones, 0.4 * ones, ones / 4)  # (0.5 · 0.5 + 1 · 0.1) / (0.5² + 1)
    tensor(0.2800, dtype=torch.float64)
    """
    gap = confidence - base_rate
    best = (share * (confidence - accuracy) * gap).sum() + PENALTY * PRIOR
    return (best / ((share * gap.square()).sum() + PENALTY)).clamp(0, 1)
