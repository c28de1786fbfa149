"""Log W&B runs offline, and read them from the files that `wandb sync` would upload."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32768  # block size of a LevelDB log, the format of a .wandb file after its 7 magic bytes


@contextmanager
def logging_offline() -> Iterator[pytest.MonkeyPatch]:
    """Context manager inside which runs are logged offline. Yields a patch for more environment variables."""
    wandb.teardown()  # W&B keeps the environment of the last run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        yield patch
        wandb.teardown()


def records(data: bytes) -> Iterator[Record]:
    """Return every complete record in the bytes of a .wandb file."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # no space for a header, so the rest is padding
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        place += 7 + size
        if place > len(data):
            return
        parts += data[place - size : place]
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def finished_records(folder: Path) -> list[Record]:
    """Return the records of the only offline run in a folder, and wait for those written after `finish` returns."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    for _ in range(600):
        found = list(records(path.read_bytes()))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{path} has no end")


class OfflineRun:
    """Config, summary, history, artifacts and exit code of the offline run in a folder."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.artifacts: dict[str, Any] = {}
        (self.files,) = folder.glob("wandb/offline-run-*/files")
        for record in finished_records(folder):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                _update(self.config, record.run.config.update)
            elif kind == "config":
                _update(self.config, record.config.update)
            elif kind == "summary":
                _update(self.summary, record.summary.update)
            elif kind == "history":
                self.history.append(_update({}, record.history.item))
            elif kind == "artifact":
                self.artifacts[record.artifact.type] = record.artifact
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    def media(self, key: str) -> Path:
        """Return the file of a logged table or picture."""
        (logged,) = [row[key] for row in self.history if key in row]
        return self.files / logged["path"]


def _update(values: dict[str, Any], items: Any) -> dict[str, Any]:
    for item in items:
        *outer, last = item.nested_key or [item.key]
        inner = values
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = json.loads(item.value_json)
    return values
