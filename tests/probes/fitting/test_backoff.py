"""Tests of the fitted back-off: folds of groups, the weight of the base rate, and held-out groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from probes.fitting.backoff import PENALTY, PRIOR, base_rate_weight, clusters, fit_backoff
from probes.fitting.group_ridge import whole_groups


def test_groups_are_not_divided_and_folds_have_similar_sizes() -> None:
    groups = np.random.default_rng(0).integers(0, 40, 600).tolist()
    fold = whole_groups(groups)
    for group in set(groups):
        assert len(fold[torch.tensor([one == group for one in groups])].unique()) == 1
    sizes = fold.bincount()
    assert len(sizes) == 8
    assert sizes.max() - sizes.min() <= 15


def test_clusters_separate_what_is_far_apart() -> None:
    centres = 20 * torch.eye(5).repeat(30, 1)
    found = clusters(centres + torch.randn(150, 5, generator=torch.Generator().manual_seed(0)), torch.arange(150))
    assert found[:5] * 30 == found
    assert len(set(found)) == 5


def test_identical_questions_are_one_cluster() -> None:
    assert clusters(torch.ones(20, 3), torch.arange(20)) == [0] * 20


def test_clusters_do_not_divide_a_question() -> None:
    found = clusters(torch.randn(200, 5, generator=torch.Generator().manual_seed(0)), torch.arange(200) // 10)
    assert all(len(set(found[i : i + 10])) == 1 for i in range(0, 200, 10))


@pytest.mark.parametrize("n", [20, 60, 80, 100, 300])
def test_novelty_is_calibrated_for_few_and_many_rows(n: int) -> None:
    generator, spectrum = torch.Generator().manual_seed(n), 1 / torch.arange(1, 97).sqrt()

    def rows(n_rows: int) -> torch.Tensor:
        return torch.randn(n_rows, 96, generator=generator) * spectrum

    right, known = torch.ones(n), torch.full((n,), 2.0)
    fitted = fit_backoff(rows(n)[:, None], 96, right, known, torch.arange(n) % 5, torch.arange(n) // 5 % 3)
    found = fitted(rows(500), torch.full((500,), 0.5))
    assert 0.3 < float(found.novelty.mean()) < 0.7
    assert float(found.is_novel.double().mean()) < 0.15
    assert fitted(rows(100) + 4 * spectrum, torch.full((100,), 0.5)).is_novel.double().mean() > 0.9


def test_constant_features_have_no_principal_directions() -> None:
    features = torch.zeros(40, 2, 3)
    features[:, 1] = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))  # only the first layer is constant
    right, known = torch.ones(40), torch.full((40,), 2.0)
    fitted = fit_backoff(features, 3, right, known, torch.arange(40) % 5, torch.arange(40) % 3)
    assert fitted.rank == 0
    assert fitted.problem() is None
    assert not fitted(features[:, 0], torch.full((40,), 0.5)).is_novel.any()


def test_the_weight_minimises_the_penalised_squared_error() -> None:
    rng = np.random.default_rng(0)
    confidence, base, accuracy = rng.random(50), rng.random(50), rng.random(50)
    share = rng.random(50)
    share /= share.sum()

    def loss(w: float) -> float:
        return (share * ((1 - w) * confidence + w * base - accuracy) ** 2).sum() + PENALTY * (w - PRIOR) ** 2

    found = base_rate_weight(*map(torch.from_numpy, (confidence, base, accuracy, share)))
    assert float(found) == pytest.approx(minimize_scalar(loss, bounds=(0, 1), method="bounded").x, abs=1e-5)


def simulated(transfers: bool) -> tuple[torch.Tensor, ...]:
    """Return features, counts and folds of four groups. If `transfers` is false, one of them has another direction."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(400) % 4
    features = torch.randn(400, 1, 12, generator=generator)
    features[torch.arange(400), 0, 8 + group] += 6  # each group is far from the others
    sign = torch.ones(400) if transfers else torch.tensor([1.0, 1.0, 1.0, -1.0])[group]
    right = torch.distributions.Binomial(10, logits=3 * sign * features[:, 0, 0]).sample()
    return features, right, torch.full((400,), 10.0), torch.arange(400) // 4 % 5, group


def test_the_base_rate_has_a_larger_weight_if_the_probe_fails_on_held_out_groups() -> None:
    weights = {}
    for transfers in (True, False):
        features, right, known, random, group = simulated(transfers)
        fitted = fit_backoff(features, 12, right, known, random, group)
        weights[transfers] = float(fitted.weight)
        assert float(fitted.base_rate) == pytest.approx(float(right.sum() / known.sum()))
        assert fitted.full > fitted.quantiles[99]  # the held-out groups are novel
    assert weights[True] < PRIOR < weights[False]


def test_a_held_out_group_is_novel_and_new_rows_of_known_groups_are_not() -> None:
    features, right, known, random, group = simulated(True)
    inside = group < 3
    fitted = fit_backoff(*(features[inside], 12), *(one[inside] for one in (right, known, random, group)))
    away = fitted(features[~inside, 0], torch.full((100,), 0.5))
    assert away.is_novel.double().mean() > 0.9
    assert fitted(features[inside, 0], torch.full((300,), 0.5)).is_novel.double().mean() < 0.05
