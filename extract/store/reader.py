"""reader.json: which local copy of a served model the signals of its store are read with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.schemas import MODEL, OBJECT, SHA256, check_record, one_of
from extract.store.files import is_inside, read_json, replace_file

_FORMAT = "confidence-probes reader"
_NAME = "reader.json"
_LARGEST = 2**16  # bytes


def write_reader(folder: Path, identity: str, model: dict[str, Any]) -> None:
    """Write which model reads a served store, given as a `ModelIdentity` in plain JSON types.

    Args:
        folder: The store.
        identity: Hash of the store's identity.
        model: The model.
    """
    record = {"format": _FORMAT, "identity": identity, "model": model}
    replace_file(folder / _NAME, json.dumps(record, indent=1, sort_keys=True).encode())


def read_reader(folder: Path, identity: str) -> dict[str, Any] | None:
    """Which model reads a served store; None before the first one does.

    Raises:
        InputError: The file is not as it was written, or of another store.
    """
    file = folder / _NAME
    if not file.is_file():
        return None
    if not is_inside(file, folder):
        raise InputError(f"Expected {str(file)!r} to lie in its store, but it is a link to a file outside. Delete it.")
    try:
        record = read_json(file, _LARGEST)
    except ValueError as error:
        raise InputError(
            f"Expected {str(file)!r} to say which model reads the store, but {error}. Restore the file."
        ) from None
    check_record(record, {"format": one_of([_FORMAT]), "identity": SHA256, "model": OBJECT}, file)
    check_record(record["model"], MODEL, file, prefix="model.")
    if record["identity"] != identity:
        raise InputError(
            f"Expected {str(file)!r} to be of the store's identity {identity}, but it is of {record['identity']}. Restore the file."
        )
    model: dict[str, Any] = record["model"]
    return model
