"""A signal's block as a safetensors file: what its header has to say before a tensor is read, and what is in a tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from extract.files import Damaged, check_file, check_size, one_line, shown, write_file
from extract.hashing import canonical_json

#: A layer, then the names of a position or of whatever else tells the tensors of a layer apart.
_KEY = re.compile(r"(0|[1-9][0-9]{0,4})(/[A-Za-z0-9_]+)+")
_FLOATS = ("F16", "BF16", "F32", "F64")


class Entry(NamedTuple):
    """What a tensor holds for one question: values of a `dtype`, as safetensors names it, in a `shape`."""

    dtype: str
    shape: tuple[int, ...]


#: What a block holds by key.
Layout = dict[str, Entry]


def write_block(path: Path, tensors: dict[str, Tensor], stamp: dict[str, Any], batch_tokens: int | None) -> None:
    """Write tensors [question, …] by ``layer/position`` key, with what they are a block of and how they were read."""
    # one key: safetensors writes several in an order that changes from run to run
    metadata = {"store": canonical_json({**stamp, "batch_tokens": batch_tokens})}
    write_file(path, save({key: tensor.contiguous() for key, tensor in tensors.items()}, metadata))


def check_block(path: Path, folder: Path, n_questions: int, stamp: dict[str, Any]) -> Layout:
    """Read a block's header, then refuse its file if a byte of it changed.

    Args:
        path: The file.
        folder: The store, which it has to lie in.
        n_questions: Questions of the block.
        stamp: What it has to be a block of: identity of the store, signal, block.

    Returns:
        What it holds for each of its questions, by key.

    Raises:
        Damaged: It is no such block, or not as it was written.
    """
    check_size(path, folder)
    try:
        with safe_open(path, framework="pt") as file:
            stated = json.loads((file.metadata() or {}).get("store", "null"))
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
            found = {key: (one.get_dtype(), tuple(one.get_shape())) for key, one in slices.items()}
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise Damaged(path, f"it is no safetensors file that can be read ({one_line(error)})") from None
    how = stated.pop("batch_tokens", None) if isinstance(stated, dict) else None
    if stated != stamp or not isinstance(how, int | None):
        raise Damaged(path, f"its metadata says {shown(stated)} where {canonical_json(stamp)} belongs")
    if not found:
        raise Damaged(path, "it holds no tensor")
    for key, (dtype, shape) in found.items():
        if not _KEY.fullmatch(key):
            raise Damaged(path, f"it holds a tensor {shown(key)}, which is no LAYER/POSITION")
        if dtype not in _FLOATS:
            raise Damaged(path, f"{key!r} is of {dtype} and not of one of {', '.join(_FLOATS)}")
        if not shape or shape[0] != n_questions or 0 in shape:
            raise Damaged(path, f"{key!r} has the shape {list(shape)} where {n_questions} questions belong")
    check_file(path, folder)
    return {key: Entry(dtype, shape[1:]) for key, (dtype, shape) in found.items()}


def read_block(path: Path, key: str, ids: list[str]) -> Tensor:
    """One tensor [question, …] of a checked block. A row that is missing is NaN as a whole.

    Args:
        path: The file.
        key: Key of the tensor.
        ids: Question ids of the block, for the message.

    Raises:
        Damaged: A row is infinite, or NaN in part.
    """
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(key)
    flat = tensor.reshape(len(ids), -1)
    wrong = ~flat.isfinite().all(1)
    if wrong.any():
        broken = (wrong & ~flat.isnan().all(1)).nonzero()[:, 0].tolist()
        if broken:
            raise Damaged(
                path,
                f"{key!r} is not finite in row {broken[0]} (question {shown(ids[broken[0]])}), nor NaN as a whole, which a missing row is",
            )
    return tensor


def common_layout(layouts: dict[Path, Layout]) -> Layout:
    """The layout that all blocks of a signal have; nothing of none.

    Raises:
        Damaged: A block lacks a key, or has another dtype or shape under it than the first one.
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
    return "missing" if entry is None else f"{entry.dtype} of shape {list(entry.shape)} a question"
