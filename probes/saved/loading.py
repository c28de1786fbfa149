"""Load the config, head and calibrators of a probe from untrusted files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from extract import schemas
from extract.errors import InputError
from extract.hashing import sha256_file
from extract.schemas import Field, Maybe, Schema, check_record, number, one_of, whole
from extract.signals.features import PREFIXES, TokenFeatures, is_key, is_pooling, is_weights, token_signals
from extract.store.files import read_json
from extract.store.shards import Scope
from extract.text import one_line, shown
from probes.saved.calibrators import CALIBRATORS, Calibrator
from probes.saved.distance import RANK
from probes.saved.head import Head
from probes.saved.heads import HEADS, OF_TOKENS, OF_VECTORS
from probes.saved.novelty import Novelty
from probes.saved.prefixes import N_LENGTHS, PrefixCalibrator

FORMAT_VERSION = 6
#: Version 3 added token signals. Version 4 allowed several layers. Version 5 added `prefixes` and `novelty`. Version 6
#: added broader probes.
_READ_VERSIONS = (2, 3, 4, 5, 6)
_LARGEST_CONFIG, _LARGEST_HEADER, _LARGEST_CALIBRATOR = 2**20, 2**16, 2**22  # bytes
_CALIBRATOR, _PREFIXES, _NOVELTY = "calibrator.", "prefixes.", "novelty."  # prefixes of tensor names
#: Fields of `prefixes`. Only probes that read hidden states of answers can have `prefixes`.
_OF_PREFIXES: Schema = {
    "lengths": Field(
        f"a list of 1 to {N_LENGTHS} positive whole numbers in ascending order",
        lambda value: (
            isinstance(value, list)
            and 1 <= len(value) <= N_LENGTHS
            and all(type(n) is int and 1 <= n < 2**31 for n in value)
            and value == sorted(value)
        ),
    )
}

#: Fields of a threshold that `python -m applications decide` stores.
_DECISION = {
    "risk": number("between 0 and 1", lambda value: 0 < value < 1),
    "level": number("between 0 and 1", lambda value: 0 < value < 1),
    "threshold": number("from 0 to 1", lambda value: 0 <= value <= 1),
    "coverage": number("from 0 to 1", lambda value: 0 <= value <= 1),
    "n_questions": whole(1, 2**40),
}

_WIDTH = whole(1, 2**20, "a positive width below a million")
_BROADER: Schema = {"n_features": _WIDTH, "rank": whole(0, RANK)}
#: Fields of config.json, except the fields that `_reading` adds for the head and its features.
_CONFIG: Schema = {
    "format_version": whole(min(_READ_VERSIONS), FORMAT_VERSION, " or ".join(map(str, _READ_VERSIONS))),
    "d_model": _WIDTH,
    "sizes": schemas.OBJECT,  # of the head
    "calibrator": one_of(CALIBRATORS),
    "target": one_of(["capability", "response", "semantic_entropy", "seu"]),
    "weights": schemas.SHA256,  # of model.safetensors
    "model": schemas.MODEL,
    "prompt": schemas.PROMPT,
    "novelty": Maybe({"n_hidden": _WIDTH, "rank": whole(0, RANK), "broader": Maybe(_BROADER)}),
    "prior": Maybe(dict.fromkeys(("concentration", "diversity"), number("a positive number", lambda value: value > 0))),
    "decisions": Maybe(Field(f"a list of records with {', '.join(_DECISION)}", lambda value: _are_decisions(value))),
    # descriptive
    "name": Maybe(schemas.TEXT),
    "taught": Maybe(schemas.TEXT_OR_NULL),
    "decoding": Maybe(schemas.KNOWN_DECODING),
    "training": Maybe(schemas.OBJECT),
    "test": Maybe(schemas.OBJECT),
    "versions": Maybe(schemas.OBJECT),
}


def read_config(path: Path) -> dict[str, Any]:
    """Read and check config.json.

    Raises:
        InputError: If the file is too large, is not JSON, has an unsupported format version, or has an invalid field.
    """
    try:
        config = read_json(path, _LARGEST_CONFIG)
    except ValueError as error:
        raise InputError(
            f"Expected {str(path)!r} to describe a probe, but {error}. Train the probe again, or restore the file."
        ) from None
    known = config if isinstance(config, dict) else {}
    version = known.get("format_version")
    if type(version) is int and version not in _READ_VERSIONS:  # checked first, because the fields depend on it
        raise InputError(
            f"Expected {str(path)!r} to have format version {' or '.join(map(str, _READ_VERSIONS))}, but got "
            f"{shown(version)}. Load the probe with the version of confidence-probes that saved it."
        )
    if version in (2, 3) and "layer" in known and "layers" not in known:
        layer = config.pop("layer")
        config["layers"] = [] if layer is None else [layer]
    check_record(config, {**_CONFIG, **_reading(known.get("target"), known.get("signal"))}, path)
    if config["prompt"]["system"] is not None and not config["prompt"]["chat"]:
        raise InputError(
            f"Expected `prompt.system` in {str(path)!r} to be null, but got "
            f"{shown(config['prompt']['system'])}. A system prompt requires `prompt.chat` to be true. Restore the file."
        )
    sizes = {name: whole(1, largest) for name, largest in HEADS[config["head"]].sizes.items()}
    check_record(config["sizes"], sizes, path, prefix="sizes.")
    if config["layers"] and config["d_model"] % len(config["layers"]):
        raise InputError(
            f"Expected `d_model` in {str(path)!r} to be a multiple of {len(config['layers'])}, the number of layers, "
            f"but got {config['d_model']}. Restore the file."
        )
    width = config["d_model"] // max(1, len(config["layers"]))
    if "novelty" in config and config["novelty"]["n_hidden"] > width:
        raise InputError(
            f"Expected `novelty.n_hidden` in {str(path)!r} to be at most {width}, the number of features per "
            f"layer, but got {config['novelty']['n_hidden']}. Restore the file."
        )
    n_broader = config.get("novelty", {}).get("broader", {}).get("n_features", config["d_model"])
    if n_broader != config["d_model"]:
        raise InputError(
            f"Expected `novelty.broader.n_features` in {str(path)!r} to equal `d_model`, but got {n_broader}. Restore "
            "the file."
        )
    if "pooled" in config:
        try:
            n = len(TokenFeatures.from_json(config["pooled"]).names)
        except InputError as error:
            raise InputError(
                f"Expected `pooled` in {str(path)!r} to describe valid token features. {error} Restore the file."
            ) from None
        n_layers, width = len(config["layers"]), config["d_model"]
        if width <= n * n_layers if n_layers else width != n:
            raise InputError(
                f"Expected `d_model` in {str(path)!r} to be {f'above {n * n_layers}' if n_layers else n}, but got "
                f"{width}. `pooled` has {n} features{' per layer' * bool(n_layers)}. Restore the file."
            )
    return config


def _reading(target: Any, signal: Any) -> Schema:
    """Return the schema of the fields that depend on `target` and `signal`. Either argument may be invalid."""
    from extract.signals.hidden import ANSWER_TOKENS, POSITIONS
    from extract.signals.registry import SIGNALS

    scope: Scope = "sample" if target == "response" else "question"
    pooled: Schema = {
        "keys": Field(
            f"a list of distinct keys signal/layer/position, with a signal from {', '.join(token_signals(scope))}",
            lambda value: _is_list(value, lambda key: is_key(key, scope)) and len(value) > 0,
        ),
        "pooling": Field(
            "a list of distinct poolings if the probe reads answers, and an empty list otherwise",
            lambda value: _is_list(value, is_pooling) and (len(value) > 0) == (scope == "sample"),
        ),
        "weights": Field(
            "null or, if the probe reads answers, signal/layer/position of the weights",
            lambda value: value is None or (scope == "sample" and is_weights(value)),
        ),
    }
    layer = whole(0, 2**16)
    if signal == "hidden_tokens":
        one_layer = Field("a list of one layer number", lambda value: _is_list(value, layer.holds) and len(value) == 1)
        of_tokens = {"signal": one_of([signal]), "layers": one_layer, "position": one_of([ANSWER_TOKENS])}
        return {**of_tokens, "head": one_of(OF_TOKENS), "target": one_of(["response"]), "prefixes": Maybe(_OF_PREFIXES)}
    head = one_of(OF_VECTORS)
    if signal in token_signals("sample"):
        null = Field(f"null for the {signal!r} signal", lambda value: value is None)
        none = Field(f"an empty list for the {signal!r} signal", lambda value: value == [])
        numbers = one_of(token_signals(scope))
        return {"head": head, "signal": numbers, "layers": none, "position": null, "pooled": pooled}
    layers = Field("a list of distinct layer numbers", lambda value: _is_list(value, layer.holds) and len(value) > 0)
    of_hidden: Schema = {"signal": one_of(SIGNALS), "layers": layers, "position": one_of(POSITIONS[scope])}
    prefixes = {"prefixes": Maybe(_OF_PREFIXES)} if scope == "sample" else {}
    return {**of_hidden, "head": head, "pooled": Maybe(pooled), **prefixes}


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Whether a JSON value is a list of distinct values that all satisfy `holds`."""
    return isinstance(value, list) and all(map(holds, value)) and len(set(value)) == len(value)


def _are_decisions(value: Any) -> bool:
    """Whether a JSON value is a list of valid decision thresholds, at most one for each risk."""
    return (
        isinstance(value, list)
        and all(isinstance(one, dict) and one.keys() == _DECISION.keys() for one in value)
        and all(field.holds(one[name]) for one in value for name, field in _DECISION.items())
        and len({one["risk"] for one in value}) == len(value)
    )


def read_weights(
    path: Path, config: dict[str, Any]
) -> tuple[Head, Calibrator, PrefixCalibrator | None, Novelty | None]:
    """Load the modules that a config describes: the head, the calibrators and `Novelty`.

    Raises an InputError if the file is damaged.
    """
    with torch.device("meta"):  # allocates no memory, even if the sizes in the config are huge
        head = HEADS[config["head"]](config["d_model"], **config["sizes"])
        novelty = Novelty(**config["novelty"]) if "novelty" in config else None
    try:
        size = path.stat().st_size
        n_calibrators = 1 + len(PREFIXES) * ("prefixes" in config)
        largest = _LARGEST_HEADER + n_calibrators * _LARGEST_CALIBRATOR
        of_modules = [*head.state_dict().values(), *(novelty.state_dict().values() if novelty is not None else ())]
        largest += sum(tensor.nbytes for tensor in of_modules)
        if size > largest:
            raise ValueError(f"it has {size} bytes, but at most {largest} are expected")
        if sha256_file(path) != config["weights"]:
            raise ValueError("its checksum differs from the one in config.json")
        tensors = load_file(path)
        calibrator, prefixes = _unfilled(config, tensors, _CALIBRATOR), None
        if "prefixes" in config:
            of_prefixes = [_unfilled(config, tensors, f"{_PREFIXES}{name}.") for name in PREFIXES]
            prefixes = PrefixCalibrator(of_prefixes, config["prefixes"]["lengths"])
        declared = probe_tensors(head, calibrator, prefixes, novelty)
        for name in sorted(declared.keys() ^ tensors.keys()):
            raise ValueError(f"{shown(name)} is {'missing' if name in declared else 'unexpected'}")
        for name, tensor in declared.items():
            dtype, shape = tensors[name].dtype, list(tensors[name].shape)
            if (dtype, shape) != (tensor.dtype, list(tensor.shape)):
                expected = f"{tensor.dtype} of shape {list(tensor.shape)}"
                raise ValueError(f"`{name}` is {dtype} of shape {shape}, not {expected}")
        head.load_state_dict({name: tensors[name].clone() for name in head.state_dict()}, assign=True)
        calibrator.load_state_dict({name: tensors[_CALIBRATOR + name] for name in calibrator.values})
        if prefixes is not None:
            prefixes.load_state_dict({name: tensors[_PREFIXES + name] for name in prefixes.state_dict()})
        if novelty is not None:
            values = {name: tensors[_NOVELTY + name].clone() for name in novelty.state_dict()}
            novelty.load_state_dict(values, assign=True)
        parts = [part for part in (head, calibrator, prefixes, novelty) if part is not None]
        if problem := next(filter(None, (part.problem() for part in parts)), None):
            raise ValueError(problem)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"Expected {str(path)!r} to contain the tensors of a {config['head']!r} head of width {config['d_model']} "
            f"and a {config['calibrator']!r} calibrator, but {one_line(error)}. Restore the file, or train a new probe."
        ) from None
    return head, calibrator, prefixes, novelty


def _unfilled(config: dict[str, Any], tensors: dict[str, Tensor], start: str) -> Calibrator:
    """Create a config's calibrator with all parameters set to 0. `start` is the prefix of its tensor names."""
    n_knots = tensors[f"{start}x"].numel() if f"{start}x" in tensors else 0
    return CALIBRATORS[config["calibrator"]].of_zeros(n_knots)


def probe_tensors(
    head: Head, calibrator: Calibrator, prefixes: PrefixCalibrator | None, novelty: Novelty | None
) -> dict[str, Tensor]:
    """Return the tensors of a probe, keyed by their names in model.safetensors."""
    parts = {"": head, _CALIBRATOR: calibrator, _PREFIXES: prefixes, _NOVELTY: novelty}
    return {
        name: tensor
        for prefix, part in parts.items()
        if part is not None
        for name, tensor in part.state_dict(prefix=prefix).items()
    }
