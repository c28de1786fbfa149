"""Signals of a store: one safetensors file for each signal and shard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extract.errors import Damaged, InputError
from extract.store.folder import ShardFiles, StoreFolder
from extract.store.ragged import Ragged
from extract.store.shards import Scope, Shard
from extract.store.tensors import (
    DTYPES,
    Header,
    Layout,
    common_layout,
    copy_rows,
    copy_tensors,
    read_header,
    read_offsets,
    write_tensors,
)
from extract.text import shown

#: Signals that `ask` computes with another model than the store's.
_ASKED = ("text_embedding",)


class Signals(ShardFiles):
    """Signals on disk. Rows at question scope are in the questions' order, at sample scope in that of `Samples.read`.

    Args:
        folder: The store.
    """

    def __init__(self, folder: StoreFolder) -> None:
        super().__init__(folder, "signals/{name}/{scope}", "signal", ".safetensors")
        self._headers: dict[Path, Header] = {}  # of the files that were checked
        self._keys: dict[tuple[str, Scope], list[str]] = {}  # of the signals that were found complete

    def write(
        self,
        signal: str,
        shard: Shard,
        tensors: Mapping[str, Tensor | Ragged],
        batch_tokens: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Write a signal of a shard.

        Args:
            signal: Name of the signal.
            shard: Block of questions, or range of samples, which has to be there.
            tensors: [row, …], or ragged with as many rows, by ``layer/position`` key.
            batch_tokens: Tokens that were read at a time, on which the last bits of the values depend.
            settings: What else the values depend on, JSON types; the same in every file of the signal.

        Raises:
            InputError: Other files of the signal have other settings.
        """
        file = self.file(signal, shard)
        if settings is not None:
            self.check_settings(signal, shard.scope, settings, exclude=file)
        write_tensors(file, tensors, self._provenance(signal, shard), batch_tokens, settings)
        self._forget(signal, shard)

    def copy(self, signal: str, shard: Shard, source: Signals) -> None:
        """Copy a signal of a block from another store with the same prompts and model.

        Raises:
            Damaged: The file in the other store is damaged.
        """
        source.shard_layout(signal, shard)
        copy_tensors(source.file(signal, shard), self.file(signal, shard), self._provenance(signal, shard))
        self._forget(signal, shard)

    def keys(self, signal: str, scope: Scope = "question") -> list[str]:
        """Keys of a signal's tensors, for example ``["0/last_prompt", …]``, by position and layer.

        Raises:
            InputError: The store lacks the signal for some shards, or a file is damaged or unlike the others.
        """
        if (signal, scope) not in self._keys:
            path, option = self._folder.path, " --scope sample" if scope == "sample" else ""
            command = f"read --store {path} --signals [{signal}]{option}"
            ask = f"ask --store {path} --baselines [{signal}]"
            self.check_complete(signal, scope, ask if signal in _ASKED else command)
            keys = self.layout(signal, scope)
            self._keys[signal, scope] = sorted(keys, key=lambda key: (key.split("/")[1:], int(key.split("/")[0])))
        return self._keys[signal, scope]

    def read(self, signal: str, key: str, scope: Scope = "question") -> Tensor:
        """One tensor [row, …] over all questions or answers; missing rows are NaN.

        Files are compared with their checksums when the first key is read. After that, only a key's own bytes are read.

        Raises:
            InputError: As `keys`, the signal has no such key, or it is ragged.
        """
        shards = self._shards(signal, key, scope, ragged=False)
        return self._values(signal, key, shards, [self._folder.questions.n_rows(shard) for shard in shards])

    def read_ragged(self, signal: str, key: str, scope: Scope = "sample") -> Ragged:
        """Values [token, …] of every token of all answers or questions; missing rows are NaN.

        Raises:
            InputError: As `keys`, the signal has no such key, or it is not ragged.
        """
        shards, n_rows = self._shards(signal, key, scope, ragged=True), self._folder.questions.n_rows
        offsets = [read_offsets(self.file(signal, shard), key, n_rows(shard)) for shard in shards]
        values = self._values(signal, key, shards, [int(ends[-1]) for ends in offsets])
        lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(ends.diff() for ends in offsets)])
        return Ragged(values, lengths.cumsum(0))

    def layout(self, signal: str, scope: Scope = "question") -> Layout:
        """Dtypes and shapes of a signal's tensors by key, the same in all finished files; empty without files.

        Raises:
            Damaged: A file is damaged, or unlike the others.
        """
        headers = {self.file(signal, shard): self._header(signal, shard) for shard in self.finished(signal, scope)}
        for path, header in headers.items():
            if header.settings != next(iter(headers.values())).settings:
                raise Damaged(path, "its settings differ from those of the files before it")
        return common_layout({path: header.layout for path, header in headers.items()})

    def shard_layout(self, signal: str, shard: Shard) -> Layout:
        """Dtypes and shapes of a shard's tensors by key; its file is checked once.

        Raises:
            Damaged: The file is damaged, or belongs to another shard.
        """
        return self._header(signal, shard).layout

    def _shards(self, signal: str, key: str, scope: Scope, ragged: bool) -> list[Shard]:
        """The shards of a signal that is complete and has a key of this kind."""
        keys, shards = self.keys(signal, scope), self._folder.shards(scope)
        of_signal = f"of the signal {signal!r} in {str(self._folder.path)!r}"
        if key not in keys:
            choices = " to ".join(keys[:1] + keys[-1:])
            raise InputError(f"Expected `key` to be one {of_signal} ({choices}), but got {shown(key)}. Choose one.")
        if self.shard_layout(signal, shards[0])[key].ragged != ragged:
            kind, method = ("tokens", "read") if ragged else ("one tensor for each row", "read_ragged")
            raise InputError(f"Expected {key!r} {of_signal} to be {kind}, but it is not. Use `{method}`.")
        return shards

    def _values(self, signal: str, key: str, shards: list[Shard], counts: list[int]) -> Tensor:
        """One tensor of all shards, of which each has as many rows or tokens as `counts` says."""
        entry = self.shard_layout(signal, shards[0])[key]
        values = torch.empty(sum(counts), *entry.shape, dtype=DTYPES[entry.dtype])
        for shard, rows in zip(shards, values.split(counts), strict=True):
            copy_rows(self.file(signal, shard), key, rows)
        return values

    def _header(self, signal: str, shard: Shard) -> Header:
        file = self.file(signal, shard)
        if file not in self._headers:
            n_rows = self._folder.questions.n_rows(shard)
            self._headers[file] = read_header(file, self._folder.path, n_rows, self._provenance(signal, shard))
        return self._headers[file]

    def _read_settings(self, name: str, shard: Shard) -> dict[str, Any] | None:
        return self._header(name, shard).settings

    def _forget(self, signal: str, shard: Shard) -> None:
        file = self.file(signal, shard)
        self._headers.pop(file, None)
        self._keys.pop((signal, shard.scope), None)
        if self._settings.get((signal, shard.scope), (None, None))[0] == file:
            del self._settings[signal, shard.scope]
