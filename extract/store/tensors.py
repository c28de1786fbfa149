"""Signal files: safetensors with a provenance record, hashed once and then read tensor by tensor.

A tensor has a row for each row of its shard. Where rows have different lengths it is ragged: the values of all rows
stand one after the other under its key, and ``KEY.offsets`` (int64, [row + 1]) says where each row begins.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from extract.errors import Damaged
from extract.hashing import canonical_json
from extract.store.files import check_file, check_size, write_file
from extract.store.ragged import Ragged
from extract.text import one_line, shown

#: Dtypes of signals by their names in safetensors.
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_OFFSETS = ".offsets"
_CHUNK = 2**20  # bytes of a tensor that are copied together


class Entry(NamedTuple):
    """Dtype (its name in safetensors) and shape of a row, or of a token of a row where the tensor is ragged."""

    dtype: str
    shape: tuple[int, ...]
    ragged: bool = False


#: Entries of a file by key.
Layout = dict[str, Entry]


class Header(NamedTuple):
    """What a file holds by key, and the settings that it was made with, where it was asked of another model."""

    layout: Layout
    settings: dict[str, Any] | None


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor | Ragged],
    provenance: dict[str, Any],
    batch_tokens: int | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write tensors [row, …] or ragged ones by ``layer/position`` key; see `Signals.write`."""
    arrays = {}
    for key, tensor in tensors.items():
        if isinstance(tensor, Ragged):  # keys may share their offsets in memory, which safetensors refuses
            arrays[key], arrays[key + _OFFSETS] = tensor.values.contiguous(), tensor.offsets.clone()
        else:
            arrays[key] = tensor.contiguous()
    record = {**provenance, "batch_tokens": batch_tokens} | ({} if settings is None else {"how": settings})
    # one metadata key, because safetensors writes several in an order that changes from run to run
    write_file(path, save(arrays, {"store": canonical_json(record)}))


def copy_tensors(path: Path, to: Path, provenance: dict[str, Any]) -> None:
    """Copy a checked file with another provenance record."""
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["store"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    write_file(to, save(tensors, {"store": canonical_json({**record, **provenance})}))


def read_header(path: Path, folder: Path, n_rows: int, provenance: dict[str, Any]) -> Header:
    """Read the header of a file of `n_rows` rows and compare the file with its checksum.

    Raises:
        Damaged: The file is damaged, belongs to another store, shard or samples, or has another number of rows.
    """
    check_size(path, folder)
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {}).get("store", "null"))
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            shapes = {key: (tensor.get_dtype(), tuple(tensor.get_shape())) for key, tensor in slices.items()}
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise Damaged(path, f"it can't be read as safetensors ({one_line(error)})") from None
    further = {key: record.pop(key, None) for key in ("batch_tokens", "how")} if isinstance(record, dict) else {}
    if record != provenance:
        raise Damaged(path, f"its metadata says {shown(record)}, not {canonical_json(provenance)}")
    check_file(path, folder)
    layout = {}
    for key, (dtype, shape) in shapes.items():
        if key.endswith(_OFFSETS):
            continue
        ragged = key + _OFFSETS in shapes
        is_sound = dtype in DTYPES and len(shape) > 0 and (ragged or shape[0] == n_rows)
        if not is_sound or not key.split("/")[0].isdecimal() or "/" not in key:
            found = f"{shown(key)} is {dtype} of shape {list(shape)}"
            raise Damaged(path, f"{found}, not LAYER/NAME of {n_rows} rows of floats")
        layout[key] = Entry(dtype, shape[1:], ragged)
    return Header(layout, further["how"])


def common_layout(layouts: Mapping[Path, Layout]) -> Layout:
    """The layout that all files of a signal share; empty without files.

    Raises:
        Damaged: A file lacks a key, or has another dtype or shape under it than the first file.
    """
    first = next(iter(layouts), Path())
    common = layouts.get(first, {})
    for path, layout in layouts.items():
        for key in sorted(common.keys() | layout.keys()):
            here, there = layout.get(key), common.get(key)
            if here != there:
                raise Damaged(path, f"{key!r} is {_described(here)}, but {_described(there)} in {first.name}")
    return common


def _described(entry: Entry | None) -> str:
    if entry is None:
        return "missing"
    return f"{entry.dtype} of shape {list(entry.shape)} a {'token' if entry.ragged else 'row'}"


def copy_rows(path: Path, key: str, to: Tensor) -> None:
    """Copy one tensor [row, …], or the values of a ragged one, into `to`, a little at a time."""
    step = max(1, _CHUNK // max(1, math.prod(to.shape[1:]) * to.element_size()))
    with safe_open(path, framework="pt") as file:
        rows = file.get_slice(key)
        for start in range(0, len(to), step):
            to[start : start + step] = rows[start : start + step]


def read_offsets(path: Path, key: str, n_rows: int) -> Tensor:
    """[row + 1] int64: where each row of a ragged tensor begins, and where the last one ends.

    Raises:
        Damaged: They are not those of `n_rows` rows, do not begin at 0, decrease, or do not end with the values.
    """
    with safe_open(path, framework="pt") as file:
        n_values = file.get_slice(key).get_shape()[0]
        offsets: Tensor = file.get_tensor(key + _OFFSETS)
    is_sound = offsets.shape == (n_rows + 1,) and offsets.dtype == torch.int64
    if not is_sound or offsets[0] != 0 or offsets[-1] != n_values or (offsets[1:] < offsets[:-1]).any():
        raise Damaged(path, f"{key + _OFFSETS!r} are not the offsets of {n_rows} rows with {n_values} values")
    return offsets
