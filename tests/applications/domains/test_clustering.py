"""Tests of clusters of questions and of their characteristic words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from applications.domains.clustering import CANDIDATES, choose_number, cluster_questions
from applications.domains.words import characteristic_words
from extract.errors import InputError


def blobs(sizes: tuple[int, ...] = (80, 50, 40, 30), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors [question, d_model] around one centre for each size, and their clusters [question]."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    points = rng.normal(size=(len(sizes), 16))[cluster] + 0.5 * rng.normal(size=(len(cluster), 16))
    return points / np.linalg.norm(points, axis=1, keepdims=True), cluster


@pytest.mark.slow
def test_the_number_of_clusters_is_recovered_and_clusters_are_numbered_by_size() -> None:
    points, truth = blobs()
    found = cluster_questions(points)
    assert found.cluster.max() == 3
    assert adjusted_rand_score(truth, found.cluster) > 0.95
    assert sorted(np.bincount(found.cluster), reverse=True) == np.bincount(found.cluster).tolist()
    assert list(found.stability) == [number for number in CANDIDATES if number <= 200 / 20]
    assert found.stability[4].mean() > 0.95 > found.stability[8].mean()


@pytest.mark.slow
def test_noise_has_no_stable_clusters() -> None:
    noise = np.random.default_rng(0).normal(size=(80, 16))
    assert max(values.mean() for values in cluster_questions(noise).stability.values()) < 0.3


def test_the_largest_number_with_nine_tenths_of_the_best_stability_is_chosen() -> None:
    found = {2: 1.0, 3: 0.2, 4: 0.95, 5: 0.91, 6: 0.89}
    assert choose_number({number: np.array([mean, mean]) for number, mean in found.items()}) == 5
    assert choose_number({2: np.array([-0.1]), 3: np.array([-0.2])}) == 2


def test_distances_are_to_the_centre_and_the_order_does_not_matter() -> None:
    points, _ = blobs()
    found, order = cluster_questions(points, 4), np.random.default_rng(1).permutation(len(points))
    shuffled = cluster_questions(points[order], 4)
    np.testing.assert_array_equal(shuffled.cluster, found.cluster[order])
    for one in range(4):
        inside = points[found.cluster == one]
        expected = np.linalg.norm(inside - inside.mean(0), axis=1)
        np.testing.assert_allclose(found.distance[found.cluster == one], expected, atol=1e-3)


def test_identical_questions_count_once_and_share_a_cluster() -> None:
    points, _ = blobs()
    found = cluster_questions(points, 4)
    repeated = cluster_questions(np.concatenate([points, np.repeat(points[:1], 500, axis=0)]), 4)
    assert repeated.n_distinct == found.n_distinct == len(points)
    assert len(set(repeated.cluster[[0, *range(200, 700)]])) == 1
    assert adjusted_rand_score(found.cluster, repeated.cluster[:200]) == 1


@pytest.mark.parametrize(
    ("n", "n_clusters", "message"),
    [
        (200, 1, "`clusters` to be between 2 and the number of distinct questions, 200, but got 1"),
        (30, 31, "`clusters` to be between 2 and the number of distinct questions, 30, but got 31"),
        (39, None, "at least 40 distinct questions to choose the number of clusters, but got 39. Pass --clusters"),
    ],
)
def test_too_few_questions_are_refused(n: int, n_clusters: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cluster_questions(blobs()[0][:n], n_clusters)


def test_a_set_of_identical_questions_is_refused() -> None:
    with pytest.raises(InputError, match="the number of distinct questions, 1, but got 2"):
        cluster_questions(np.ones((50, 8)), 2)


# Words


def test_words_are_ranked_by_their_log_odds_with_a_prior() -> None:
    texts = ["the capital of Peru"] * 30 + ["the river in Peru"] * 30 + ["the river"]
    cluster = np.array([0] * 30 + [1] * 31)
    first, second = characteristic_words(texts, cluster, 2)
    assert first == ["capital", "of"]
    assert second == ["river", "in"]
    here, rest = {"capital": 30, "of": 30, "peru": 30, "the": 30}, {"river": 31, "in": 30, "peru": 30, "the": 31}
    total = {word: here.get(word, 0) + rest.get(word, 0) for word in here | rest}
    prior = {word: count * 6 / sum(total.values()) for word, count in total.items()}

    def z_score(word: str) -> float:
        counts = [part.get(word, 0) + prior[word] for part in (here, rest)]
        odds = [math.log(y / (sum(part.values()) + 6 - y)) for y, part in zip(counts, (here, rest), strict=True)]
        return (odds[0] - odds[1]) / math.sqrt(sum(1 / y for y in counts))

    assert [word for word in sorted(total, key=z_score, reverse=True) if z_score(word) > 2.326] == ["capital", "of"]


@pytest.mark.parametrize("texts", [["", ""], ["?", "!"], ["same", "same"]])
def test_texts_without_differences_have_no_characteristic_words(texts: list[str]) -> None:
    assert characteristic_words(texts, np.array([0, 1]), 2) == [[], []]
