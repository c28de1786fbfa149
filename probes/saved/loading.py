"""From a folder or a Hub id to a probe's config, head and calibrator, without trusting a byte of either."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from extract.errors import InputError
from extract.hashing import sha256_file
from extract.schemas import (
    DECODING,
    MODEL,
    OBJECT,
    PROMPT,
    SHA256,
    TEXT,
    TEXT_OR_NULL,
    Field,
    Schema,
    check_prompt,
    check_record,
    one_of,
    whole,
)
from extract.signals.features import TokenFeatures, is_key, is_pooling, is_weights, token_signals
from extract.store.files import is_inside, read_json
from extract.store.shards import Scope
from extract.text import one_line, shown
from probes.saved.calibrators import CALIBRATORS, MOST_KNOTS, Calibrator
from probes.saved.head import HEADS, Head

FORMAT_VERSION = 3
_READ_VERSIONS = (2, 3)  # 2 had no token signals
_FILES = ("config.json", "model.safetensors", "README.md")
_LARGEST_CONFIG, _LARGEST_HEADER = 2**20, 2**16  # bytes
_LARGEST_CALIBRATOR = 2 * 8 * MOST_KNOTS
_CALIBRATOR = "calibrator."  # what the calibrator's tensors begin with

#: Fields of config.json, with those that say what is read: see `_reading`.
_CONFIG: Schema = {
    "format_version": whole(min(_READ_VERSIONS), FORMAT_VERSION, " or ".join(map(str, _READ_VERSIONS))),
    "head": one_of(HEADS),
    "d_model": whole(1, 2**20, "a positive width below a million"),
    "sizes": OBJECT,  # those of the head
    "calibrator": one_of(CALIBRATORS),
    "target": one_of(["capability", "response", "semantic_entropy", "seu"]),
    "weights": SHA256,  # of model.safetensors
    "model": MODEL,
    "prompt": PROMPT,
}
#: Fields that a probe works without: what was measured, for people.
_FURTHER: Schema = {
    "name": TEXT,
    "taught": TEXT_OR_NULL,
    "decoding": DECODING,
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
            f"Expected `probe` to be the folder of a saved probe or a Hub id, but there is no folder {probe!r}. Runs "
            "save theirs as runs/NAME/probe."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(probe, revision=revision, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe or a Hub id, but {probe!r} is no folder and the Hub "
            f"gave: {one_line(error)}"
        ) from error


def _own_file(folder: Path, name: str, home: Path) -> Path:
    """A file of a probe.

    Raises:
        InputError: It is missing, or a link to a file outside `home`.
    """
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe, but {str(folder)!r} has no {name}. Runs save theirs "
            "as runs/NAME/probe."
        )
    if not is_inside(path, home):
        raise InputError(
            f"Expected {str(path)!r} to lie in the probe's folder, but it is a link to a file outside. Put the file "
            "itself there; a probe from the Hub is loaded by its id."
        )
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Content of a config.json.

    Raises:
        InputError: If it is too large, no JSON, of another format version, or a field is missing, unknown or invalid.
    """
    try:
        config = read_json(path, _LARGEST_CONFIG)
    except ValueError as error:
        raise InputError(
            f"Expected {str(path)!r} to describe a probe, but {error}. Train the probe again, or get another copy of "
            "it."
        ) from None
    known = config if isinstance(config, dict) else {}
    version = known.get("format_version")
    if type(version) is int and version not in _READ_VERSIONS:  # first: another version may have other fields
        raise InputError(
            f"Expected a probe of format version {' or '.join(map(str, _READ_VERSIONS))}, but {str(path)!r} has "
            f"{shown(version)}. Use the version of confidence-probes that wrote it."
        )
    required, optional = _reading(known.get("target"), known.get("signal"))
    check_record(config, {**_CONFIG, **required}, path, optional={**_FURTHER, **optional})
    check_prompt(config["prompt"], path, "prompt.")
    sizes = {name: whole(1, largest) for name, largest in HEADS[config["head"]].sizes.items()}
    check_record(config["sizes"], sizes, path, prefix="sizes.")
    _check_pooled(config, path)
    return config


def _reading(target: Any, signal: Any) -> tuple[Schema, Schema]:
    """Fields that say what a probe of a target and a signal, any JSON values, reads; and those that may be there."""
    from extract.signals.hidden import POSITIONS
    from extract.signals.registry import SIGNALS

    scope: Scope = "sample" if target == "response" else "question"
    pooled: Schema = {
        "keys": Field(
            f"a list of signal/layer/position, each once, of {', '.join(token_signals(scope))}",
            lambda value: _is_list(value, lambda key: is_key(key, scope)) and len(value) > 0,
        ),
        "pooling": Field(
            "a list of poolings, each once, where an answer is read, and else an empty one",
            lambda value: _is_list(value, is_pooling) and (len(value) > 0) == (scope == "sample"),
        ),
        "weights": Field(
            "null, or the signal/layer/position of weights where an answer is read",
            lambda value: value is None or (scope == "sample" and is_weights(value)),
        ),
    }
    if signal in token_signals("sample"):
        null = Field(f"null, because {signal!r} is no hidden state", lambda value: value is None)
        return {"signal": one_of(token_signals(scope)), "layer": null, "position": null, "pooled": pooled}, {}
    layer = whole(0, 2**16, "a layer's number")
    return {"signal": one_of(SIGNALS), "layer": layer, "position": one_of(POSITIONS[scope])}, {"pooled": pooled}


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Whether any JSON value is a list of texts of a kind, each of which stands there once."""
    return isinstance(value, list) and all(map(holds, value)) and len(set(value)) == len(value)


def _check_pooled(config: dict[str, Any], path: Path) -> None:
    """Refuse invalid numbers of token signals, and a head that takes another number of them."""
    if "pooled" not in config:
        return
    try:
        n = len(TokenFeatures.from_json(config["pooled"]).names)
    except InputError as error:
        raise InputError(
            f"Expected `pooled` in {str(path)!r} to be what a probe was trained on. {error} Restore the file."
        ) from None
    alone, width = config["layer"] is None, config["d_model"]
    if width != n if alone else width <= n:
        raise InputError(
            f"Expected `d_model` in {str(path)!r} to be {n if alone else f'above {n}'}, because `pooled` has {n} "
            f"numbers, but got {width}. Restore the file."
        )


def read_weights(path: Path, config: dict[str, Any]) -> tuple[Head, Calibrator]:
    """The head and calibrator that a config names, from a file that holds their tensors and nothing else.

    Raises:
        InputError: If the file holds anything else, or values that no training gives.
    """
    head = HEADS[config["head"]](config["d_model"], **config["sizes"])
    try:
        size = path.stat().st_size
        largest = sum(tensor.nbytes for tensor in head.state_dict().values()) + _LARGEST_CALIBRATOR + _LARGEST_HEADER
        if size > largest:
            raise ValueError(f"it has {size} bytes where at most {largest} belong")
        if sha256_file(path) != config["weights"]:
            raise ValueError("its checksum is not the one in config.json")
        with safe_open(path, framework="pt") as file:
            shapes = {
                name.removeprefix(_CALIBRATOR): tuple(file.get_slice(name).get_shape())
                for name in file.keys()  # noqa: SIM118 (it is no dict)
                if name.startswith(_CALIBRATOR)
            }
            calibrator = CALIBRATORS[config["calibrator"]].of_shapes(shapes)
            _fill(probe_tensors(head, calibrator), file)
        problem = head.problem() or calibrator.problem()
        if problem is not None:
            raise ValueError(problem)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"Expected {str(path)!r} to hold the tensors of a {config['head']!r} head of width {config['d_model']} and "
            f"a {config['calibrator']!r} calibrator, but {one_line(error)}. Train the probe again, or get another copy "
            "of it."
        ) from None
    return head, calibrator


def probe_tensors(head: Head, calibrator: Calibrator) -> dict[str, Tensor]:
    """The tensors of a saved probe by their names in its file; on a CPU they share the memory of the modules."""
    of_calibrator = {_CALIBRATOR + name: tensor for name, tensor in calibrator.state_dict().items()}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in {**head.state_dict(), **of_calibrator}.items()}


def _fill(declared: dict[str, Tensor], file: Any) -> None:
    """Read exactly the declared tensors into their place.

    Raises:
        ValueError: If a tensor is missing, not declared, or of another dtype or shape.
    """
    found = set(file.keys())
    for name in sorted(declared.keys() ^ found):
        raise ValueError(f"{shown(name)} is {'missing' if name in declared else 'there too'}")
    for name, tensor in declared.items():
        read = file.get_tensor(name)
        if (read.dtype, read.shape) != (tensor.dtype, tensor.shape):
            raise ValueError(
                f"`{name}` is {read.dtype} of shape {list(read.shape)} and not {tensor.dtype} of shape "
                f"{list(tensor.shape)}"
            )
        tensor.copy_(read)
