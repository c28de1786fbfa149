"""Write data files atomically, and verify them before they are read. A sidecar records a file's size and checksum."""

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
    """Size in bytes and SHA-256 (hex) of a data file, stored as JSON next to it."""

    size: int
    sha256: str


def write_file(path: Path, content: bytes) -> None:
    """Write a data file of a store and then its sidecar.

    Raises:
        InputError: If the disk is full, the folder is not writable, or the store no longer exists.
    """
    make_folder(path.parent)
    replace_file(path, content)
    sidecar = Sidecar(len(content), hashlib.sha256(content).hexdigest())
    replace_file(path.with_suffix(".json"), json.dumps(sidecar._asdict()).encode())


def make_folder(folder: Path) -> None:
    """Create a folder inside an existing store.

    If the store's file system is unmounted, no folder is created in the empty mount point.

    Raises:
        InputError: If the store no longer exists.
    """
    if not any((one / "identity.json").is_file() for one in (folder, *folder.parents)):
        raise InputError(
            f"Expected {str(folder)!r} to be in a store, but the store no longer exists. Check that its file "
            "system is mounted. Then run the same command again."
        )
    folder.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically, or raise an InputError if it can't be written."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"Expected {str(path)!r} to be writable, but got: {error.strerror}. Free some disk space or choose "
            "a different folder. Then run the same command again. Finished files are kept."
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


def is_finished(path: Path) -> bool:
    """Whether a data file and its sidecar exist."""
    return path.is_file() and path.with_suffix(".json").is_file()


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is inside a folder after resolving links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def read_json(path: Path, largest: int) -> Any:
    """Parse a JSON file of at most `largest` bytes.

    Raises:
        ValueError: If the file cannot be read, is too large, is not valid JSON, or contains NaN or infinity.
    """
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"it is larger than {largest} bytes")
        return json.loads(content, parse_constant=_no_number)
    except (OSError, RecursionError, ValueError) as error:
        raise ValueError(f"it can't be read as JSON ({one_line(error)})") from None


def parse_metadata(path: Path, text: str | bytes | None) -> dict[str, Any]:
    """Parse a JSON object from the metadata of a data file, or raise `Damaged`."""
    with suppress(ValueError, RecursionError):
        if isinstance(record := json.loads(text or "null"), dict):
            return record
    raise Damaged(path, f"its metadata is {shown(text)} instead of a JSON object")


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"it contains {constant}")


def read_sidecar(path: Path) -> Sidecar:
    """Read the sidecar of a data file, or raise `Damaged`."""
    file = path.with_suffix(".json")
    if not file.is_file():
        raise Damaged(path, f"it is unfinished ({file.name} is missing)")
    try:
        return Sidecar(**read_json(file, _LARGEST_SIDECAR))
    except (ValueError, TypeError) as error:  # invalid JSON or unexpected keys
        raise Damaged(path, f"{file.name} does not contain a valid size and sha256 ({one_line(error)})") from None


def check_size(path: Path, folder: Path) -> Sidecar:
    """Check the size and location of a data file without reading it, and return its sidecar.

    Raises:
        Damaged: If the file is missing, unfinished, outside `folder` (the store) or of the wrong size.
    """
    if not path.is_file():
        raise Damaged(path, "it is missing")
    for file in (path, path.with_suffix(".json")):
        if not is_inside(file, folder):
            raise Damaged(path, f"{file.name} is a link to a file outside {str(folder)!r}")
    sidecar, size = read_sidecar(path), path.stat().st_size
    if size != sidecar.size:
        raise Damaged(path, f"it has {size} bytes instead of {shown(sidecar.size)}")
    return sidecar


def check_file(path: Path, folder: Path) -> None:
    """Check the size, location and checksum of a data file.

    Raises:
        Damaged: If the file fails `check_size`, can't be read, or does not have the recorded checksum.
    """
    sidecar = check_size(path, folder)
    try:
        sha256 = sha256_file(path)
    except OSError as error:
        raise Damaged(path, f"it can't be read ({one_line(error)})") from None
    if sha256 != sidecar.sha256:
        raise Damaged(path, "its content has changed (the checksum differs)")


def is_whole(path: Path, folder: Path) -> bool:
    """Whether a data file is finished and intact."""
    with suppress(Damaged):
        check_file(path, folder)
        return True
    return False
