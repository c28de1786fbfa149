"""Named alterations of a saved probe.

Each alteration takes the probe's folder and a seeded generator, and returns a text that the error message must contain.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from extract.hashing import sha256_file
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Calibrator, Isotonic, Platt, Temperature
from probes.saved.head import Head, KNNHead, LatentHead, LinearHead, MLPHead
from tests.helpers.altering import Alteration, bad_json, bomb, lie, set_field

_CONFIG = {
    "head": "linear",
    "d_model": 8,
    "name": "linear",
    "signal": "hidden",
    "layers": [2],
    "position": "last_prompt",
    "target": "capability",
    "model": {
        "id": "tiny",
        "revision": None,
        "fingerprint": "a" * 64,
        "dtype": "float32",
        "tokenizer": "b" * 64,
        "chat_template": "c" * 64,
    },
    "prompt": {"template": "{question}", "system": None, "chat": True},
    "decoding": {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_new_tokens": 3, "stop": [], "seed": 0},
    "training": {"store": "d" * 64},
    "test": {"n_questions": 4},
    "versions": {"torch": "2"},
}


def make_probe(folder: Path, rng: random.Random) -> Path:
    """Save a probe of width 8 with a random head and a random calibrator. The probe ignores one coordinate."""
    generator = torch.Generator().manual_seed(0)
    heads: list[Head] = [
        LinearHead(8),
        MLPHead(8, hidden=3),
        LatentHead(8, hidden=3, components=4),
        KNNHead(8, n_rows=6, n_neighbors=3),
    ]
    calibrators: list[Calibrator] = [Platt(0.7, -0.2), Temperature(1.5), Isotonic([-1.0, 0.0, 1.0], [0.1, 0.1, 0.8])]
    head, calibrator = rng.choice(heads), rng.choice(calibrators)
    for name, tensor in head.state_dict().items():
        if name != "scale":
            tensor.normal_(generator=generator)
        if name == "labels":
            tensor.sigmoid_()
    head.scale[3] = torch.inf
    sizes = {size: {"hidden": 3, "components": 4, "n_rows": 6, "n_neighbors": 3}[size] for size in head.sizes}
    config = {**_CONFIG, "head": head.kind, "sizes": sizes, "calibrator": calibrator.kind}
    return ConfidenceProbe(head, calibrator, config).save(folder, "card")


def some_file(rng: random.Random) -> str:
    return rng.choice(["config.json", "model.safetensors"])


def maybe_vouched(probe: Path, rng: random.Random) -> None:
    """In half of the cases, write the checksum of the altered tensors to config.json."""
    if rng.random() < 0.5:
        config = json.loads((probe / "config.json").read_text())
        config["weights"] = sha256_file(probe / "model.safetensors")
        (probe / "config.json").write_text(json.dumps(config))


def with_content(make: Callable[[bytes, random.Random, Path], bytes]) -> Alteration:
    def alter(probe: Path, rng: random.Random) -> str:
        path = probe / some_file(rng)
        path.write_bytes(make(path.read_bytes(), rng, probe))
        if path.name != "config.json":
            maybe_vouched(probe, rng)
        return path.name

    return alter


def missing_file(probe: Path, rng: random.Random) -> str:
    name = some_file(rng)
    (probe / name).unlink()
    if rng.random() < 0.5:
        (probe / name).mkdir()
    return name


def only_a_pickle(probe: Path, rng: random.Random) -> str:
    """Save pickled weights under the names that other tools load."""
    (probe / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "model.pkl", "probe.joblib"):
        (probe / name).write_bytes(bomb(probe))
    return "model.safetensors"


def link_outside(probe: Path, rng: random.Random) -> str:
    """Replace a file with a link to a copy outside the folder."""
    name = some_file(rng)
    shutil.move(probe / name, probe.parent / "elsewhere")
    (probe / name).symlink_to(rng.choice([probe.parent / "elsewhere", Path("../elsewhere")]))
    return name


def huge_file(probe: Path, rng: random.Random) -> str:
    name = some_file(rng)
    with (probe / name).open("r+b") as file:
        file.truncate(2 ** rng.randrange(24, 38))  # sparse
    return name


def header_lies(probe: Path, rng: random.Random) -> str:
    lie(probe / "model.safetensors", rng)
    maybe_vouched(probe, rng)
    return "model.safetensors"


def edit_config(change: Callable[[dict[str, Any], random.Random], object], named: str = "config.json") -> Alteration:
    def alter(probe: Path, rng: random.Random) -> str:
        config = json.loads((probe / "config.json").read_text())
        change(config, rng)
        (probe / "config.json").write_text(json.dumps(config))
        return named

    return alter


def field(name: str, *values: Any) -> Alteration:
    """Set a field with a dotted name to one of the values. The error message must contain the name."""
    return edit_config(set_field(name, *values), f"`{name}`")


def less(config: dict[str, Any], rng: random.Random) -> None:
    needed = [key for key in config if key not in ("name", "decoding", "training", "test", "versions")]
    places = [(config, needed), *((config[key], list(config[key])) for key in ("model", "prompt"))]
    place, keys = rng.choice(places)
    del place[rng.choice(keys)]


def more(config: dict[str, Any], rng: random.Random) -> None:
    place = rng.choice([config, config["model"], config["prompt"], config["decoding"]])
    place[rng.choice(["more", "../more", "auto_map", "__reduce__", "", "a\nb"])] = {"x": "os.system"}


def edit_tensors(change: Callable[[dict[str, torch.Tensor], random.Random], object]) -> Alteration:
    def alter(probe: Path, rng: random.Random) -> str:
        path = probe / "model.safetensors"
        tensors = load_file(path)
        change(tensors, rng)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        maybe_vouched(probe, rng)
        return "model.safetensors"

    return alter


def flip_bit(probe: Path, rng: random.Random) -> str:
    """Flip one random bit of the file, without updating its checksum."""
    path = probe / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return path.name


def put(*values: float, names: tuple[str, ...] = ()) -> Alteration:
    """Put one of the values into one element of a tensor. By default, all tensors except `scale` are eligible."""

    def change(tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
        there = [name for name in names if name in tensors] or sorted(tensors.keys() - {"scale"})
        tensor = tensors[rng.choice(there)].view(-1)
        tensor[rng.randrange(len(tensor))] = rng.choice(values)

    return edit_tensors(change)


def fall(tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
    """Make the calibrator return lower confidences for higher scores."""
    for name in ("calibrator.slope", "calibrator.temperature"):
        if name in tensors:
            tensors[name] = -tensors[name]
    if "calibrator.y" in tensors:
        tensors["calibrator.y"] = tensors["calibrator.y"].flip(0)


def reshape(tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    shapes = [tensor[None], tensor.reshape(-1)[:0], torch.ones(9, dtype=tensor.dtype), torch.ones(4096)]
    tensors[name] = rng.choice(shapes)


def retype(tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
    name = rng.choice(sorted(tensors))
    dtypes = [
        torch.float64 if tensors[name].dtype == torch.float32 else torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    ]
    tensors[name] = tensors[name].to(rng.choice([*dtypes, torch.float8_e4m3fn]))


def add(tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
    tensors[rng.choice(["more", "../weight", "/weight", "", "a\nb", "__class__"])] = torch.zeros(rng.randrange(9))


ALTERATIONS: dict[str, Alteration] = {
    "truncated": with_content(lambda content, rng, _: content[: rng.randrange(len(content) - 2)]),
    "lengthened": with_content(lambda content, rng, _: content + rng.randbytes(rng.randrange(1, 99)) + b"\0"),
    "flipped bit": flip_bit,
    "bad checksum": field("weights", "", "0" * 63, None, 0, ["a" * 64]),
    "garbage": with_content(lambda content, rng, _: rng.randbytes(rng.randrange(2000))),
    "a pickle": with_content(lambda content, rng, probe: bomb(probe)),
    "only a pickle": only_a_pickle,
    "missing file": missing_file,
    "link outside": link_outside,
    "huge file": huge_file,
    "header lies": header_lies,
    "missing tensor": edit_tensors(lambda tensors, rng: tensors.pop(rng.choice(sorted(tensors)))),
    "no tensors": edit_tensors(lambda tensors, rng: tensors.clear()),
    "extra tensor": edit_tensors(add),
    "other shape": edit_tensors(reshape),
    "other dtype": edit_tensors(retype),
    "NaN weights": put(torch.nan, torch.inf, -torch.inf),
    "impossible scale": put(torch.nan, 0.0, -1.0, -torch.inf, names=("scale",)),
    "falling calibrator": edit_tensors(fall),
    "config that is none": lambda probe, rng: bad_json(probe, "config.json", rng),
    "missing key": edit_config(less),
    "extra key": edit_config(more),
    "unknown class": field("head", "os.system", "../linear", "LinearHead", "", ["linear"], {"x": 1}, None, 1),
    "unknown position": field("position", "foo", "../last_prompt", "", None, 3, ["last_prompt"]),
    "unknown signal": field("signal", "zz", "../hidden", None, {}),
    "unknown target": field("target", "truth", "../capability", None, 0),
    "newer version": edit_config(set_field("format_version", 1, 99, 2**70, -1, "2", None, True, 1.0, [1])),
    "impossible width": field("d_model", 0, -8, 10**12, "8", 8.0, True, None, 2**63),
    "another width": edit_config(set_field("d_model", 1, 7, 9, 576, 2**19), "model.safetensors"),
    "impossible layers": field("layers", [-1], ["2"], [2.0], [None], [False], [10**9], [2, 2], [], 2, None),
    "a layer of the earlier format": edit_config(set_field("layer", 2), "'layer'"),
    "model that is none": field("model", "tiny", None, [], 3),
    "bad name of the model": field("model.id", "../tiny", "/etc/passwd", "a/b/c", "~/x", "", 3, None, "a\nb", ".."),
    "bad fingerprint": field("model.fingerprint", "", "a" * 63, "A" * 64, 0, None, "../" + "a" * 61),
    "bad dtype": field("model.dtype", "auto", "int8", None, "os.system"),
    "bad prompt": field("prompt.template", "", "no place", "{question}{question}", 3, None, "{question}\ud800"),
    "bad chat": field("prompt.chat", "yes", 1, None, {}),
    "bad decoding": field("decoding.temperature", -1, "0.7", None, True, 10**400),
    "bad calibrator": field("calibrator", "os.system", "Platt", {"kind": "platt"}, None, 1),
    "bad sizes": edit_config(
        set_field("sizes", {"hidden": 0}, {"hidden": 2**40}, {"hidden": "3"}, {"x": 3}, [], None), "sizes"
    ),
    "a position of another target": edit_config(set_field("target", "response"), "`position`"),
    "bad figures": field("test", [], "good", None, 1),
}
