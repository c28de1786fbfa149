"""Splits by question into training, validation and test."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from extract.errors import InputError

SPLITS = ("train", "val", "test")


def split_questions(ids: Sequence[str], groups: Sequence[str], fractions: Sequence[float], seed: int = 0) -> list[int]:
    """Assign questions to parts, stratified by group.

    The questions of a group are ordered by a hash of seed and id and spread evenly over the unit interval, which
    `fractions` cut into parts. A question's part depends on the rest of its group only through its rank.

    Args:
        ids: Question ids.
        groups: The questions' groups.
        fractions: Sizes of the parts; they sum to 1.
        seed: Seed of the order.

    Returns:
        Index of each question's part.

    Raises:
        InputError: If fractions are negative or do not sum to 1.

    >>> split_questions(["a", "b", "c", "d", "e"], groups=["x"] * 5, fractions=(0.6, 0.2, 0.2))
    [1, 2, 0, 0, 0]
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"Expected split fractions of at least 0 that sum to 1, but got {list(fractions)}. "
            "Change `val_fraction` or `test_fraction`."
        )
    by_group: dict[str, list[int]] = defaultdict(list)
    for i in sorted(range(len(ids)), key=lambda i: _hash(seed, ids[i])):
        by_group[groups[i]].append(i)
    place = {}
    for group, members in sorted(by_group.items()):
        offset = int.from_bytes(_hash(seed, group)[:4], "big") / 2**32  # small groups do not all begin alike
        for rank, i in enumerate(members):
            place[i] = ((rank + offset) / len(members), _hash(seed, ids[i]))
    ordered = sorted(place, key=lambda i: place[i])
    sizes = _sizes(len(ids), fractions)
    parts = [0] * len(ids)
    start = 0
    for part, size in enumerate(sizes):
        for i in ordered[start : start + size]:
            parts[i] = part
        start += size
    return parts


def _hash(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()


def _sizes(n: int, fractions: Sequence[float]) -> list[int]:
    """Integer sizes closest to the fractions, which sum to n.

    >>> _sizes(8, (0.6, 0.2, 0.2))
    [5, 1, 2]
    """
    ends = [round(n * sum(fractions[: i + 1])) for i in range(len(fractions))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
