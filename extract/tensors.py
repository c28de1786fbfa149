"""A signal's file, which is a safetensors file: what its header has to say before a tensor is read, and what is in a tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from extract.files import Damaged, check_file, check_size, one_line, shown, write_file
from extract.hashing import canonical_json

#: A layer, then the names of a position or of whatever else tells the tensors of a layer apart.
_KEY = re.compile(r"(0|[1-9][0-9]{0,4})(/[A-Za-z0-9_]+)+")
#: Types that a tensor may have, as safetensors names them.
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_CHUNK = 2**20  # bytes of a tensor that are looked at together
#: What else the metadata may say: prompt tokens that were read at a time, and what made the tensors.
_FURTHER = {"batch_tokens": int | None, "how": dict | None}


class Entry(NamedTuple):
    """What a tensor holds for one row: values of a `dtype`, as safetensors names it, in a `shape`."""

    dtype: str
    shape: tuple[int, ...]


#: What a file holds by key.
Layout = dict[str, Entry]


class Header(NamedTuple):
    """What a file holds by key, and `how` it was made where that is not the store's own model."""

    layout: Layout
    how: dict[str, Any] | None


def write_block(path: Path, tensors: dict[str, Tensor], stamp: dict[str, Any], **how: Any) -> None:
    """Write tensors [row, …] by ``layer/position`` key, with what they are rows of and how they were made."""
    # one key: safetensors writes several in an order that changes from run to run
    metadata = {"store": canonical_json({**stamp, **how})}
    write_file(path, save({key: tensor.contiguous() for key, tensor in tensors.items()}, metadata))


def check_block(path: Path, folder: Path, n_rows: int, stamp: dict[str, Any]) -> Header:
    """Read a file's header, then refuse it if a byte of it changed; of its content a little is held at a time.

    Args:
        path: The file.
        folder: The store, which it has to lie in.
        n_rows: Questions of its block, or answers of its part.
        stamp: What it has to be rows of: identity of the store, signal, block, and part where there is one.

    Returns:
        What it holds for each of its rows, by key, and how it was made.

    Raises:
        Damaged: It is no such file, or not as it was written.
    """
    check_size(path, folder)
    try:
        with safe_open(path, framework="pt") as file:
            stated = json.loads((file.metadata() or {}).get("store", "null"))
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
            found = {key: (one.get_dtype(), tuple(one.get_shape())) for key, one in slices.items()}
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise Damaged(path, f"it is no safetensors file that can be read ({one_line(error)})") from None
    further = {key: stated.pop(key, None) for key in _FURTHER} if isinstance(stated, dict) else {}
    if stated != stamp or not all(isinstance(value, _FURTHER[key]) for key, value in further.items()):
        raise Damaged(path, f"its metadata says {shown(stated)} where {canonical_json(stamp)} belongs")
    if not found:
        raise Damaged(path, "it holds no tensor")
    for key, (dtype, shape) in found.items():
        if not _KEY.fullmatch(key):
            raise Damaged(path, f"it holds a tensor {shown(key)}, which is no LAYER/POSITION")
        if dtype not in FLOATS:
            raise Damaged(path, f"{key!r} is of {dtype} and not of one of {', '.join(FLOATS)}")
        if not shape or shape[0] != n_rows or 0 in shape:
            raise Damaged(path, f"{key!r} has the shape {list(shape)} where {n_rows} rows belong")
    check_file(path, folder)
    return Header({key: Entry(dtype, shape[1:]) for key, (dtype, shape) in found.items()}, further["how"])


def copy_block(path: Path, key: str, to: Tensor, name: Callable[[int], str]) -> None:
    """Copy one tensor of a checked file, a little at a time. A row that is missing is NaN as a whole.

    Args:
        path: The file.
        key: Key of the tensor.
        to: [row, …] of the tensor's shape and type, which is filled.
        name: What a row is, for the message.

    Raises:
        Damaged: A row is infinite, or NaN in part.
    """
    step = max(1, _CHUNK // (to[0].numel() * to.element_size()))
    with safe_open(path, framework="pt") as file:
        rows = file.get_slice(key)
        for start in range(0, len(to), step):
            part = to[start : start + step]
            part.copy_(rows[start : start + step])
            row = _broken_row(part.reshape(len(part), -1))
            if row is not None:
                raise Damaged(
                    path,
                    f"{key!r} is not finite in row {start + row} ({name(start + row)}), nor NaN as a whole, which a missing row is",
                )


def _broken_row(rows: Tensor) -> int | None:
    """The first of `rows` [row, value] that is infinite, or NaN in part."""
    wrong = ~rows.isfinite().all(1)
    if wrong.any():
        broken = (wrong & ~rows.isnan().all(1)).nonzero()[:, 0].tolist()
        return broken[0] if broken else None
    return None


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
    return "missing" if entry is None else f"{entry.dtype} of shape {list(entry.shape)} a row"
