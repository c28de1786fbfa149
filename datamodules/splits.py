"""Split questions into training, validation and test sets."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from extract.errors import InputError
from extract.hashing import hash_order

SPLITS = ("train", "val", "test")
#: Minimum number of validation questions. They are used to choose a layer.
LEAST_VALIDATION = 10


def split_questions(ids: Sequence[str], groups: Sequence[str], fractions: Sequence[float], seed: int = 0) -> list[int]:
    """Split questions into parts, stratified by group, and return the index of each question's part.

    The questions in each group are ordered by a hash of the seed and the question id. They are spread evenly over
    [0, 1]. This interval is then divided according to `fractions`.

    Raises:
        InputError: If a fraction is negative or the fractions do not sum to 1.

    >>> split_questions(["a", "b", "c", "d", "e"], groups=["x"] * 5, fractions=(0.6, 0.2, 0.2))
    [1, 2, 0, 0, 0]
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"Expected non-negative split fractions that sum to 1, but got {list(fractions)}. "
            "Change `val_fraction` or `test_fraction`."
        )
    order = hash_order(list(ids), seed)
    by_group: dict[str, list[int]] = defaultdict(list)
    for i in order:
        by_group[groups[i]].append(i)
    place = np.empty(len(ids))
    for group, members in by_group.items():
        digest = hashlib.sha256(f"{seed}\0{group}".encode()).digest()
        offset = int.from_bytes(digest[:4], "big") / 2**32  # small groups start in different parts
        place[members] = (np.arange(len(members)) + offset) / len(members)
    ends = np.rint(len(ids) * np.cumsum(fractions))
    parts = np.empty(len(ids), dtype=np.int64)
    parts[sorted(order, key=place.__getitem__)] = np.searchsorted(ends, np.arange(len(ids)), side="right")
    return parts.tolist()


def check_validation(n_validation: int, out_of: str, val_fraction: float) -> None:
    """Raise an InputError if there are too few validation questions. `out_of` is shown in the message."""
    if n_validation < LEAST_VALIDATION:
        raise InputError(
            f"Expected at least {LEAST_VALIDATION} questions in the validation split, but it has only {n_validation} "
            f"(of {out_of}). Use more questions, or a `val_fraction` above {val_fraction:g}."
        )
