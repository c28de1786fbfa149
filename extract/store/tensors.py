"""A signal's file, which is a safetensors file: written, refused if it is not as it was written, and read a little at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from extract.hashing import canonical_json
from extract.store.files import Damaged, check_file, check_size, one_line, shown, write_file
from extract.store.layout import OFFSETS, Layout, layout_of
from extract.store.ragged import Ragged

_CHUNK = 2**20  # bytes of a tensor that are looked at together
#: What else the metadata may say: prompt tokens that were read at a time, and what made the tensors.
_FURTHER = {"batch_tokens": int | None, "how": dict | None}


class Header(NamedTuple):
    """What a file holds by key, and `how` it was made where that is not the store's own model."""

    layout: Layout
    how: dict[str, Any] | None


def write_block(path: Path, tensors: Mapping[str, Tensor | Ragged], stamp: dict[str, Any], **how: Any) -> None:
    """Write tensors [row, …] or ragged ones by ``layer/position`` key, with what they are rows of and how they were made."""
    # one key: safetensors writes several in an order that changes from run to run
    metadata = {"store": canonical_json({**stamp, **how})}
    held = {}
    for key, tensor in tensors.items():
        if isinstance(tensor, Ragged):
            # keys may share their offsets in memory, which safetensors would refuse
            held[key], held[key + OFFSETS] = tensor.values.contiguous(), tensor.offsets.clone()
        else:
            held[key] = tensor.contiguous()
    write_file(path, save(held, metadata))


def copy_file(path: Path, to: Path, stamp: dict[str, Any]) -> None:
    """Write a checked file once more, as one that is of something else.

    Args:
        path: The file.
        to: Where it is written.
        stamp: What it is then rows of.
    """
    with safe_open(path, framework="pt") as file:
        stated = json.loads(file.metadata()["store"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
    write_file(to, save(tensors, {"store": canonical_json({**stated, **stamp})}))


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
    layout = layout_of(path, found, n_rows)
    check_file(path, folder)
    _check_rows(path, [key for key, entry in layout.items() if entry.ragged])
    return Header(layout, further["how"])


def _check_rows(path: Path, ragged: list[str]) -> None:
    """Refuse ragged tensors whose rows are not equally long under every key: they are of the same tokens.

    Raises:
        Damaged: They are not.
    """
    with safe_open(path, framework="pt") as file:
        for key in ragged[1:]:
            first, other = (file.get_tensor(one + OFFSETS) for one in (ragged[0], key))
            if not torch.equal(first, other):
                raise Damaged(path, f"{key + OFFSETS!r} are others than {ragged[0] + OFFSETS!r}, of the same tokens")


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
    with safe_open(path, framework="pt") as file:
        for start, part in _copied(file.get_slice(key), to):
            row = _broken_row(part.reshape(len(part), -1))
            if row is not None:
                raise Damaged(path, _not_finite(key, start + row, name))


def _copied(rows: Any, to: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Copy a slice of a file, a little at a time: yields where each piece of `to` begins and the piece, once it is filled."""
    step = max(1, _CHUNK // (math.prod(to.shape[1:]) * to.element_size()))
    for start in range(0, len(to), step):
        part = to[start : start + step]
        yield start, part.copy_(rows[start : start + step])


def _broken_row(rows: Tensor) -> int | None:
    """The first of `rows` [row, value] that is infinite, or NaN in part."""
    wrong = ~rows.isfinite().all(1)
    if wrong.any():
        broken = (wrong & ~rows.isnan().all(1)).nonzero()[:, 0].tolist()
        return broken[0] if broken else None
    return None


def _not_finite(key: str, row: int, name: Callable[[int], str]) -> str:
    return f"{key!r} is not finite in row {row} ({name(row)}), nor NaN as a whole, which a missing row is"


def read_offsets(path: Path, key: str) -> Tensor:
    """Where each row of a ragged tensor of a checked file begins, and where the last one ends.

    Returns:
        [row + 1] int64.

    Raises:
        Damaged: They don't begin at 0, or fall, or end elsewhere than the values do.
    """
    with safe_open(path, framework="pt") as file:
        n_values = file.get_slice(key).get_shape()[0]
        offsets: Tensor = file.get_tensor(key + OFFSETS)
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0:
        raise Damaged(path, f"{key + OFFSETS!r} begin at {first} and not at 0")
    fall = (offsets[1:] < offsets[:-1]).nonzero()[:, 0].tolist()
    if fall:
        row = fall[0]
        raise Damaged(
            path, f"{key + OFFSETS!r} fall from {int(offsets[row])} to {int(offsets[row + 1])} behind row {row}"
        )
    if last != n_values:
        raise Damaged(path, f"{key + OFFSETS!r} end at {last} while there are {n_values} values")
    return offsets


def copy_ragged(path: Path, key: str, to: Ragged, name: Callable[[int], str]) -> None:
    """Copy the values of a ragged tensor of a checked file, a little at a time. A row that is missing is NaN as a whole.

    Args:
        path: The file.
        key: Key of the tensor.
        to: Values of the tensor's shape and type, which are filled, with the offsets that `read_offsets` gave.
        name: What a row is, for the message.

    Raises:
        Damaged: A row is infinite, or NaN in part.
    """
    wrong, missing = to.values.new_zeros((2, len(to.values)), dtype=torch.bool)
    with safe_open(path, framework="pt") as file:
        for start, part in _copied(file.get_slice(key), to.values):
            flat = part.reshape(len(part), -1)
            wrong[start : start + len(part)] = ~flat.isfinite().all(1)
            missing[start : start + len(part)] = flat.isnan().all(1)
    if wrong.any():
        n_wrong, n_missing = (_counts(Ragged(tokens, to.offsets)) for tokens in (wrong, missing))
        broken = ((n_wrong > 0) & (n_missing < to.lengths)).nonzero()[:, 0].tolist()
        if broken:
            raise Damaged(path, _not_finite(key, broken[0], name))


def _counts(tokens: Ragged) -> Tensor:
    """[row] int64: of how many tokens of each row it is so."""
    so_far = torch.cat([torch.zeros(1, dtype=torch.int64), tokens.values.cumsum(0)])
    return so_far[tokens.offsets].diff()
