"""Variability of a system's outputs for the same prompt (Messina and Scotta, arXiv 2604.22411, section 4)."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist

#: One output, as a sequence of tokens or words.
Output = Sequence[Hashable]
#: Number of random subsets for `max_exact_match`.
N_SUBSETS = 1000


@dataclass(frozen=True)
class Counted:
    """Outputs for one prompt.

    Attributes:
        texts: Distinct outputs. Each token is encoded as one character, so that string functions can be used.
        index: Position of each output in `texts`, [output] int64.
    """

    texts: list[str]
    index: NDArray[np.int64]

    @classmethod
    def of(cls, outputs: Iterable[Output]) -> "Counted":
        """Count the outputs for a prompt."""
        code: dict[Hashable, str] = {}
        encoded = ["".join(code.setdefault(token, chr(len(code))) for token in one) for one in outputs]
        position = {text: i for i, text in enumerate(dict.fromkeys(encoded))}
        return cls([*position], np.array([position[text] for text in encoded]))

    @property
    def n(self) -> int:
        """Number of outputs."""
        return len(self.index)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of occurrences of each distinct output, [distinct]."""
        return np.bincount(self.index)

    @property
    def first_divergence(self) -> int | None:
        """Index of the first token at which any outputs differ; None if all outputs are identical."""
        if len(self.texts) < 2:
            return None
        shortest = min(map(len, self.texts))
        columns = zip(*self.texts, strict=False)
        return next((i for i, tokens in enumerate(columns) if len(set(tokens)) > 1), shortest)

    def every_second(self, start: int) -> "Counted":
        """Return the outputs with indices `start`, `start` + 2, …."""
        return Counted.of(self.texts[i] for i in self.index[start::2])

    def mean_over_pairs(self, distances: NDArray[np.float64]) -> float:
        """Return the mean distance over all pairs of outputs. The diagonal of `distances` [distinct, distinct] is 0."""
        return float(self.counts @ distances @ self.counts) / (self.n * (self.n - 1))


def max_exact_match(outputs: Counted, n: int, seed: int = 0) -> float:
    """Compute the maximum exact match fraction (MEMF): the fraction of outputs that equal the most frequent output.

    For more than `n` outputs, the result is the mean over `N_SUBSETS` random subsets of size `n`.
    """
    if n == outputs.n:
        return float(outputs.counts.max()) / n
    subsets = np.random.default_rng(seed).multivariate_hypergeometric(outputs.counts, n, size=N_SUBSETS)
    return float(subsets.max(axis=1).mean()) / n


def collision_rate(outputs: Counted) -> float:
    """Compute the fraction of pairs of outputs that are identical.

    The fraction is Σ m (m − 1) / (N (N − 1)), where m is the count of each distinct output and N = Σ m. This is an
    unbiased estimate of the probability that two new outputs are identical.

    >>> collision_rate(Counted.of(["Lima", "Lima", "Rome"]))
    0.3333333333333333
    """
    return float((outputs.counts * (outputs.counts - 1)).sum()) / (outputs.n * (outputs.n - 1))


def mean_levenshtein(outputs: Counted, limit: int) -> float:
    """Compute the mean edit distance over pairs of outputs (AvgLev), divided by the token limit."""
    distances = cdist(outputs.texts, outputs.texts, scorer=Levenshtein.distance, dtype=np.int32)
    return outputs.mean_over_pairs(distances / limit)


def mean_lcs_distance(outputs: Counted) -> float:
    """Compute the mean of 1 − LCS(a, b) / min(|a|, |b|) over pairs of outputs (AvgLCS).

    LCS is the length of the longest common subsequence. The distance between an empty output and any other output is 1.
    """
    common = cdist(outputs.texts, outputs.texts, scorer=LCSseq.similarity, dtype=np.int32)
    lengths = np.array([len(text) for text in outputs.texts])
    distances = 1 - common / np.minimum.outer(lengths, lengths).clip(min=1)
    np.fill_diagonal(distances, 0)
    return outputs.mean_over_pairs(distances)


@dataclass(frozen=True)
class Metric:
    """A variability metric.

    Attributes:
        label: Name in tables and plots.
        compute: Function of three arguments: one prompt's outputs, the token limit, and `n` as in `max_exact_match`.
        rises: Whether the metric increases with temperature.
        authors: Name in Messina and Scotta's table, or None.
    """

    label: str
    compute: Callable[[Counted, int, int], float]
    rises: bool = True
    authors: str | None = None


METRICS = {
    "memf": Metric("MEMF", lambda outputs, limit, n: max_exact_match(outputs, n), False, "max_exact_match"),
    "avg_lev": Metric("AvgLev", lambda outputs, limit, n: mean_levenshtein(outputs, limit), True, "Levenshtein_lists"),
    "avg_lcs": Metric("AvgLCS", lambda outputs, limit, n: mean_lcs_distance(outputs), True, "average_lcs_distance"),
    "collision": Metric("collision rate", lambda outputs, limit, n: collision_rate(outputs), False),
}


def measure(outputs: Sequence[Counted], limit: int, n: int) -> dict[str, NDArray[np.float64]]:
    """Compute all metrics [prompt], rounded to 12 digits.

    Each prompt must have at least two outputs. `n` is the number of outputs that `max_exact_match` uses. It must be the
    same for all compared systems.
    """
    return {
        name: np.array([metric.compute(one, limit, n) for one in outputs]).round(12) for name, metric in METRICS.items()
    }
