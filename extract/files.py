"""Files that are whole or absent: written beside their name, renamed, then vouched for by a small JSON of size and SHA-256."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path

from extract.hashing import sha256_file


def write_file(path: Path, content: bytes) -> None:
    """Write a data file, then the JSON beside it that vouches for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    voucher = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    replace_file(path.with_suffix(".json"), json.dumps(voucher).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write beside the final name, flush to the disk, and rename: a reader sees the old file or the new one."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def is_finished(path: Path) -> bool:
    """Whether a data file and its voucher are there."""
    return path.is_file() and path.with_suffix(".json").is_file()


def problem_of(path: Path) -> str | None:
    """What is wrong with a data file, in a few words; None when it is as it was written."""
    voucher = path.with_suffix(".json")
    if not voucher.is_file():
        return f"unfinished (no {voucher.name})"
    try:
        stated = json.loads(voucher.read_text(encoding="utf-8"))
        size, digest = stated["size"], stated["sha256"]
    except (ValueError, KeyError, TypeError):
        return f"{voucher.name} can't be read"
    if path.stat().st_size != size:
        return f"{path.stat().st_size} bytes, {size} expected"
    return None if sha256_file(path) == digest else "content changed (checksum differs)"
