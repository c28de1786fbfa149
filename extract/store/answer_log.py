"""`AnswerLog`: a log that saves answers as they arrive, so that they survive a crash.

Each unfinished range of samples has a log, which is a JSON Lines file. The first line identifies the store and the
range. Each later line contains the rows of one reply. A line is written in a single call, so it survives a crash of
the process. `sync` also protects it against a power failure.
"""

import errno
import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.store.parquet import SAMPLES_SCHEMA
from extract.store.shards import SampleRange, range_of
from extract.store.store import Store
from extract.text import shown

#: A row of the samples table.
Row = dict[str, Any]


class AnswerLog:
    """Log of the answers in a range of samples, opened for appending.

    If the last line is incomplete, it is removed. Invalid lines and answers outside the range are ignored.

    Args:
        store: The store.
        samples: The range of samples.

    Attributes:
        path: Path of the log file, which is created if missing.
        answered: Question id and sample index of every answer in the log.

    Raises:
        InputError: If the file is the log of another store or range.
        OSError: If the file cannot be read or written, for example because the disk is full.
    """

    def __init__(self, store: Store, samples: SampleRange) -> None:
        self.path = store.samples.log_file(samples)
        self._lock = threading.Lock()  # only for `sync` and `close`, so that `append` never waits for a slow disk
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = read_log(store, samples) if self.path.exists() else []
        self.answered = {(row["question_id"], row["sample"]) for row in rows}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._fd: int | None = os.open(self.path, flags, 0o666)
        self._size = self._synced = self.path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._fd, self._size)
        if self._size == 0:
            self._write(_header(store, samples))

    def append(self, rows: Sequence[Row]) -> None:
        """Append the rows of a reply.

        Raises:
            OSError: If the rows cannot be written, for example because the disk is full.
        """
        self._write(json.dumps(rows, allow_nan=False, separators=(",", ":")))
        self.answered.update((row["question_id"], row["sample"]) for row in rows)

    def _write(self, text: str) -> None:
        assert self._fd is not None
        line = f"{text}\n".encode()
        try:
            if os.write(self._fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._size += len(line)

    def sync(self) -> None:
        """Flush the log to disk. Any thread can call this method, even after `close`."""
        with self._lock:
            size = self._size
            if self._fd is not None and self._synced < size:
                os.fsync(self._fd)
                self._synced = size

    def close(self) -> None:
        """Sync and close the log. If it contains no answers, delete it."""
        try:
            self.sync()
        finally:
            with self._lock:
                if self._fd is not None:
                    os.close(self._fd)
                    self._fd = None
                    if not self.answered:
                        self.path.unlink()


def read_log(store: Store, samples: SampleRange) -> list[Row]:
    """Return the logged answers in a range, without duplicates, sorted by question and sample index.

    Raises:
        InputError: If the file is the log of another store or range.
    """
    path, order = store.samples.log_file(samples), {id_: i for i, id_ in enumerate(store.questions.ids(samples))}
    rows: dict[tuple[int, int], Row] = {}
    with path.open("rb") as file:
        expected, found = _header(store, samples), file.readline().decode(errors="replace")
        if found.endswith("\n") and found != f"{expected}\n":  # otherwise the header is incomplete
            raise InputError(
                f"Expected {str(path)!r} to begin with the header {expected}, but it begins with {shown(found)}. Move "
                "the file to the store it belongs to, or delete it to request the answers again."
            )
        for row in (row for line in file for row in _rows(line)):
            if row["question_id"] in order and row["sample"] in range(samples.start, samples.stop):
                rows.setdefault((order[row["question_id"]], row["sample"]), row)
    return [rows[key] for key in sorted(rows)]


def logged_ranges(store: Store) -> list[SampleRange]:
    """Return all ranges that have an answer log, sorted.

    Raises:
        Damaged: If the file name of a log is not a valid range.
    """
    return sorted(range_of(path, store.questions.n_blocks) for path in (store.path / "samples").glob("*.jsonl"))


def _header(store: Store, samples: SampleRange) -> str:
    return json.dumps({"format": "confidence-probes answers", "identity": store.sha256, **asdict(samples)})


def _rows(line: bytes) -> list[Row]:
    """Parse the rows in a line. The list is empty if the line is incomplete or invalid."""
    with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        if line.endswith(b"\n"):
            rows = pa.Table.from_pylist(json.loads(line), SAMPLES_SCHEMA).to_pylist()
            return [row for row in rows if row["text"] is not None and all(map(isfinite, row["logprobs"] or ()))]
    return []
