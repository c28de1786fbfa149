"""Functions that alter a file of a store or a probe, and a pickle that reveals when it is loaded."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A function that alters a folder and returns the text that an error message must contain.
Alteration = Callable[[Path, random.Random], str]


class Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def bomb(folder: Path) -> bytes:
    """Return a pickle that creates the folder ``executed`` beside `folder` when it is loaded."""
    return pickle.dumps(Bomb(folder.parent / "executed"))


def lie(path: Path, rng: random.Random) -> None:
    """Write false information into a safetensors header."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    entry = header[rng.choice(sorted(key for key in header if key != "__metadata__"))]
    lies: list[Callable[[], object]] = [
        lambda: entry.update(shape=[10**9, 10**9]),
        lambda: entry.update(shape=[2**63, 2**63]),
        lambda: entry.update(shape=[-1, 4]),
        lambda: entry.update(data_offsets=[0, 10**12]),
        lambda: entry.update(data_offsets=[16, 0]),
        lambda: entry.update(dtype="F1024"),
        lambda: header.update({"9/more": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
    ]
    how = rng.randrange(len(lies) + 2)
    if how < len(lies):
        lies[how]()
        text = json.dumps(header).encode()
    else:
        text = [b"[" * 100_000, json.dumps(header).encode()][how - len(lies)]
    size = len(text) if how <= len(lies) else 2 ** rng.randrange(40, 64)
    path.write_bytes(size.to_bytes(8, "little") + text + body)


def set_field(name: str, *values: Any) -> Callable[[dict[str, Any], random.Random], None]:
    """Set a field with a dotted name to one of the values."""

    def change(record: dict[str, Any], rng: random.Random) -> None:
        *path, last = name.split(".")
        for key in path:
            record = record[key]
        record[last] = rng.choice(values)

    return change


def bad_json_contents() -> dict[str, bytes]:
    """Return file contents that are not a single JSON object, by name."""
    return {
        "empty": b"",
        "half an object": b"{",
        "a list": b"[1]",
        "null": b"null",
        "not UTF-8": b"\xff\xfe\x00",
        "NaN": b'{"a": NaN}',
        "nested 100,000 times": b"[" * 10**5,
        "5000 digits": b"1" * 5000,
        "32 MiB of spaces": b" " * 2**25,
    }


def bad_json(folder: Path, name: str, rng: random.Random) -> str:
    """Replace the content of a JSON file with something that is not a single JSON object."""
    (folder / name).write_bytes(rng.choice([*bad_json_contents().values(), bomb(folder)]))
    return name
