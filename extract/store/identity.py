"""JSON records of a store: identity.json and reader.json. The latter identifies the local copy of a served model."""

import json
import os
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.hashing import sha256_json
from extract.policy import SCHEMA_VERSION
from extract.samplers import SAMPLERS, sampler_name
from extract.schemas import (
    DECODING,
    IDENTITY,
    KNOWN_DECODING,
    MODEL,
    NAMED_MODEL,
    OBJECT,
    PROMPT,
    SHA256,
    check_record,
    one_of,
)
from extract.store.files import is_inside, read_json, replace_file
from extract.text import shown

_IDENTITY, _READER = "identity.json", "reader.json"
_RECORDS = {_IDENTITY: ("confidence-probes store", "of"), _READER: ("confidence-probes reader", "model")}
_LARGEST = 2**20  # bytes


def member_stores(folder: Path) -> list[Path]:
    """Return the stores of a temperature grid, sorted by name.

    The list is empty if the folder is not a grid. Hidden folders are left out, because they contain unfinished imports.
    """
    if os.path.isfile(folder / _IDENTITY) or not os.path.isdir(folder):  # Path.is_file raises for overlong names
        return []
    return sorted(file.parent for file in folder.glob(f"*/{_IDENTITY}") if not file.parent.name.startswith("."))


def check_folder(folder: Path) -> None:
    """Raise an InputError if a path is a file, or a non-empty folder that is not a store."""
    if (folder / _IDENTITY).is_file() or not folder.exists():
        return
    expected = f"Expected `store` to be a new folder or a store, but {str(folder)!r}"
    if members := member_stores(folder):
        raise InputError(
            f"{expected} contains one store per temperature: {_names(members)}. Set --store to one of these stores or "
            "to a new folder, or pass a grid of temperatures."
        )
    if not folder.is_dir() or any(not child.name.startswith(".") for child in folder.iterdir()):
        raise InputError(f"{expected} is a file, or a folder that contains something else. Pass a different --store.")


def write_identity(folder: Path, identity: dict[str, Any]) -> None:
    """Write the identity of a new store."""
    _write_record(folder / _IDENTITY, sha256_json(identity), identity)


def read_identity(folder: Path) -> dict[str, Any]:
    """Return the identity of a store, as plain JSON types.

    Raises:
        InputError: If `folder` is not a store, if this version cannot read it, or if its identity was altered.
    """
    file = folder / _IDENTITY
    expected = f"Expected `store` to be the folder of one store, but {str(folder)!r}"
    if members := member_stores(folder):
        raise InputError(f"{expected} contains several stores: {_names(members)}. Pass one of them.")
    if not os.path.isfile(file):
        raise InputError(
            f"{expected} has no identity.json. Make a store with `python -m extract sample --store {folder}`. To make "
            "the store that train.py uses, add `--config configs/sets/facts.yaml`."
        )
    sha256, identity = _read_record(file)
    if (schema := identity.get("schema")) != SCHEMA_VERSION:
        raise InputError(
            f"Expected a store with schema {SCHEMA_VERSION}, but {str(file)!r} has schema {shown(schema)}. Use the "
            "version of confidence-probes that made the store."
        )
    if sha256 != sha256_json(identity):
        raise InputError(
            f"Expected the identity in {str(file)!r} to have SHA-256 {sha256}, but it has {sha256_json(identity)}. The "
            "file was altered. Restore it, or make a new store."
        )
    check_record(identity, IDENTITY, file, "of.")
    sampler, policy = SAMPLERS[sampler_name(identity["sampler"])], identity["policy"]
    check_record(policy["model"], MODEL if sampler.weights else NAMED_MODEL, file, "of.policy.model.")
    decoding = DECODING if sampler.complete_policy else KNOWN_DECODING
    check_record(policy["decoding"], {**decoding, "prompt": PROMPT}, file, "of.policy.decoding.")
    return identity


def write_reader(folder: Path, identity: str, model: dict[str, Any]) -> None:
    """Write reader.json, which identifies the local copy of a served model.

    Args:
        folder: Folder of the store.
        identity: SHA-256 of the store's identity.
        model: `ModelIdentity` of the local copy, as a dict.
    """
    _write_record(folder / _READER, identity, model)


def read_reader(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the model identity in reader.json, or None if the file does not exist.

    Raises:
        InputError: If the file is damaged or belongs to another store.
    """
    file = folder / _READER
    if not file.is_file():
        return None
    sha256, model = _read_record(file)
    check_record(model, MODEL, file, prefix="model.")
    if sha256 != identity:
        raise InputError(
            f"Expected {str(file)!r} to contain the store's identity {identity}, but it contains {sha256}. Restore the "
            "file."
        )
    return model


def _write_record(file: Path, identity: str, content: dict[str, Any]) -> None:
    form, key = _RECORDS[file.name]
    record = {"format": form, "identity": identity, key: content}
    replace_file(file, json.dumps(record, indent=1, sort_keys=True).encode())


def _read_record(file: Path) -> tuple[str, dict[str, Any]]:
    """Return a record's SHA-256 entry, and the identity (for identity.json) or model (for reader.json)."""
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
