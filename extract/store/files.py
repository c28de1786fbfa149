"""Atomic writes with a size and SHA-256 sidecar, and checked reads."""

import hashlib
import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from extract.errors import Damaged, InputError
from extract.hashing import sha256_file
from extract.text import one_line, shown

_LARGEST_SIDECAR = 2**12  # bytes


class Sidecar(NamedTuple):
    """Size in bytes and SHA-256 in hex of a data file, as the JSON beside it states them."""

    size: int
    sha256: str


def write_file(path: Path, content: bytes) -> None:
    """Write a data file, then its sidecar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    sidecar = Sidecar(len(content), hashlib.sha256(content).hexdigest())
    replace_file(path.with_suffix(".json"), json.dumps(sidecar._asdict()).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it.

    Raises:
        InputError: The disk is full, or the folder is not writable.
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"Expected to be able to write {str(path)!r}, but: {error.strerror}. What is finished is kept; make room, "
            "or give another folder, and run the same command again."
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


def is_finished(path: Path) -> bool:
    """Whether a data file and its sidecar are there."""
    return path.is_file() and path.with_suffix(".json").is_file()


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, with every link followed, stays in a folder."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def read_json(path: Path, largest: int) -> Any:
    """Parse a JSON file of at most `largest` bytes, whatever it holds.

    Raises:
        ValueError: It can't be read, is larger, or is no JSON; the text says so in a few words. NaN is no JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"it is larger than {largest} bytes")
        return json.loads(content, parse_constant=_no_number)
    except (OSError, RecursionError, ValueError) as error:
        raise ValueError(f"it can't be read as JSON ({one_line(error)})") from None


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")


def read_sidecar(path: Path) -> Sidecar:
    """Read the sidecar of a data file.

    Raises:
        Damaged: There is no sidecar, or it is not one.
    """
    file = path.with_suffix(".json")
    if not file.is_file():
        raise Damaged(path, f"it is unfinished (no {file.name})")
    try:
        return Sidecar(**read_json(file, _LARGEST_SIDECAR))
    except (ValueError, TypeError) as error:  # no JSON, or other keys
        raise Damaged(path, f"{file.name} holds no size and sha256 ({one_line(error)})") from None


def check_size(path: Path, folder: Path) -> Sidecar:
    """Refuse a data file that lies outside its store or has another size than was written; returns its sidecar.

    Args:
        path: The file, of which nothing is read.
        folder: The store, in which the file has to lie with every link followed.

    Raises:
        Damaged: It is missing, a link out of the folder, unfinished, or of another size.
    """
    if not path.is_file():
        raise Damaged(path, "it is missing")
    for file in (path, path.with_suffix(".json")):
        if not is_inside(file, folder):
            raise Damaged(path, f"{file.name} is a link to a file outside {str(folder)!r}")
    sidecar, size = read_sidecar(path), path.stat().st_size
    if size != sidecar.size:
        raise Damaged(path, f"{size} bytes are there where {shown(sidecar.size)} were written")
    return sidecar


def check_file(path: Path, folder: Path) -> None:
    """Refuse a data file whose bytes are not those that were written; reads it once.

    Raises:
        Damaged: As `check_size`, or it can't be read, or the checksum differs.
    """
    sidecar = check_size(path, folder)
    try:
        sha256 = sha256_file(path)
    except OSError as error:
        raise Damaged(path, f"it can't be read ({one_line(error)})") from None
    if sha256 != sidecar.sha256:
        raise Damaged(path, "its content changed (checksum differs)")


def is_whole(path: Path, folder: Path) -> bool:
    """Whether a data file is finished and as it was written."""
    with suppress(Damaged):
        check_file(path, folder)
        return True
    return False
