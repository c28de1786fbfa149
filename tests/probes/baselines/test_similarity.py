"""Compare the similarities of answers with loops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.baselines.similarity import cosine, jaccard, rouge_l

TEXTS = st.lists(st.lists(st.sampled_from(["lima", "Lima.", "is", "it", "", "42", "São"]), max_size=6).map(" ".join))


def longest(a: list[str], b: list[str]) -> int:
    """Return the length of the longest common subsequence, by recursion."""
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return longest(a[:-1], b[:-1]) + 1
    return max(longest(a[:-1], b), longest(a, b[:-1]))


@pytest.mark.slow
@given(TEXTS)
def test_rouge_is_the_f_measure_of_the_longest_common_subsequence(texts: list[str]) -> None:
    matrix = rouge_l(texts)
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    for i, a in enumerate(words):
        for j, b in enumerate(words):
            common = longest(a, b)
            expected = 2 / (len(a) / common + len(b) / common) if common else 0.0  # harmonic mean
            assert matrix[i, j] == pytest.approx(1.0 if i == j else expected, abs=1e-12)


@pytest.mark.slow
@given(TEXTS)
def test_jaccard_is_the_share_of_words_in_both(texts: list[str]) -> None:
    matrix = jaccard(texts)
    for i, a in enumerate(texts):
        for j, b in enumerate(texts):
            words = sorted(set(f"{a} {b}".lower().split()))
            both = [word for word in words if word in a.lower().split() and word in b.lower().split()]
            expected = len(both) / len(words) if words else 0.0
            assert matrix[i, j] == pytest.approx(1.0 if i == j else expected, abs=1e-12)


def test_words_keep_their_punctuation_for_jaccard_but_not_for_rouge() -> None:
    assert rouge_l(["Lima.", "lima!"])[0, 1] == 1
    assert jaccard(["Lima.", "lima!"])[0, 1] == 0
    assert jaccard(["Lima  Peru", "PERU lima"])[0, 1] == 1
    assert rouge_l(["Lima Peru", "Peru Lima"])[0, 1] == 0.5  # the order counts


@pytest.mark.parametrize("similarity", [jaccard, rouge_l])
def test_empty_answers_are_similar_to_nothing(similarity: Any) -> None:
    np.testing.assert_array_equal(similarity(["", "", "lima"]), np.eye(3))


def test_cosines_are_dot_products_without_negative_ones_and_empty_answers() -> None:
    e = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    matrix = cosine(np.insert(e, 2, np.nan, axis=0))
    assert matrix.shape == (5, 5)
    assert (matrix == 0).any()
    for i in range(5):
        for j in range(5):
            dot = max(0.0, sum(float(x) * float(y) for x, y in zip(e[i], e[j], strict=True)))
            assert matrix[i, j] == pytest.approx(1.0 if i == j else dot, abs=1e-12)
