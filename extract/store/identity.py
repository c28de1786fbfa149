"""identity.json: what a store is, written first and read before anything else of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.hashing import sha256_json
from extract.policy import SCHEMA_VERSION
from extract.samplers import SAMPLERS, sampler_name
from extract.schemas import IDENTITY, NAMED_MODEL_IDENTITY, OBJECT, SHA256, check_prompt, check_record, one_of
from extract.store.files import is_inside, read_json, replace_file
from extract.text import shown

_FORMAT = "confidence-probes store"
_LARGEST = 2**20  # bytes


def member_stores(folder: Path) -> list[Path]:
    """The stores of a family, a folder that holds stores and is none itself, by name; none of any other folder."""
    if os.path.isfile(folder / "identity.json") or not os.path.isdir(folder):  # also of names that are too long
        return []
    return sorted(file.parent for file in folder.glob("*/identity.json"))


def names_of(stores: list[Path]) -> str:
    """Stores as they may stand in a message, a few by name."""
    shown_ones = ", ".join(map(str, stores[:20]))
    return shown_ones if len(stores) <= 20 else f"{shown_ones} and {len(stores) - 20} more"


def check_place(folder: Path) -> None:
    """Refuse a place where a store can't be made or gone on with.

    Raises:
        InputError: It is a file, or a folder with anything in it and no identity.
    """
    if (folder / "identity.json").is_file() or not folder.exists():
        return
    if members := member_stores(folder):
        raise InputError(
            f"Expected `store` to be a new folder or a store, but {str(folder)!r} holds a store for each temperature: {names_of(members)}. Give one of them, or a new folder in it, as --store; or a grid of temperatures."
        )
    if not folder.is_dir() or any(not child.name.startswith(".") for child in folder.iterdir()):
        raise InputError(
            f"Expected `store` to be a new folder or a store, but {str(folder)!r} is something else and not empty. Give another --store."
        )


def write_identity(folder: Path, of: dict[str, Any]) -> None:
    """Write the identity of a new store, given as plain JSON types."""
    record = {"format": _FORMAT, "identity": sha256_json(of), "of": of}
    replace_file(folder / "identity.json", json.dumps(record, indent=1, sort_keys=True).encode())


def read_identity(folder: Path) -> dict[str, Any]:
    """Content of a store's identity, plain JSON types with every field as `IDENTITY` says.

    Raises:
        InputError: No store in `folder`, one that this version can't read, or an identity that was altered.
    """
    file = folder / "identity.json"
    if members := member_stores(folder):
        raise InputError(
            f"Expected `store` to be the folder of one store, but {str(folder)!r} holds several: {names_of(members)}. Give one of them."
        )
    if not os.path.isfile(file):  # also of a name that is too long for a file system
        raise InputError(
            f"Expected `store` to be the folder of a store, but {str(folder)!r} has no identity.json. Make one with "
            f"`python -m extract sample --store {folder}`; add `--config configs/sets/facts.yaml` for that of train.py."
        )
    if not is_inside(file, folder):
        raise InputError(
            f"Expected {str(file)!r} to lie in its store, but it is a link to a file outside. Put the file itself there."
        )
    try:
        record = read_json(file, _LARGEST)
    except ValueError as error:
        raise InputError(
            f"Expected {str(file)!r} to hold a store's identity, but {error}. Restore the file, or make a new store."
        ) from None
    check_record(record, {"format": one_of([_FORMAT]), "identity": SHA256, "of": OBJECT}, file)
    of, schema = record["of"], record["of"].get("schema")
    if type(schema) is int and schema != SCHEMA_VERSION:  # before the fields, which another version may have others of
        raise InputError(
            f"Expected a store of schema {SCHEMA_VERSION}, but {str(file)!r} has schema {shown(schema)}. Use the version of confidence-probes that made it."
        )
    weights = SAMPLERS[sampler_name(of.get("sampler"))].weights
    check_record(of, IDENTITY if weights else NAMED_MODEL_IDENTITY, file, prefix="of.")
    check_prompt(of["policy"]["decoding"]["prompt"], file, "of.policy.decoding.prompt.")
    if record["identity"] != sha256_json(of):
        raise InputError(
            f"Expected the identity in {str(file)!r} to be {record['identity']}, but its content gives {sha256_json(of)}: it was altered. Restore the file, or make a new store."
        )
    return of
