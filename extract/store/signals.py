"""Signals of a store: one safetensors file for each signal and shard."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError
from extract.store.files import Damaged, is_finished
from extract.store.folder import StoreFolder
from extract.store.ragged import Ragged
from extract.store.shards import Scope, Shard, check_name, folder_names
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


class Signals:
    """Signals on disk. Rows at question scope are in the questions' order, at sample scope in that of `Samples.read`.

    Args:
        folder: The store.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._headers: dict[Path, Header] = {}  # of the files that were checked
        self._keys: dict[tuple[str, Scope], list[str]] = {}  # of the signals that were found complete
        self._settings: dict[tuple[str, Scope], tuple[Path, dict[str, Any] | None]] = {}  # and the file that says so

    def names(self) -> list[str]:
        """Names of the signals of which the store has a folder."""
        return folder_names(self._folder.path / "signals", "signal")

    def missing(self, signal: str, scope: Scope) -> list[Shard]:
        """Shards without this signal."""
        return [shard for shard in self._folder.shards(scope) if not is_finished(self.file(signal, shard))]

    def file(self, signal: str, shard: Shard) -> Path:
        """Where a signal of a shard is, or will be."""
        folder = self._folder.path / "signals" / check_name(signal, "signal") / shard.scope
        return folder / f"{shard.stem}.safetensors"

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

    def settings(self, signal: str, scope: Scope, exclude: Path | None = None) -> dict[str, Any] | None:
        """Settings of a signal's files, from the first one that is not damaged; None without any.

        Args:
            signal: Name of the signal.
            scope: Scope of its rows.
            exclude: A file that is about to be replaced.
        """
        file, settings = self._settings.get((signal, scope), (None, None))
        if file is not None and file != exclude and is_finished(file):
            return settings
        for shard in self._finished(signal, scope):
            if self.file(signal, shard) != exclude:
                with suppress(Damaged):  # it will be made again
                    self._settings[signal, scope] = self.file(signal, shard), self._header(signal, shard).settings
                    return self._header(signal, shard).settings
        return None

    def check_settings(self, signal: str, scope: Scope, settings: dict[str, Any], exclude: Path | None = None) -> None:
        """Refuse settings other than those of a signal's files.

        Raises:
            InputError: The settings differ.
        """
        self._folder.check_settings(f"signals/{signal}/{scope}", self.settings(signal, scope, exclude), settings)

    def keys(self, signal: str, scope: Scope = "question") -> list[str]:
        """Keys of a signal's tensors, for example ``["0/last_prompt", …]``, by position and layer.

        Raises:
            InputError: The store lacks the signal for some shards, or a file is damaged or unlike the others.
        """
        if (signal, scope) in self._keys:
            return self._keys[signal, scope]
        shards, path = self._folder.shards(scope), str(self._folder.path)
        if not shards:
            raise InputError(
                f"Expected the store {path!r} to hold answers, but it has none. Run `python -m extract sample`."
            )
        if n_missing := len(self.missing(signal, scope)):
            command = f"ask --store {path} --baselines" if signal in _ASKED else f"read --store {path} --signals"
            of_answers, option = (" of the answers", " --scope sample") if scope == "sample" else ("", "")
            raise InputError(
                f"Expected the store {path!r} to hold the signal {signal!r}{of_answers}, but {n_missing} of "
                f"{len(shards)} {'blocks' if scope == 'question' else 'sample ranges'} lack it (signals there: "
                f"{', '.join(self.names()) or 'none'}). Run `python -m extract {command} [{signal}]"
                f"{'' if signal in _ASKED else option}`."
            )
        layout = self.layout(signal, scope)
        by_layer = sorted(layout, key=lambda key: (key.split("/")[1:], int(key.split("/")[0])))
        self._keys[signal, scope] = by_layer
        return by_layer

    def read(self, signal: str, key: str, scope: Scope = "question") -> Tensor:
        """One tensor [row, …] over all questions or answers; missing rows are NaN.

        Files are compared with their checksums when the first key is read. After that, only a key's own bytes are read.

        Raises:
            InputError: As `keys`, the signal has no such key, or it is ragged.
        """
        shards = self._shards(signal, key, scope, ragged=False)
        entry = self.shard_layout(signal, shards[0])[key]
        counts = list(map(self._folder.questions.n_rows, shards))
        whole = torch.empty(sum(counts), *entry.shape, dtype=DTYPES[entry.dtype])
        for shard, rows in zip(shards, whole.split(counts), strict=True):
            copy_rows(self.file(signal, shard), key, rows)
        return whole

    def read_ragged(self, signal: str, key: str, scope: Scope = "sample") -> Ragged:
        """Values [token, …] of every token of all answers or questions; missing rows are NaN.

        Raises:
            InputError: As `keys`, the signal has no such key, or it is not ragged.
        """
        shards = self._shards(signal, key, scope, ragged=True)
        entry = self.shard_layout(signal, shards[0])[key]
        n_rows = self._folder.questions.n_rows
        offsets = [read_offsets(self.file(signal, shard), key, n_rows(shard)) for shard in shards]
        counts = [int(ends[-1]) for ends in offsets]
        values = torch.empty(sum(counts), *entry.shape, dtype=DTYPES[entry.dtype])
        for shard, rows in zip(shards, values.split(counts), strict=True):
            copy_rows(self.file(signal, shard), key, rows)
        lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(ends.diff() for ends in offsets)])
        return Ragged(values, lengths.cumsum(0))

    def layout(self, signal: str, scope: Scope = "question") -> Layout:
        """Dtypes and shapes of a signal's tensors by key, the same in all finished files; empty without files.

        Raises:
            Damaged: A file is damaged, or unlike the others.
        """
        headers = {self.file(signal, shard): self._header(signal, shard) for shard in self._finished(signal, scope)}
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
        keys, shards = self.keys(signal, scope), self._folder.shards(scope)
        path = str(self._folder.path)
        if key not in keys:
            raise InputError(
                f"Expected `key` to be one of the signal {signal!r} in {path!r} ({' to '.join(keys[:1] + keys[-1:])}), "
                f"but got {shown(key)}. Choose one of them."
            )
        if self.shard_layout(signal, shards[0])[key].ragged != ragged:
            kind, method = ("one tensor for each row", "read_ragged") if not ragged else ("tokens", "read")
            raise InputError(
                f"Expected {key!r} of the signal {signal!r} in {path!r} to be {kind}, but it is not. Use `{method}`."
            )
        return shards

    def _header(self, signal: str, shard: Shard) -> Header:
        file = self.file(signal, shard)
        if file not in self._headers:
            n_rows = self._folder.questions.n_rows(shard)
            self._headers[file] = read_header(file, self._folder.path, n_rows, self._provenance(signal, shard))
        return self._headers[file]

    def _finished(self, signal: str, scope: Scope) -> list[Shard]:
        return [shard for shard in self._folder.shards(scope) if is_finished(self.file(signal, shard))]

    def _provenance(self, signal: str, shard: Shard) -> dict[str, Any]:
        return self._folder.provenance(shard, self.file(signal, shard), signal=signal)

    def _forget(self, signal: str, shard: Shard) -> None:
        file = self.file(signal, shard)
        self._headers.pop(file, None)
        self._keys.pop((signal, shard.scope), None)
        if self._settings.get((signal, shard.scope), (None, None))[0] == file:
            del self._settings[signal, shard.scope]
