"""Compare semantic entropies, embedding spread and threshold with plain loops."""

from __future__ import annotations

from math import exp, log, nan

import numpy as np
import pytest

from datamodules.semantic import (
    clusters_of,
    discrete_entropy,
    entropy_threshold,
    likelihood_entropy,
    seu,
)
from extract.errors import InputError


def test_the_discrete_entropy_is_computed_from_the_fractions_of_clusters() -> None:
    assert discrete_entropy(["a", "b", "a", "c"]) == pytest.approx(1.5 * log(2))
    assert discrete_entropy(list(range(10))) == pytest.approx(log(10))
    assert discrete_entropy(["a"] * 10) == 0
    assert np.isnan(discrete_entropy([]))


def test_each_unparsed_answer_is_a_separate_cluster() -> None:
    assert discrete_entropy(clusters_of([None, None, "", ""])) == pytest.approx(log(4))
    assert discrete_entropy(clusters_of([None, "paris", None, "paris"])) == pytest.approx(1.5 * log(2))


def test_equal_shares_have_equal_bits_in_any_order() -> None:
    rng, labels = np.random.default_rng(0), list("aaaaabbbcd")
    assert len({discrete_entropy(rng.permutation(labels).tolist()) for _ in range(50)}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_likelihood_entropy_equals_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logprobs, clusters = -rng.exponential(1, 10), rng.integers(0, 4, 10).tolist()
    total, entropy = sum(exp(one) for one in logprobs), 0.0
    for cluster in set(clusters):
        share = sum(exp(one) for one, label in zip(logprobs, clusters, strict=True) if label == cluster) / total
        entropy -= share * log(share)
    assert likelihood_entropy(logprobs, clusters) == pytest.approx(entropy, abs=1e-12)
    assert likelihood_entropy(logprobs - 2000, clusters) == pytest.approx(entropy, abs=1e-9)


def test_equally_likely_answers_have_the_discrete_entropy() -> None:
    clusters = ["a", "b", "a", "c", "a"]
    assert likelihood_entropy(np.full(5, -0.7), clusters) == pytest.approx(discrete_entropy(clusters), abs=1e-12)


def test_answers_without_tokens_have_no_likelihood() -> None:
    assert likelihood_entropy(np.array([-1.0, nan, -1.0]), ["a", "b", "c"]) == pytest.approx(log(2))
    assert likelihood_entropy(np.array([0.0, -3000.0]), ["a", "b"]) == 0  # exp(-3000) underflows to 0
    assert np.isnan(likelihood_entropy(np.array([nan]), ["a"]))


@pytest.mark.parametrize("n", [2, 5, 10])
def test_seu_is_the_mean_cosine_distance_of_pairs(n: int) -> None:
    e = np.random.default_rng(n).normal(size=(n, 8))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    pairs = [1 - float(e[i] @ e[j]) for i in range(n) for j in range(i)]
    assert seu(e) == pytest.approx(np.mean(pairs), abs=1e-12)
    with_empty = np.insert(e, 1, nan, axis=0)
    assert seu(with_empty.astype(np.float32)) == pytest.approx(np.mean(pairs), abs=1e-6)


def test_seu_has_known_values_for_equal_opposite_and_single_answers() -> None:
    e = np.random.default_rng(0).normal(size=(1, 8))
    e /= np.linalg.norm(e)
    assert 0 <= seu(np.repeat(e, 7, axis=0)) < 1e-12
    assert seu(np.concatenate([e, -e])) == pytest.approx(2)  # M/(M−1), not clipped
    assert np.isnan(seu(e))
    assert np.isnan(seu(np.full((3, 8), nan)))


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_minimises_the_squares_over_a_hundred_candidates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = np.where(rng.random(80) < 0.6, 0.0, rng.uniform(0, 2.3, 80).round(2))
    best = (np.inf, 0.0)
    for g in np.linspace(1e-10, h.max(), 100):
        low, high = h[h < g], h[h >= g]
        if len(low) and len(high):
            best = min(best, (float(((low - low.mean()) ** 2).sum() + ((high - high.mean()) ** 2).sum()), float(g)))
    found = entropy_threshold(np.append(h, nan))
    assert found == pytest.approx(best[1], abs=1e-12)
    assert (h < found).any()
    assert (h >= found).any()


def test_identical_entropies_have_no_threshold() -> None:
    for same in (np.zeros(5), np.full(5, 1.2), np.full(5, nan), np.zeros(0)):
        with pytest.raises(InputError, match="different semantic entropies"):
            entropy_threshold(same)
