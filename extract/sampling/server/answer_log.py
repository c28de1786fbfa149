"""`AnswerLog`: the answers of an unfinished part, appended as they arrive, so that no end of the process loses one.

A file of JSON lines beside the part's Parquet file to be: the first line says what it is of, each further one holds the
rows of one reply. A line is written at once and is the operating system's from then on: it survives the process, however
that ends. `sync` has it on the disk; what was written since the last one is what a power cut can lose.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.schemas import TEXT, TEXT_OR_NULL, Field, Schema, check_record, number, one_of, whole
from extract.store.files import is_inside
from extract.store.shards import SampleRange
from extract.text import shown

_FORMAT = "confidence-probes answers"
_LONGEST_FIRST = 2**12  # bytes
_COUNT = whole(0, 2**31 - 1)
_LOGPROB = number("a log-probability")

#: A row of `SERVED_SAMPLES_SCHEMA`.
Row = dict[str, Any]


def _list_or_null(of: Field) -> Field:
    return Field(
        f"null or a list, each {of.expected}",
        lambda value: value is None or (isinstance(value, list) and all(map(of.holds, value))),
    )


def _or_null(of: Field) -> Field:
    return Field(f"null or {of.expected}", lambda value: value is None or of.holds(value))


_ROW: Schema = {
    "question_id": TEXT,
    "sample": _COUNT,
    "text": TEXT,
    "reasoning": TEXT_OR_NULL,
    "token_ids": _list_or_null(_COUNT),
    "logprobs": _list_or_null(_LOGPROB),
    "n_tokens": _or_null(_COUNT),
    "finish_reason": one_of(("stop", "length", "content_filter")),
    "prompt_tokens": _or_null(whole(1, 2**31 - 1)),
}


class AnswerLog:
    """The log of a part, open for further answers.

    What an earlier run logged is there already. A last line that was torn is cut off, and lines that hold no answers of
    the part are passed over: what they held is asked again.

    Args:
        path: The file; made where it is missing.
        identity: Hash of the store's identity.
        part: The part.
        ids: Question ids of its block, in their order.

    Attributes:
        held: Question id and sample of every answer in it.

    Raises:
        InputError: It is of another store or part.
        OSError: It can't be read or written, for example because the disk is full.
    """

    def __init__(self, path: Path, identity: str, part: SampleRange, ids: Sequence[str]) -> None:
        self.path, self._part, self._place = path, part, {id_: place for place, id_ in enumerate(ids)}
        self._lock = threading.Lock()  # one thread writes it, another one syncs it
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            check_log(path, identity, part)
        self._fd: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = self._synced = _whole_bytes(path)
        os.ftruncate(self._fd, self._size)
        if self._size == 0:
            self._write(json.dumps(_first_line(identity, part)))
        self.held = {(row["question_id"], row["sample"]) for row in self._rows()}

    def append(self, rows: Sequence[Row]) -> None:
        """Keep the rows of a reply.

        Raises:
            InputError: A row is none of an answer of the part; nothing is written.
            OSError: They can't be written, for example because the disk is full.
        """
        for row in rows:
            check_record(row, _ROW, self.path)
            if not self._is_own(row):
                raise InputError(f"Expected an answer of the part {self._part.stem}, but got {shown(row)}.")
        self._write(json.dumps(rows, allow_nan=False, separators=(",", ":")))
        self.held.update((row["question_id"], row["sample"]) for row in rows)

    def _write(self, text: str) -> None:
        assert self._fd is not None
        line = f"{text}\n".encode()
        with self._lock:
            try:
                if os.write(self._fd, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.ftruncate(self._fd, self._size)
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self._size += len(line)

    def sync(self) -> None:
        """Have all that was written on the disk; nothing if it is, or once it is closed. For any thread."""
        with self._lock:
            if self._synced == self._size or self._fd is None:
                return
            fd, size = os.dup(self._fd), self._size
        try:
            os.fsync(fd)  # without the lock, so that a slow disk holds up no answer
        finally:
            os.close(fd)
        with self._lock:
            self._synced = max(self._synced, size)

    def rows(self) -> list[Row]:
        """Every answer in it once, by question in the order of the block, then by sample."""
        first: dict[tuple[int, int], Row] = {}
        for row in self._rows():
            first.setdefault((self._place[row["question_id"]], row["sample"]), row)
        return [first[key] for key in sorted(first)]

    def _rows(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                rows = _parsed(line)
                for row in rows if isinstance(rows, list) else ():
                    if _is_row(row, self.path) and self._is_own(row):
                        yield row

    def _is_own(self, row: Row) -> bool:
        return row["question_id"] in self._place and self._part.start <= row["sample"] < self._part.stop

    def close(self) -> None:
        """Sync it and write no more; one without answers is deleted."""
        try:
            self.sync()
        finally:
            with self._lock:
                if self._fd is not None:
                    os.close(self._fd)
                    self._fd = None
                    if not self.held:
                        self.path.unlink()


def check_log(path: Path, identity: str, part: SampleRange) -> None:
    """Refuse a log that is not of a store's part, by its first line; one whose first line was torn holds nothing.

    Args:
        path: The file, in the store's folder of samples.
        identity: Hash of the store's identity.
        part: The part.

    Raises:
        InputError: It is of another store or part, no log, or a link to a file outside the store.
    """
    if not is_inside(path, path.parent):
        raise InputError(f"Expected {str(path)!r} to lie in its store, but it is a link to a file outside. Delete it.")
    if not path.is_file():
        raise InputError(f"Expected {str(path)!r} to be a file with the answers of a part, but it is none. Delete it.")
    with path.open("rb") as file:
        line = file.readline(_LONGEST_FIRST)
    wanted, found = _first_line(identity, part), _parsed(line)
    if found != wanted and (line.endswith(b"\n") or len(line) == _LONGEST_FIRST):
        raise InputError(
            f"Expected {str(path)!r} to begin with what answers it holds, {shown(wanted)}, but it begins with {shown(found)}. Move it to the store that it is of, or delete it to ask for those answers again."
        )


def _first_line(identity: str, part: SampleRange) -> dict[str, Any]:
    return {"format": _FORMAT, "identity": identity, **asdict(part)}


def _whole_bytes(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    end, at = 0, 0
    with path.open("rb") as file:
        for line in file:
            at += len(line)
            end = at if line.endswith(b"\n") else end
    return end


def _parsed(line: bytes) -> Any:
    """The JSON of a line; None of a line that is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_row(value: Any, path: Path) -> bool:
    try:
        check_record(value, _ROW, path)
    except InputError:
        return False
    return True
