"""Signals of a store, in one safetensors file per signal and shard.

A tensor has one row per question or sample of its shard. A ragged tensor has rows of different lengths: ``KEY``
contains the values of all rows, and ``KEY.offsets`` (int64, [row + 1]) contains the row boundaries.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from extract.errors import Damaged, InputError
from extract.hashing import canonical_json
from extract.store.files import check_file, parse_metadata, write_file
from extract.store.folder import ShardFiles, StoreFolder
from extract.store.ragged import Ragged
from extract.store.shards import Scope, Shard
from extract.text import one_line, shown

_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_KEY = re.compile(r"\d+/[\w-]+")
_OFFSETS = ".offsets"
#: Number of bytes of a tensor to copy at once.
CHUNK_BYTES = 2**20
#: Settings of a signal whose definition has never changed. They are not recorded.
_FIRST_VERSION = {"version": 1}
_ASKED = ("text_embedding",)


class Entry(NamedTuple):
    """Dtype and shape of a tensor.

    `dtype` is the name that safetensors uses. `shape` is the shape of one row, or of one token if the tensor is ragged.
    """

    dtype: str
    shape: torch.Size
    ragged: bool = False

    def __str__(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)} per {'token' if self.ragged else 'row'}"


Layout = dict[str, Entry]


class _Header(NamedTuple):
    """Layout of a file, and the settings of its signal."""

    layout: Layout
    settings: dict[str, Any]


class Signals(ShardFiles):
    """Signals on disk. Rows are in the order of the questions (question scope) or of `Samples.read` (sample scope)."""

    def __init__(self, folder: StoreFolder) -> None:
        super().__init__(folder, "signals/{name}/{scope}", "signal", ".safetensors")
        self._headers: dict[Path, _Header] = {}  # only of verified files
        self._keys: dict[tuple[str, Scope], list[str]] = {}  # only of complete signals

    def write(
        self,
        signal: str,
        shard: Shard,
        tensors: Mapping[str, Tensor | Ragged],
        batch_tokens: int | None = None,
        settings: dict[str, Any] = _FIRST_VERSION,
    ) -> None:
        """Write a signal for a shard.

        Args:
            shard: Block of questions, or range of samples.
            tensors: Dict from ``layer/position`` keys to tensors [row, …] or ragged tensors.
            batch_tokens: Maximum number of tokens per batch. It is recorded because it affects the last bits of the
                values.
            settings: Version of the signal and other settings that affect its values, as plain JSON types.

        Raises:
            InputError: If existing files of the signal have different settings.
        """
        record = {**self._provenance(signal, shard), "batch_tokens": batch_tokens}
        self.check_settings(signal, shard.scope, settings)
        if settings != _FIRST_VERSION:
            record["how"] = settings
        arrays = {}
        for key, tensor in tensors.items():
            if isinstance(tensor, Ragged):  # safetensors does not save tensors that share memory
                arrays[key], arrays[key + _OFFSETS] = tensor.values.contiguous(), tensor.offsets.clone()
            else:
                arrays[key] = tensor.contiguous()
        self._save(signal, shard, arrays, record)

    def copy(self, signal: str, shard: Shard, source: Self) -> None:
        """Copy one block of a signal from another store with the same prompts and model.

        Raises `Damaged` if the other store's file is damaged.
        """
        source.shard_layout(signal, shard)
        with safe_open(source.file(signal, shard), framework="pt") as file:
            record = json.loads(file.metadata()["store"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        self._save(signal, shard, tensors, {**record, **self._provenance(signal, shard)})

    def _save(self, signal: str, shard: Shard, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        file = self.file(signal, shard)
        # one metadata key, because safetensors writes several keys in random order
        write_file(file, save(tensors, {"store": canonical_json(record)}))
        self._headers.pop(file, None)
        self._keys.pop((signal, shard.scope), None)

    def keys(self, signal: str, scope: Scope = "question") -> list[str]:
        """Return the keys of a signal's tensors, such as ``0/last_prompt``, sorted by position and layer.

        Raises:
            InputError: If the file of a shard is missing or damaged, or if two files have different layouts.
        """
        if (signal, scope) not in self._keys:
            path, option = self._folder.path, " --scope sample" if scope == "sample" else ""
            command = f"read --store {path} --signals '[{signal}]'{option}"
            ask = f"ask --store {path} --baselines '[{signal}]'"
            self.check_complete(signal, scope, ask if signal in _ASKED else command)
            keys = self.layout(signal, scope)
            self._keys[signal, scope] = sorted(keys, key=lambda key: (key.split("/")[1:], int(key.split("/")[0])))
        return self._keys[signal, scope]

    def read(self, signal: str, key: str, scope: Scope = "question") -> Tensor:
        """Read one tensor [row, …] for all questions or all answers. Rows without values are NaN.

        Raises:
            InputError: If a file is missing or damaged, if the key is unknown, or if its tensor is ragged.
        """
        shards = self._shards(signal, key, scope, ragged=False)
        return self._values(signal, key, shards, [self._folder.questions.n_rows(shard) for shard in shards])

    def read_ragged(self, signal: str, key: str, scope: Scope = "sample") -> Ragged:
        """Read one ragged tensor [token, …] for all answers or all questions. Rows without values are empty.

        Raises:
            InputError: If a file is missing or damaged, if the key is unknown, or if its tensor is not ragged.
        """
        shards, lengths = self._shards(signal, key, scope, ragged=True), []
        for shard in shards:
            path, n_rows = self.file(signal, shard), self._folder.questions.n_rows(shard)
            with safe_open(path, framework="pt") as file:
                offsets, n_values = file.get_tensor(key + _OFFSETS), file.get_slice(key).get_shape()[0]
            is_sound = offsets.shape == (n_rows + 1,) and offsets.dtype == torch.int64
            if not (is_sound and offsets[0] == 0 and offsets[-1] == n_values and (offsets.diff() >= 0).all()):
                raise Damaged(path, f"{key + _OFFSETS!r} does not divide {n_values} values into {n_rows} rows")
            lengths.append(offsets.diff())
        values = self._values(signal, key, shards, [int(of_shard.sum()) for of_shard in lengths])
        return Ragged(values, torch.cat([torch.zeros(1, dtype=torch.int64), *lengths]).cumsum(0))

    def read_rows(self, signal: str, key: str, shard: Shard, start: int, stop: int) -> Tensor:
        """Read rows `start` to `stop` − 1 of a shard's tensor [row, …]. Call `keys` first to verify the files.

        Raises:
            Damaged: If the file no longer exists, can't be read or has too few rows.
        """
        path = self.file(signal, shard)
        try:
            with safe_open(path, framework="pt") as file:
                rows: Tensor = file.get_slice(key)[start:stop]
        except (OSError, SafetensorError) as error:
            raise Damaged(path, f"it was changed or removed while it was in use: {error}") from None
        if len(rows) != stop - start:
            raise Damaged(path, f"it was changed while it was in use, and row {stop - 1} is missing")
        return rows

    def layout(self, signal: str, scope: Scope = "question") -> Layout:
        """Return the dtype and shape of each tensor of a signal, by key. The dict is empty if the signal has no files.

        Raises:
            Damaged: If a file is damaged, or two files have different layouts or settings.
        """
        shards = self.finished(signal, scope)
        headers = {self.file(signal, shard): self._header(signal, shard) for shard in shards}
        first, common = next(iter(headers.items()), (Path(), _Header({}, {})))
        for path, header in headers.items():
            if header.settings != common.settings:
                raise Damaged(path, f"its settings differ from those in {first.name}")
            for key in sorted(common.layout.keys() | header.layout.keys()):
                here, there = header.layout.get(key, "missing"), common.layout.get(key, "missing")
                if here != there:
                    raise Damaged(path, f"{key!r} is {here}, but {there} in {first.name}")
        return common.layout

    def shard_layout(self, signal: str, shard: Shard) -> Layout:
        """Return the dtype and shape of each tensor of a shard, by key. Raises `Damaged` if the file is damaged."""
        return self._header(signal, shard).layout

    def _shards(self, signal: str, key: str, scope: Scope, ragged: bool) -> list[Shard]:
        """Return all shards of a signal, after checking its files and the tensor `key`.

        Raises:
            InputError: If a file is missing or damaged, if the key is unknown, or if `ragged` does not match the
                tensor.
        """
        keys, shards = self.keys(signal, scope), self._folder.shards(scope)
        of_signal = f"of the {signal!r} signal in {str(self._folder.path)!r}"
        if key not in keys:
            choices = " to ".join(keys[:1] + keys[-1:])
            raise InputError(
                f"Expected `key` to be a key {of_signal} ({choices}), but got {shown(key)}. The `keys` method "
                "lists all keys."
            )
        if self.shard_layout(signal, shards[0])[key].ragged != ragged:
            kind, method = ("ragged", "read") if ragged else ("a plain tensor", "read_ragged")
            raise InputError(f"Expected {key!r} {of_signal} to be {kind}, but it is not. Use `{method}`.")
        return shards

    def _values(self, signal: str, key: str, shards: list[Shard], counts: list[int]) -> Tensor:
        """Concatenate a tensor's parts from all shards. `counts` contains the length of each part."""
        entry = self.shard_layout(signal, shards[0])[key]
        values = torch.empty(sum(counts), *entry.shape, dtype=_DTYPES[entry.dtype])
        step = max(1, CHUNK_BYTES // max(1, entry.shape.numel() * values.element_size()))
        for shard, rows in zip(shards, values.split(counts), strict=True):
            with safe_open(self.file(signal, shard), framework="pt") as file:
                stored = file.get_slice(key)
                for start in range(0, len(rows), step):
                    rows[start : start + step] = stored[start : start + step]
        return values

    def _header(self, signal: str, shard: Shard) -> _Header:
        """Return the header of a file. On first access, verify the file."""
        path = self.file(signal, shard)
        if path in self._headers:
            return self._headers[path]
        check_file(path, self._folder.path)
        try:
            with safe_open(path, framework="pt") as file:
                record = parse_metadata(path, (file.metadata() or {}).get("store"))
                slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except (OSError, SafetensorError) as error:
            raise Damaged(path, f"it can't be read as safetensors ({one_line(error)})") from None
        settings, _ = record.pop("how", _FIRST_VERSION), record.pop("batch_tokens", None)
        if record != (provenance := self._provenance(signal, shard)) or not isinstance(settings, dict):
            raise Damaged(path, f"its metadata is {shown(record)} instead of {canonical_json(provenance)}")
        layout = {
            key: Entry(tensor.get_dtype(), torch.Size(tensor.get_shape()[1:]), key + _OFFSETS in slices)
            for key, tensor in slices.items()
            if not key.endswith(_OFFSETS)
        }
        n_rows = self._folder.questions.n_rows(shard)
        for key, entry in layout.items():
            has_rows = entry.ragged or slices[key].get_shape()[:1] == [n_rows]
            if not (_KEY.fullmatch(key) and entry.dtype in _DTYPES and has_rows):
                raise Damaged(path, f"{shown(key)} is {entry}, which is not a valid signal for {n_rows} rows")
        self._headers[path] = _Header(layout, settings)
        return self._headers[path]

    def _read_settings(self, name: str, shard: Shard) -> dict[str, Any]:
        return self._header(name, shard).settings
