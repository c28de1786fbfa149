"""Names inside a store: blocks, parts of the samples, and what a grader, a signal or a baseline may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from extract.errors import InputError
from extract.store.files import Damaged, is_finished, shown

#: What the rows of a signal or of an asked table are: questions, in files of a block, or answers, in files of a part.
Scope = Literal["question", "sample"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, order=True)
class Part:
    """Samples `start` to `stop` − 1 of the questions of block `block`; the unit in which samples and grades are kept."""

    block: int
    start: int
    stop: int

    @property
    def stem(self) -> str:
        """File name without its ending, for example ``00000.000-010``."""
        return f"{block_stem(self.block)}.{self.start:03d}-{self.stop:03d}"

    @staticmethod
    def of(path: Path, n_blocks: int) -> Part:
        """The part that a file's name stands for.

        Raises:
            Damaged: It is not the name that a part of a store of `n_blocks` blocks has.
        """
        found = re.fullmatch(r"([0-9]{5,9})\.([0-9]{3,9})-([0-9]{3,9})", path.stem)
        part = Part(*map(int, found.groups())) if found else None
        if part is None or path.stem != part.stem or part.block >= n_blocks or part.start >= part.stop:
            raise Damaged(
                path,
                f"its name is none of a part (BLOCK.START-STOP{path.suffix}, such as 00000.000-010{path.suffix}, of {n_blocks} blocks)",
            )
        return part


#: What one file holds: a block, or a part.
Place = int | Part


def place_of(path: Path, n_blocks: int) -> Place:
    """The block or part that a file's name stands for.

    Raises:
        Damaged: It is the name of neither in a store of `n_blocks` blocks.
    """
    return Part.of(path, n_blocks) if "." in path.stem else block_of(path, n_blocks)


def scope_of(place: Place) -> Scope:
    """What the rows of a place's files are."""
    return "sample" if isinstance(place, Part) else "question"


def stem_of(place: Place) -> str:
    """File name of a place without its ending."""
    return place.stem if isinstance(place, Part) else block_stem(place)


def block_of(path: Path, n_blocks: int) -> int:
    """The block that a file's name stands for.

    Raises:
        Damaged: It is not the name that a block of a store of `n_blocks` blocks has.
    """
    if not re.fullmatch(r"[0-9]{5,9}", path.stem) or path.stem != block_stem(int(path.stem)):
        raise Damaged(path, f"its name is none of a block (BLOCK{path.suffix}, such as 00000{path.suffix})")
    if int(path.stem) >= n_blocks:
        raise Damaged(path, f"the store has {n_blocks} blocks only")
    return int(path.stem)


def block_stem(block: int) -> str:
    """File name of a block without its ending, for example ``00000``."""
    return f"{block:05d}"


def finished_parts(folder: Path, n_blocks: int) -> list[Part]:
    """Parts with a finished file in a folder, by block and sample.

    Raises:
        Damaged: A Parquet file of another name, or two parts that hold the same samples.
    """
    named = {Part.of(path, n_blocks): path for path in folder.glob("*.parquet")}
    parts = sorted(part for part, path in named.items() if is_finished(path))
    for before, part in pairwise(parts):
        if before.block == part.block and part.start < before.stop:
            raise Damaged(named[part], f"it holds samples that {named[before].name} holds too")
    return parts


def gaps(parts: list[Part], n_blocks: int, k: int) -> list[Part]:
    """Parts that are missing beside `parts`, which do not overlap, for k samples of every block's questions."""
    missing, before = [], Part(0, 0, 0)
    for part in sorted([*parts, *(Part(block, k, k) for block in range(n_blocks))]):
        start = before.stop if before.block == part.block else 0
        if start < min(part.start, k):
            missing.append(Part(part.block, start, min(part.start, k)))
        before = part
    return missing


def check_name(name: str, what: str) -> str:
    """A grader's, signal's or baseline's name, which is a folder's too, as it came.

    Raises:
        InputError: It is no plain name: it holds a slash, a space, or begins with a dot.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"Expected `{what}` to be a name of letters, digits, `_`, `-` and `.`, but got {shown(name)}. Use another name."
        )
    return name


def folder_names(folder: Path, what: str) -> list[str]:
    """Names of the folders of a folder, sorted; what begins with a dot is passed over.

    Raises:
        InputError: One is no plain name.
    """
    held = (child.name for child in folder.glob("*") if child.is_dir() and not child.name.startswith("."))
    return sorted(check_name(name, what) for name in held)
