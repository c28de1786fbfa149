"""Similarities in [0, 1] between the answers to a question, as symmetric matrices [sample, sample] float64.

The diagonal is 1. An empty answer has similarity 0 to all other answers.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq
from rapidfuzz.process import cdist

_WORD = re.compile(r"\w+")


def jaccard(texts: Sequence[str]) -> NDArray[np.float64]:
    """Compute the Jaccard similarities of all pairs of answers, as in Lin et al. (arXiv 2305.19187).

    The similarity of two answers with the word sets a and b is |a ∩ b| / |a ∪ b|. Words are separated by whitespace.
    Case is ignored.

    >>> float(jaccard(["It is Lima", "it is Rome"])[0, 1])
    0.5
    """
    words = [set(text.lower().split()) for text in texts]
    column = {word: i for i, word in enumerate(set().union(*words))}
    contains = np.zeros((len(words), len(column)))
    for row, own in zip(contains, words, strict=True):
        row[[column[word] for word in own]] = 1
    n_words, shared = contains.sum(1), contains @ contains.T
    return _normalised(shared, n_words[:, None] + n_words - shared)


def rouge_l(texts: Sequence[str]) -> NDArray[np.float64]:
    """Compute the ROUGE-L scores of all pairs of answers (Lin, 2004).

    The score of two answers with the word sequences a and b is 2 · LCS(a, b) / (|a| + |b|). LCS is the length of the
    longest common subsequence. Words consist of letters, digits and underscores. Case is ignored.

    >>> float(rouge_l(["It is Lima.", "It must be Lima"])[0, 1])  # "it" and "lima": 2 · 2 / (3 + 4)
    0.5714285714285714
    """
    words = [_WORD.findall(text.lower()) for text in texts]
    lengths = np.array([len(one) for one in words])
    longest = cdist(words, words, scorer=LCSseq.similarity, dtype=np.float64)
    return _normalised(2 * longest, lengths[:, None] + lengths)


def cosine(embeddings: NDArray[np.floating]) -> NDArray[np.float64]:
    """Compute the cosine similarities of embeddings [sample, d] with norm 1. Negative similarities become 0.

    Embeddings that contain NaN have no row or column in the result.
    """
    rows = embeddings[~np.isnan(embeddings).any(1)].astype(np.float64)
    similarity = (rows @ rows.T).clip(0, 1)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def _normalised(shared: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `shared` / `total` [sample, sample], where 0 / 0 is defined as 0. The diagonal is set to 1."""
    similarity = shared / np.maximum(total, 1)
    np.fill_diagonal(similarity, 1.0)
    return similarity
