"""JSON records of a store: identity.json, what it is conditional on; reader.json, which model reads it."""

import json
import os
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.hashing import sha256_json
from extract.policy import SCHEMA_VERSION
from extract.samplers import SAMPLERS, sampler_name
from extract.schemas import IDENTITY, MODEL, OBJECT, SHA256, check_record, one_of
from extract.store.files import is_inside, read_json, replace_file
from extract.text import shown

_IDENTITY, _READER = "identity.json", "reader.json"
#: Format and the key of the content of each record.
_RECORDS = {_IDENTITY: ("confidence-probes store", "of"), _READER: ("confidence-probes reader", "model")}
_LARGEST = 2**20  # bytes


def member_stores(folder: Path) -> list[Path]:
    """The stores in a folder that holds one for each temperature and is none itself, by name; else none."""
    if os.path.isfile(folder / _IDENTITY) or not os.path.isdir(folder):  # also of names that are too long
        return []
    return sorted(file.parent for file in folder.glob(f"*/{_IDENTITY}"))


def check_folder(folder: Path) -> None:
    """Refuse a folder in which a store can neither be made nor gone on with.

    Raises:
        InputError: It is a file, or a folder with anything in it and no identity.
    """
    if (folder / _IDENTITY).is_file() or not folder.exists():
        return
    expected = f"Expected `store` to be a new folder or a store, but {str(folder)!r}"
    if members := member_stores(folder):
        raise InputError(
            f"{expected} holds a store for each temperature: {_names(members)}. Give one of them, or a new folder in "
            "it, as --store; or a grid of temperatures."
        )
    if not folder.is_dir() or any(not child.name.startswith(".") for child in folder.iterdir()):
        raise InputError(f"{expected} is something else and not empty. Give another --store.")


def write_identity(folder: Path, identity: dict[str, Any]) -> None:
    """Write the identity of a new store, given as plain JSON types."""
    _write_record(folder / _IDENTITY, sha256_json(identity), identity)


def read_identity(folder: Path) -> dict[str, Any]:
    """Content of a store's identity, plain JSON types.

    Raises:
        InputError: No store in `folder`, one that this version can't read, or an identity that was altered.
    """
    file = folder / _IDENTITY
    expected = f"Expected `store` to be the folder of one store, but {str(folder)!r}"
    if members := member_stores(folder):
        raise InputError(f"{expected} holds several: {_names(members)}. Give one of them.")
    if not os.path.isfile(file):  # also of a name that is too long for a file system
        raise InputError(
            f"{expected} has no identity.json. Make one with `python -m extract sample --store {folder}`; add "
            "`--config configs/sets/facts.yaml` for that of train.py."
        )
    sha256, identity = _read_record(file)
    if (schema := identity.get("schema")) != SCHEMA_VERSION:
        raise InputError(
            f"Expected a store of schema {SCHEMA_VERSION}, but {str(file)!r} has schema {shown(schema)}. Use the "
            "version of confidence-probes that made it."
        )
    if sha256 != sha256_json(identity):
        raise InputError(
            f"Expected the identity in {str(file)!r} to be {sha256}, but its content gives {sha256_json(identity)}: it "
            "was altered. Restore the file, or make a new store."
        )
    check_record(identity, IDENTITY, file, "of.")
    if SAMPLERS[sampler_name(identity["sampler"])].weights:  # else its name is never loaded
        check_record(identity["policy"]["model"], MODEL, file, "of.policy.model.")
    return identity


def write_reader(folder: Path, identity: str, model: dict[str, Any]) -> None:
    """Write which local copy of its model, a `ModelIdentity`, reads a store of a sampler without weights."""
    _write_record(folder / _READER, identity, model)


def read_reader(folder: Path, identity: str) -> dict[str, Any] | None:
    """Which local copy of its model reads a store; None before the first one does.

    Raises:
        InputError: The file is not as it was written, or of another store.
    """
    file = folder / _READER
    if not file.is_file():
        return None
    sha256, model = _read_record(file)
    check_record(model, MODEL, file, prefix="model.")
    if sha256 != identity:
        raise InputError(
            f"Expected {str(file)!r} to be of the store's identity {identity}, but it is of {sha256}. Restore the file."
        )
    return model


def _write_record(file: Path, identity: str, content: dict[str, Any]) -> None:
    form, key = _RECORDS[file.name]
    record = {"format": form, "identity": identity, key: content}
    replace_file(file, json.dumps(record, indent=1, sort_keys=True).encode())


def _read_record(file: Path) -> tuple[str, dict[str, Any]]:
    """The identity's SHA-256 that a record states, and its content."""
    form, key = _RECORDS[file.name]
    try:
        if not is_inside(file, file.parent):
            raise ValueError("it is a link to a file outside the store")
        record = read_json(file, _LARGEST)
    except ValueError as error:
        raise InputError(
            f"Expected {str(file)!r} to be a record of the store, but {error}. Restore the file, or make a new store."
        ) from None
    check_record(record, {"format": one_of([form]), "identity": SHA256, key: OBJECT}, file)
    return record["identity"], record[key]


def _names(stores: list[Path]) -> str:
    return ", ".join(map(str, stores[:20])) + ", …" * (len(stores) > 20)
