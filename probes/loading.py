"""From a folder or a Hub id to a probe's config and head, without trusting a byte of either."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from extract.checks import (
    DECODING,
    MODEL,
    OBJECT,
    PROMPT,
    SHA256,
    TEXT,
    Schema,
    check_prompt,
    check_record,
    number,
    one_of,
    whole,
)
from extract.errors import InputError
from extract.files import is_inside, one_line, read_json, shown
from extract.hashing import sha256_file
from probes.head import HEADS, LinearHead

FORMAT_VERSION = 1
_FILES = ("config.json", "model.safetensors", "README.md")
_LARGEST_CONFIG, _LARGEST_HEADER = 2**20, 2**16  # bytes

#: Fields of config.json, with `signal` and `position`, which are those that can be read.
_CONFIG: Schema = {
    "format_version": whole(1, FORMAT_VERSION, str(FORMAT_VERSION)),
    "head": one_of(HEADS),
    "d_model": whole(1, 2**20, "a positive width below a million"),
    "layer": whole(0, 2**16, "a layer's number"),
    "target": one_of(["capability"]),
    "weights": SHA256,  # of model.safetensors
    "model": MODEL,
    "prompt": PROMPT,
}
#: Fields that a probe works without: what was measured, for people.
_FURTHER: Schema = {
    "name": TEXT,
    "decoding": DECODING,
    "calibrator": {
        "kind": one_of(["platt"]),
        "slope": number("a number of at least 0", lambda value: value >= 0),
        "intercept": number("a number"),
    },
    "training": OBJECT,
    "test": OBJECT,
    "versions": OBJECT,
}


class ProbeFiles(NamedTuple):
    """The two files of a probe that are ever opened."""

    config: Path
    tensors: Path


def find_probe(probe: str | Path, revision: str | None) -> ProbeFiles:
    """Files of a probe in a folder or on the Hub, of which the files that a probe has are downloaded and no others.

    Raises:
        InputError: Neither a folder nor a repository, or a file is missing or a link to a place outside.
    """
    if os.path.isdir(probe):
        folder = home = Path(probe)
    else:
        folder = _from_hub(str(probe), revision)
        home = folder.parents[1]  # the files of a snapshot are links to others of the repository
    return ProbeFiles(*(_own_file(folder, name, home) for name in ("config.json", "model.safetensors")))


def _from_hub(probe: str, revision: str | None) -> Path:
    if probe.count("/") != 1 or probe.startswith((".", "/")):
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe or a Hub id, but there is no folder {probe!r}. Runs save theirs as runs/NAME/probe."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(probe, revision=revision, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe or a Hub id, but {probe!r} is no folder and the Hub gave: {one_line(error)}"
        ) from error


def _own_file(folder: Path, name: str, home: Path) -> Path:
    """A file of a probe.

    Raises:
        InputError: It is missing, or a link to a file outside `home`.
    """
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe, but {str(folder)!r} has no {name}. Runs save theirs as runs/NAME/probe."
        )
    if not is_inside(path, home):
        raise InputError(
            f"Expected {str(path)!r} to lie in the probe's folder, but it is a link to a file outside. Put the file itself there; a probe from the Hub is loaded by its id."
        )
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Content of a config.json, with every field as `_CONFIG` and `_FURTHER` say.

    Raises:
        InputError: It is larger than a config, no JSON, of another format version, or a field is missing, not known or
            out of its range.
    """
    try:
        config = read_json(path, _LARGEST_CONFIG)
    except ValueError as error:
        raise InputError(
            f"Expected {str(path)!r} to describe a probe, but {error}. Train the probe again, or get another copy of it."
        ) from None
    stated = config.get("format_version") if isinstance(config, dict) else None
    if type(stated) is int and stated != FORMAT_VERSION:  # before the fields, which another version may have others of
        raise InputError(
            f"Expected a probe of format version {FORMAT_VERSION}, but {str(path)!r} has {shown(stated)}. Use the version of confidence-probes that wrote it."
        )
    from extract.signals import SIGNALS
    from extract.signals.positions import QUESTION_POSITIONS

    names: Schema = {"signal": one_of(SIGNALS), "position": one_of(QUESTION_POSITIONS)}
    check_record(config, {**_CONFIG, **names}, path, optional=_FURTHER)
    check_prompt(config["prompt"], path, "prompt.")
    return config


def read_head(path: Path, config: dict[str, Any]) -> LinearHead:
    """The head that a config names, from a file that holds its tensors and nothing else.

    Raises:
        InputError: The file holds anything else, or values that no training gives.
    """
    head = HEADS[config["head"]](config["d_model"])
    try:
        head.load_state_dict(_read_tensors(path, head.state_dict(), config["weights"]))
        problem = head.problem()
        if problem is None and "calibrator" in config:
            problem = _calibrator_problem(head, config["calibrator"])
        if problem is not None:
            raise ValueError(problem)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"Expected {str(path)!r} to hold the tensors of a {config['head']!r} head of width {config['d_model']}, but {one_line(error)}. Train the probe again, or get another copy of it."
        ) from None
    return head


def _read_tensors(path: Path, declared: dict[str, Tensor], sha256: str) -> dict[str, Tensor]:
    """Read exactly the declared tensors, after the size of the file has bounded what they can take.

    Raises:
        ValueError: The file has another checksum than config.json states, or a tensor is missing, not declared, or of another dtype or shape.
        SafetensorError: The file is damaged.
    """
    size, largest = path.stat().st_size, sum(tensor.nbytes for tensor in declared.values()) + _LARGEST_HEADER
    if size > largest:
        raise ValueError(f"it has {size} bytes where at most {largest} belong")
    if sha256_file(path) != sha256:
        raise ValueError("its checksum is not the one in config.json")
    with safe_open(path, framework="pt") as file:
        found = set(file.keys())
        for name in sorted(declared.keys() | found):
            if name not in found or name not in declared:
                raise ValueError(f"{shown(name)} is {'missing' if name in declared else 'there too'}")
        tensors = {name: file.get_tensor(name) for name in declared}
    for name, tensor in tensors.items():
        expected = declared[name].dtype, list(declared[name].shape)
        if (tensor.dtype, list(tensor.shape)) != expected:
            raise ValueError(
                f"`{name}` is {tensor.dtype} of shape {list(tensor.shape)} and not {expected[0]} of shape {expected[1]}"
            )
    return tensors


def _calibrator_problem(head: LinearHead, calibrator: dict[str, float]) -> str | None:
    """Where the tensors disagree with the calibrator that config.json tells people of."""
    for name in ("slope", "intercept") if calibrator else ():
        if not torch.equal(getattr(head, name), torch.tensor(calibrator[name], dtype=torch.float32)):
            return (
                f"`{name}` is {float(getattr(head, name))} and `calibrator.{name}` in config.json is {calibrator[name]}"
            )
    return None
