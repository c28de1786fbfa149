"""A folder of results that is there as a whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extract.errors import InputError


@contextmanager
def new_folder(path: str) -> Iterator[tuple[Path, Path]]:
    """A folder to write into, beside the final one that it becomes when everything is in it; gives both.

    Raises:
        InputError: The final one is there, or it can't be made.
    """
    final = Path(path)
    if final.exists():
        raise InputError(f"Expected `out` to be a new folder, but {path!r} exists. Give another --out, or delete it.")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        raise InputError(
            f"Expected `out` to be a folder that can be made, but {path!r} can't: {error.strerror}. Give another --out."
        ) from error
    try:
        yield unfinished, final
        unfinished.chmod(0o755)
        unfinished.rename(final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
