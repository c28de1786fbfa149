"""The signals of a store: one safetensors file for each block of questions, or for each part of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError
from extract.policy import differences
from extract.store.files import Damaged, is_finished, shown
from extract.store.layout import FLOATS, Layout, common_layout
from extract.store.provenance import stamp_of
from extract.store.ragged import Ragged
from extract.store.samples import Answers
from extract.store.shards import Part, Place, Scope, check_name, folder_names, scope_of, stem_of
from extract.store.tensors import Header, check_block, copy_block, copy_file, copy_ragged, read_offsets, write_block

#: Signals that are no reading of the store's model but of another one, which `ask` runs.
_ASKED = ("text_embedding",)


class SignalFiles(Answers):
    """Signals on disk. Rows at question scope are in the questions' order, at sample scope in that of `samples()`."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        super().__init__(path, identity)
        self._headers: dict[Path, Header] = {}  # of the files that were checked
        self._keys: dict[tuple[str, Scope], list[str]] = {}  # of the signals that were found whole
        self._made: dict[tuple[str, Scope], tuple[Path, dict[str, Any]]] = {}  # how, and the file that says so

    def signals(self) -> list[str]:
        """Names of the signals of which the store holds at least a folder."""
        return folder_names(self.path / "signals", "signal")

    def unread(self, signal: str, scope: Scope) -> list[Place]:
        """Blocks without this signal of the questions, or parts without this signal of the answers."""
        return [place for place in self.places(scope) if not is_finished(self.signal_file(signal, place))]

    def unread_blocks(self, signal: str) -> list[int]:
        """Blocks without this signal of the questions."""
        return [place for place in self.unread(signal, "question") if not isinstance(place, Part)]

    def unread_parts(self, signal: str) -> list[Part]:
        """Parts of the samples without this signal of the answers."""
        return [place for place in self.unread(signal, "sample") if isinstance(place, Part)]

    def write_signal(
        self,
        signal: str,
        place: Place,
        tensors: Mapping[str, Tensor | Ragged],
        batch_tokens: int | None = None,
        how: dict[str, Any] | None = None,
    ) -> None:
        """Keep a signal of a block or of a part, and how many tokens were read at a time, which its last bits depend on.

        Args:
            signal: Name of the signal.
            place: Number of the block, or the part, whose samples are there.
            tensors: [row, …], or ragged with as many rows, by ``layer/position`` key; rows in the order of the block, or
                of the part's table.
            batch_tokens: Prompt tokens that were read at a time.
            how: What else the values depend on, JSON types; the same in every file of the signal.

        Raises:
            InputError: Other files of the signal were made otherwise.
        """
        path = self.signal_file(signal, place)
        further = {}
        if how is not None:
            self.check_signal_how(signal, scope_of(place), how, path)
            further["how"] = how
        write_block(path, tensors, self._stamp(signal, place), batch_tokens=batch_tokens, **further)
        if how is not None:
            self._made.setdefault((signal, scope_of(place)), (path, how))
        self._headers.pop(path, None)
        self._keys.pop((signal, scope_of(place)), None)

    def copy_signal(self, signal: str, block: Place, of: SignalFiles) -> None:
        """Keep a signal of a block's questions as another store, with the same prompts and model, holds it.

        Raises:
            Damaged: It is not as it was written there.
        """
        of.block_layout(signal, block)
        path = self.signal_file(signal, block)
        copy_file(of.signal_file(signal, block), path, self._stamp(signal, block))
        self._headers.pop(path, None)
        self._keys.pop((signal, "question"), None)

    def check_signal_how(self, signal: str, scope: Scope, how: dict[str, Any], beside: Path | None = None) -> None:
        """Refuse to make more of a signal otherwise than what there is, naming what differs.

        Args:
            signal: Name of the signal.
            scope: What its rows are.
            how: As for `write_signal`.
            beside: A file that is going to be written and is not looked at.

        Raises:
            InputError: It would be.
        """
        seen, as_in = self._made.get((signal, scope), (None, None))
        if seen not in (None, beside) and as_in == how and is_finished(seen):
            return  # without a list of all files for each that is written
        for place in self._finished(signal, scope):
            path = self.signal_file(signal, place)
            try:
                held = self._header(signal, place).how if path != beside else how
            except Damaged:  # it is going to be made again
                continue
            if held != how:
                differing = "; ".join(differences(held or {}, how))
                raise InputError(
                    f"Expected the signal {signal!r} of {str(self.path)!r} to be made as it was begun, but this would differ in {differing}. Use the same settings, or delete {str(path.parent)!r} to begin anew."
                )
            if path != beside:
                self._made[signal, scope] = (path, how)
                return

    def signal_keys(self, signal: str, scope: Scope = "question") -> list[str]:
        """Keys of a signal's tensors, for example ``["0/last_prompt", …]``, by position and layer.

        Raises:
            InputError: The store does not hold the signal for every block or part, or a file is damaged or unlike the others.
        """
        if (signal, scope) in self._keys:
            return self._keys[signal, scope]
        places = self.places(scope)
        if not places:
            raise InputError(
                f"Expected the store {str(self.path)!r} to hold answers, but it has none. Run `python -m extract sample`."
            )
        missing = len(self.unread(signal, scope))
        if missing:
            command = (
                f"ask --store {self.path} --baselines" if signal in _ASKED else f"read --store {self.path} --signals"
            )
            raise InputError(
                f"Expected the store {str(self.path)!r} to hold the signal {signal!r}{' of the answers' if scope == 'sample' else ''}, but {missing} of {len(places)} {'blocks' if scope == 'question' else 'parts'} lack it (signals there: {', '.join(self.signals()) or 'none'}). Run `python -m extract {command} [{signal}]{' --scope sample' if scope == 'sample' and signal not in _ASKED else ''}`."
            )
        by_layer = sorted(self.layout(signal, scope), key=lambda key: (key.split("/")[1:], int(key.split("/")[0])))
        self._keys[signal, scope] = by_layer
        return by_layer

    def read_signal(self, signal: str, key: str, scope: Scope = "question") -> Tensor:
        """One tensor [row, …] over all questions or answers; a row that is missing is NaN as a whole.

        The files are checked when the first key is read; after that, a key's own bytes are read and no others, a little
        at a time into the result.

        Raises:
            InputError: As `signal_keys`, no such key, or a row that is infinite or NaN in part.
        """
        return self._rows(signal, self._places_of(signal, key, scope, ragged=False), key)

    def read_ragged(self, signal: str, key: str, scope: Scope = "sample") -> Ragged:
        """One number, or one tensor […], for every token of all answers or questions; a row that is missing is NaN as a whole.

        Read as `read_signal` reads: first where the rows begin in every file, then the values into one tensor.

        Raises:
            InputError: As `signal_keys`, no such key, offsets that are none, or a row that is infinite or NaN in part.
        """
        return self._ragged_rows(signal, self._places_of(signal, key, scope, ragged=True), key)

    def _places_of(self, signal: str, key: str, scope: Scope, ragged: bool) -> list[Place]:
        """The places of a signal that is whole and has a key of the kind that is read.

        Raises:
            InputError: As `signal_keys`, no such key, or one of the other kind.
        """
        held = self.signal_keys(signal, scope)
        if key not in held:
            raise InputError(
                f"Expected `key` to be one that the signal {signal!r} of {str(self.path)!r} has ({held[0]} to {held[-1]}), but got {shown(key)}. Choose one of them."
            )
        places = self.places(scope)
        self._check_kind(signal, places[0], key, ragged)
        return places

    def _check_kind(self, signal: str, place: Place, key: str, ragged: bool) -> None:
        if self.block_layout(signal, place)[key].ragged != ragged:
            kinds = "one tensor for each row", "tokens of each row"
            raise InputError(
                f"Expected {key!r} of the signal {signal!r} of {str(self.path)!r} to be {kinds[ragged]}, but it is {kinds[not ragged]}. Use `{'read_signal' if ragged else 'read_ragged'}`."
            )

    def check_values(self, signal: str, place: Place) -> None:
        """Look at every value of a block or part, holding one tensor at a time.

        Raises:
            Damaged: As `block_layout`, offsets that are none, or a row that is infinite or NaN in part.
        """
        for key, entry in self.block_layout(signal, place).items():
            (self._ragged_rows if entry.ragged else self._rows)(signal, [place], key)

    def read_block(self, signal: str, place: Place, key: str) -> Tensor:
        """One tensor [row, …] of a block or part.

        Raises:
            InputError: As `block_layout`, a row is infinite or NaN in part, or the tensor is ragged.
        """
        self._check_kind(signal, place, key, ragged=False)
        return self._rows(signal, [place], key)

    def _rows(self, signal: str, places: Sequence[Place], key: str) -> Tensor:
        entry, counts = self.block_layout(signal, places[0])[key], [self.n_rows(place) for place in places]
        whole = torch.empty(sum(counts), *entry.shape, dtype=FLOATS[entry.dtype])
        for place, rows in zip(places, whole.split(counts), strict=True):
            copy_block(self.signal_file(signal, place), key, rows, partial(self._row_name, place))
        return whole

    def _ragged_rows(self, signal: str, places: Sequence[Place], key: str) -> Ragged:
        entry = self.block_layout(signal, places[0])[key]
        offsets = [read_offsets(self.signal_file(signal, place), key) for place in places]
        counts = [int(one[-1]) for one in offsets]
        values = torch.empty(sum(counts), *entry.shape, dtype=FLOATS[entry.dtype])
        for place, own, rows in zip(places, offsets, values.split(counts), strict=True):
            copy_ragged(self.signal_file(signal, place), key, Ragged(rows, own), partial(self._row_name, place))
        lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(own.diff() for own in offsets)])
        return Ragged(values, lengths.cumsum(0))

    def _row_name(self, place: Place, row: int) -> str:
        if not isinstance(place, Part):
            return f"question {shown(self.ids(place)[row])}"
        answer = self.samples(place).slice(row, 1)
        return f"question {shown(answer['question_id'][0].as_py())}, sample {answer['sample'][0].as_py()}"

    def block_layout(self, signal: str, place: Place) -> Layout:
        """What the tensors of a block or part are, by key; its file is read and checked once.

        Raises:
            Damaged: The file is not as it was written, or is none of this block or part.
        """
        return self._header(signal, place).layout

    def signal_how(self, signal: str, place: Place) -> dict[str, Any] | None:
        """What else the values of a block or part depend on, as it was given to `write_signal`.

        Raises:
            Damaged: As `block_layout`.
        """
        return self._header(signal, place).how

    def _header(self, signal: str, place: Place) -> Header:
        path = self.signal_file(signal, place)
        if path not in self._headers:
            stamp = self._stamp(signal, place)
            self._headers[path] = check_block(path, self.path, self.n_rows(place), stamp)
        return self._headers[path]

    def layout(self, signal: str, scope: Scope = "question") -> Layout:
        """What the tensors of all finished files of a signal are, by key; nothing when there is no such file.

        Raises:
            Damaged: As `block_layout`, or a file is unlike the others.
        """
        finished = self._finished(signal, scope)
        headers = {self.signal_file(signal, place): self._header(signal, place) for place in finished}
        for path, header in headers.items():
            if header.how != next(iter(headers.values())).how:
                raise Damaged(path, "it was made otherwise than the files before it")
        return common_layout({path: header.layout for path, header in headers.items()})

    def _finished(self, signal: str, scope: Scope) -> list[Place]:
        return [place for place in self.places(scope) if is_finished(self.signal_file(signal, place))]

    def _stamp(self, signal: str, place: Place) -> dict[str, Any]:
        return stamp_of(self, place, self.signal_file(signal, place), signal=signal)

    def signal_file(self, signal: str, place: Place) -> Path:
        """Where a signal of a block or part is, or will be."""
        folder = self.path / "signals" / check_name(signal, "signal") / scope_of(place)
        return folder / f"{stem_of(place)}.safetensors"
