"""Similarities in [0, 1] between the answers to a question, as symmetric matrices [sample, sample] float64.

The diagonal is 1. An empty answer has similarity 0 to all other answers.
"""

import re
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq

_WORD = re.compile(r"\w+")


def jaccard(texts: Sequence[str]) -> NDArray[np.float64]:
    """Compute the Jaccard similarities |a ∩ b| / |a ∪ b| of two word sets a and b, as in Lin et al. (arXiv 2305.19187).

    Words are separated by spaces and compared in lower case, with their punctuation marks.

    >>> float(jaccard(["It is Lima", "it is Rome"])[0, 1])
    0.5
    """
    words = [set(text.lower().split()) for text in texts]
    return _of_pairs(words, lambda a, b: len(a & b) / max(len(a | b), 1))


def rouge_l(texts: Sequence[str]) -> NDArray[np.float64]:
    """Compute the ROUGE-L scores 2 · LCS(a, b) / (|a| + |b|) of two word sequences a and b (Lin, 2004).

    LCS is the length of the longest common subsequence. Words are runs of letters, digits and underscores in lower
    case. They are not stemmed.

    >>> float(rouge_l(["It is Lima.", "It must be Lima"])[0, 1])  # "it" and "lima": 2 · 2 / (3 + 4)
    0.5714285714285714
    """
    words = [_WORD.findall(text.lower()) for text in texts]
    return _of_pairs(words, lambda a, b: 2 * LCSseq.similarity(a, b) / max(len(a) + len(b), 1))


def cosine(embeddings: NDArray[np.floating]) -> NDArray[np.float64]:
    """Compute cosine similarities of embeddings [sample, d] with norm 1, clipped at 0. NaN rows are left out."""
    rows = embeddings[~np.isnan(embeddings).any(1)].astype(np.float64)
    similarity = (rows @ rows.T).clip(0, 1)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def _of_pairs(items: Sequence, similarity: Callable[..., float]) -> NDArray[np.float64]:
    """Return the matrix of similarities for all pairs."""
    matrix = np.eye(len(items))
    for i, j in combinations(range(len(items)), 2):
        matrix[i, j] = matrix[j, i] = similarity(items[i], items[j])
    return matrix
