"""Tests of the variability metrics against an independent implementation with plain loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from applications.background.variability import (
    METRICS,
    Counted,
    collision_rate,
    max_exact_match,
    mean_lcs_distance,
    mean_levenshtein,
    measure,
)

LIMIT = 9


def edit_distance(a: list[int], b: list[int]) -> int:
    row = [*range(len(b) + 1)]
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
    return row[-1]


def common_length(a: list[int], b: list[int]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def lcs_distance(a: list[int], b: list[int]) -> Fraction:
    if not a or not b:
        return Fraction(a != b)
    return 1 - Fraction(common_length(a, b), min(len(a), len(b)))


def mean_of_pairs(outputs: list[list[int]], distance: Callable[[list[int], list[int]], Fraction | float]) -> float:
    pairs = [*combinations(outputs, 2)]
    return float(sum(Fraction(distance(a, b)) for a, b in pairs) / len(pairs))


def random_outputs(seed: int) -> list[list[int]]:
    """Draw outputs of which some are equal, some contain others, and some are empty."""
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(0, 4, rng.integers(0, LIMIT + 1)).tolist() for _ in range(5)]
    return [drawn[i] for i in rng.integers(0, len(drawn), 12)] + [[], drawn[0][:3], [70_000, *drawn[1][:2]]]


@pytest.mark.parametrize("seed", range(10))
def test_all_metrics_equal_their_definitions(seed: int) -> None:
    outputs = random_outputs(seed)
    counted, n = Counted.of(outputs), len(outputs)
    counts = Counter(map(tuple, outputs)).values()
    assert max_exact_match(counted, n) == pytest.approx(max(counts) / n, abs=1e-12)
    assert collision_rate(counted) == pytest.approx(mean_of_pairs(outputs, lambda a, b: a == b), abs=1e-12)
    levenshtein = mean_of_pairs(outputs, edit_distance) / LIMIT
    assert mean_levenshtein(counted, LIMIT) == pytest.approx(levenshtein, abs=1e-12)
    assert mean_lcs_distance(counted) == pytest.approx(mean_of_pairs(outputs, lcs_distance), abs=1e-12)


def test_identical_outputs_do_not_vary_even_if_they_are_empty() -> None:
    for outputs in ([[1, 2]] * 5, [[]] * 5):
        values = measure([Counted.of(outputs)], LIMIT, 5)
        assert {name: values[name][0] for name in METRICS} == {"memf": 1, "avg_lev": 0, "avg_lcs": 0, "collision": 1}
        assert Counted.of(outputs).first_divergence is None


def test_a_subsequence_has_lcs_distance_zero_and_an_empty_output_has_distance_one() -> None:
    assert mean_lcs_distance(Counted.of([[1, 2, 3], [1, 3]])) == 0
    assert mean_lcs_distance(Counted.of([[1, 2, 3], []])) == 1


def test_words_and_token_ids_give_the_same_values() -> None:
    ids = random_outputs(3)
    words = [[f"word {token}" for token in one] for one in ids]
    shifted = [[token + 150_000 for token in one] for one in ids]
    first, *others = (measure([Counted.of(one)], LIMIT, len(ids)) for one in (ids, words, shifted))
    assert first == others[0] == others[1]


def test_memf_of_many_outputs_is_the_expectation_for_the_smaller_number() -> None:
    outputs = Counted.of([[0]] * 6 + [[1]] * 3 + [[2]])
    subsets = [*combinations(outputs.index.tolist(), 4)]
    expected = np.mean([max(Counter(one).values()) / 4 for one in subsets])
    assert max_exact_match(outputs, 4) == pytest.approx(expected, abs=0.015)
    assert expected > 0.6 + 0.02, "few outputs overstate the share of the most frequent one"


@pytest.mark.slow
def test_the_collision_rate_and_distances_are_unbiased_for_few_outputs() -> None:
    rng, p = np.random.default_rng(0), np.array([0.5, 0.3, 0.2])
    drawn = [Counted.of([[i] for i in rng.choice(3, 3, p=p)]) for _ in range(4000)]
    values = np.array([collision_rate(one) for one in drawn])
    assert values.mean() == pytest.approx((p**2).sum(), abs=3 * values.std() / 4000**0.5)
    edits = np.array([mean_levenshtein(one, 1) for one in drawn])
    assert edits.mean() == pytest.approx(1 - (p**2).sum(), abs=3 * edits.std() / 4000**0.5)


def test_outputs_are_divided_by_their_indices() -> None:
    outputs = Counted.of([[1], [2], [1], [3]])
    assert outputs.every_second(0).counts.tolist() == [2]
    assert outputs.every_second(1).counts.tolist() == [1, 1]
    assert Counted.of([[5, 6, 7], [5, 6, 8], [5, 6]]).first_divergence == 2
