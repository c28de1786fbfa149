"""Shards of a store: blocks of questions, and ranges of samples."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

from extract.errors import Damaged, InputError
from extract.text import shown

#: Whether a shard has one row per question or one row per sample.
Scope = Literal["question", "sample"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_STEM = re.compile(r"([0-9]{5,9})(?:\.([0-9]{3,9})-([0-9]{3,9}))?")


@dataclass(frozen=True, order=True)
class Block:
    """All questions in block number `block`."""

    block: int
    scope: ClassVar[Scope] = "question"
    rows_per_question: ClassVar[int] = 1

    @property
    def stem(self) -> str:
        """File name without its suffix, for example ``00000``."""
        return f"{self.block:05d}"


@dataclass(frozen=True, order=True)
class SampleRange:
    """Samples `start` to `stop` − 1 of each question in block number `block`."""

    block: int
    start: int
    stop: int
    scope: ClassVar[Scope] = "sample"

    @property
    def rows_per_question(self) -> int:
        """Number of samples per question in this range."""
        return self.stop - self.start

    @property
    def stem(self) -> str:
        """File name without its suffix, for example ``00000.000-010``."""
        return f"{self.block:05d}.{self.start:03d}-{self.stop:03d}"


Shard = Block | SampleRange


def shard_of(path: Path, n_blocks: int) -> Shard:
    """Parse the shard from a file name. Raises `Damaged` if the name is invalid in a store with `n_blocks` blocks."""
    shard: Shard | None = None
    if match := _STEM.fullmatch(path.stem):
        block, start, stop = match.groups()
        shard = Block(int(block)) if start is None else SampleRange(int(block), int(start), int(stop))
    if shard is None or shard.stem != path.stem or shard.block >= n_blocks or shard.rows_per_question < 1:
        names = f"BLOCK{path.suffix} or BLOCK.START-STOP{path.suffix}, such as 00000.000-010{path.suffix}"
        raise Damaged(path, f"its name is invalid in a store with {n_blocks} blocks (expected {names})")
    return shard


def range_of(path: Path, n_blocks: int) -> SampleRange:
    """Parse the range of samples from a file name, or raise `Damaged`."""
    shard = shard_of(path, n_blocks)
    if isinstance(shard, Block):
        raise Damaged(
            path, f"its name contains no range of samples (expected a name such as {shard.stem}.000-010{path.suffix})"
        )
    return shard


def overlap(ranges: Iterable[SampleRange]) -> tuple[SampleRange, SampleRange] | None:
    """Return the first pair of different ranges that overlap, or None."""
    pairs = pairwise(sorted(set(ranges)))
    return next(((a, b) for a, b in pairs if a.block == b.block and b.start < a.stop), None)


def missing_ranges(ranges: Iterable[SampleRange], n_blocks: int, k: int) -> list[SampleRange]:
    """Return the ranges to add so that every question has k samples. The given `ranges` must not overlap."""
    missing, before = [], SampleRange(0, 0, 0)
    for after in sorted([*ranges, *(SampleRange(block, k, k) for block in range(n_blocks))]):
        start = before.stop if before.block == after.block else 0
        if start < min(after.start, k):
            missing.append(SampleRange(after.block, start, min(after.start, k)))
        before = after
    return missing


def check_name(name: str, noun: str) -> str:
    """Return the name of a grader, signal, baseline or run. Raises an InputError if it is not a valid folder name."""
    if not _NAME.fullmatch(name):
        expected = "a name with only letters, digits, `_`, `-` and `.`"
        raise InputError(f"Expected `{noun}` to be {expected}, but got {shown(name)}. Use a different name.")
    return name
