"""What tensors a signal's file may hold, from its header alone, and whether the files of a signal agree.

A tensor has a row for each row of its place. Where rows are of different lengths it is ragged: the values of all rows
stand one after the other under its key, and a second tensor, ``KEY.offsets``, says where each row begins.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch

from extract.store.files import Damaged, shown

#: A layer, then the names of a position or of whatever else tells the tensors of a layer apart.
_KEY = re.compile(r"(0|[1-9][0-9]{0,4})(/[A-Za-z0-9_]+)+")
#: Types that a tensor may have, as safetensors names them.
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
#: What a key ends in under which the offsets of a ragged tensor stand; no other key holds a dot.
OFFSETS = ".offsets"


class Entry(NamedTuple):
    """What a tensor holds for one row: values of a `dtype`, as safetensors names it, in a `shape`.

    Attributes:
        dtype: Type of the values.
        shape: Shape of a row; of a token of a row where it is `ragged`.
        ragged: Whether rows have tokens, any number of them.
    """

    dtype: str
    shape: tuple[int, ...]
    ragged: bool = False


#: What a file holds by key.
Layout = dict[str, Entry]


def layout_of(path: Path, found: dict[str, tuple[str, tuple[int, ...]]], n_rows: int) -> Layout:
    """What tensors of these types and shapes hold for each of `n_rows` rows.

    Raises:
        Damaged: There is none, or one that belongs into no such file.
    """
    offsets = {key.removesuffix(OFFSETS): one for key, one in found.items() if key.endswith(OFFSETS)}
    tensors = {key: one for key, one in found.items() if not key.endswith(OFFSETS)}
    if not found:
        raise Damaged(path, "it holds no tensor")
    for key, (dtype, shape) in offsets.items():
        if key not in tensors:
            raise Damaged(path, f"it holds {shown(key + OFFSETS)} without the tensor that they are offsets of")
        if dtype != "I64" or shape != (n_rows + 1,):
            raise Damaged(
                path,
                f"{shown(key + OFFSETS)} is of {dtype} and the shape {list(shape)} where I64 and {[n_rows + 1]} belong",
            )
    for key, (dtype, shape) in tensors.items():
        if not _KEY.fullmatch(key):
            raise Damaged(path, f"it holds a tensor {shown(key)}, which is no LAYER/POSITION")
        if dtype not in FLOATS:
            raise Damaged(path, f"{key!r} is of {dtype} and not of one of {', '.join(FLOATS)}")
        if not shape or 0 in shape[1:]:
            raise Damaged(path, f"{key!r} has the shape {list(shape)}, which holds nothing for a row")
        if key not in offsets and shape[0] != n_rows:
            raise Damaged(path, f"{key!r} has the shape {list(shape)} where {n_rows} rows belong")
    return {key: Entry(dtype, shape[1:], key in offsets) for key, (dtype, shape) in tensors.items()}


def common_layout(layouts: dict[Path, Layout]) -> Layout:
    """The layout that all files of a signal have; nothing of none.

    Raises:
        Damaged: A file lacks a key, or has another dtype or shape under it than the first one.
    """
    first = next(iter(layouts), None)
    if first is None:
        return {}
    common = layouts[first]
    for path, layout in layouts.items():
        for key in sorted(common.keys() | layout.keys()):
            here, there = (_described(one.get(key)) for one in (layout, common))
            if here != there:
                raise Damaged(path, f"{key!r} is {here} while it is {there} in {first.name}")
    return common


def _described(entry: Entry | None) -> str:
    if entry is None:
        return "missing"
    return f"{entry.dtype} of shape {list(entry.shape)} a {'token' if entry.ragged else 'row'}"
