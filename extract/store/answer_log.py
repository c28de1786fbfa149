"""`AnswerLog`, a log that saves answers as they arrive, so that they survive a crash.

Each unfinished range of samples has a JSON Lines file. The first line identifies the store and the range. Each later
line contains the rows of one reply.
"""

import errno
import json
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from math import isfinite
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.running.worker import Worker
from extract.store.files import is_whole, make_folder
from extract.store.parquet import SAMPLES_SCHEMA
from extract.store.samples import SKIPPED
from extract.store.shards import SampleRange, missing_ranges, overlap, range_of
from extract.store.store import Store
from extract.text import shown

Row = dict[str, Any]


class AnswerLog:
    """Log of the answers in a range of samples, opened for appending.

    Every line survives a crash of the process. After `sync`, lines also survive a power failure. Opening a log removes
    an incomplete last line.

    Attributes:
        path: Path of the log file.
        answered: Question id and sample index of every answer in the log.

    Raises:
        InputError: If the file is the log of a different store or range.
        OSError: If the file cannot be read or written.
    """

    def __init__(self, store: Store, samples: SampleRange) -> None:
        self.path = store.samples.log_file(samples)
        self._lock = threading.Lock()  # not held by `append`, which must never wait for a slow disk
        make_folder(self.path.parent)
        rows = read_log(store, samples) if self.path.exists() else []
        self.answered = {(row["question_id"], row["sample"]) for row in rows}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._fd: int | None = os.open(self.path, flags, 0o666)
        self._size = self._synced = self.path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._fd, self._size)
        if self._size == 0:
            self._write(_header(store, samples))

    def append(self, rows: Sequence[Row]) -> None:
        """Append the rows of a reply. Raises an `OSError` if they can't be written."""
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
        """Sync and close the log, and delete it if it contains no answers."""
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
    """Return the logged answers in a range, without duplicates, in the order of `Samples.read`."""
    path, order = store.samples.log_file(samples), {id_: i for i, id_ in enumerate(store.questions.ids(samples))}
    rows: dict[tuple[int, int], Row] = {}
    with path.open("rb") as file:
        expected, found = _header(store, samples), file.readline().decode(errors="replace")
        if found.endswith("\n") and found != f"{expected}\n":  # without a newline, the header is incomplete
            raise InputError(
                f"Expected {str(path)!r} to begin with the header {expected}, but it begins with {shown(found)}. Move "
                "the file to the store it belongs to, or delete it to request the answers again."
            )
        for row in (row for line in file for row in _rows(line)):
            if row["question_id"] in order and row["sample"] in range(samples.start, samples.stop):
                rows.setdefault((order[row["question_id"]], row["sample"]), row)
    return [rows[key] for key in sorted(rows)]


def logged_ranges(store: Store) -> list[SampleRange]:
    """Return the sorted ranges that have an answer log. Raises `Damaged` if a file name is not a valid range."""
    return sorted(range_of(path, store.questions.n_blocks) for path in (store.path / "samples").glob("*.jsonl"))


def unfinished_ranges(store: Store, k: int, damaged: Collection[SampleRange], worker: Worker) -> list[SampleRange]:
    """Return the sorted ranges that a worker must complete to reach k samples per question.

    Ranges in `damaged` and ranges started by an earlier run are returned in full, even beyond `k`.

    Raises:
        InputError: If an answer log shares samples with a finished range or another log.
    """
    finished = [samples for samples in store.samples.ranges() if samples not in damaged]
    logged = (samples for samples in logged_ranges(store) if samples not in finished and samples.start < k)
    begun = sorted({*damaged, *logged})
    if clash := overlap([*finished, *begun]):
        logs = [store.samples.log_file(samples) for samples in reversed(clash)]
        log = next((path for path in logs if path.is_file()), logs[0])
        raise InputError(
            f"Expected the files in {str(log.parent)!r} to contain different samples, but {clash[0].stem} and "
            f"{clash[1].stem} overlap. Keep only one of them, for example by deleting {str(log)!r}."
        )
    new = missing_ranges([*finished, *begun], store.questions.n_blocks, k)
    return sorted(samples for samples in [*begun, *new] if worker.has(samples.block))


def finish_range(
    store: Store,
    samples: SampleRange,
    absent: Mapping[str, str],
    stopping: dict[str, Any] | None = None,
) -> bool:
    """Convert the log of a range to a table and delete the log. Return whether this was possible.

    Nothing changes if the table can't be written, or if samples are missing for a question outside `absent`.

    Args:
        absent: Dict from question id to the finish reason (`REJECTED` or `SKIPPED`) of the question's missing samples.
        stopping: Record of early stopping (see `Samples.stopping`), without the number of skipped samples.

    Raises:
        InputError: If the table can't be written.
        OSError: If the log can't be read or deleted.
    """
    # read from disk, because other processes may have written parts of the log. The file can be missing, because
    # `close` deletes logs without answers
    logged = read_log(store, samples) if store.samples.log_file(samples).is_file() else []
    rows = {(row["question_id"], row["sample"]): row for row in logged}
    keys = [(id_, j) for id_ in store.questions.ids(samples) for j in range(samples.start, samples.stop)]
    if not all(key in rows or key[0] in absent for key in keys):
        return False
    for id_, j in keys:
        rows.setdefault((id_, j), store.samples.absent(id_, j, absent.get(id_, "")))
    if stopping is not None:
        stopping = {**stopping, "skipped": sum(row["finish_reason"] == SKIPPED for row in rows.values())}
    store.samples.write(samples, [rows[key] for key in keys], stopping=stopping)
    store.samples.log_file(samples).unlink(missing_ok=True)
    return True


def reopen_range(store: Store, samples: SampleRange) -> None:
    """Move a finished range back to an answer log, so that its skipped samples can be drawn."""
    rows = store.samples.read(samples).to_pylist()
    with closing(AnswerLog(store, samples)) as log:
        log.append([row for row in rows if row["finish_reason"] != SKIPPED])
    file = store.samples.file(samples)
    file.with_suffix(".json").unlink()  # the sidecar first, so that a run killed here leaves an unfinished table
    file.unlink()


def delete_finished_logs(store: Store, worker: Worker) -> None:
    """Delete the answer logs of a worker's finished ranges. A killed run can leave such logs behind."""
    for samples in logged_ranges(store):
        if worker.has(samples.block) and is_whole(store.samples.file(samples), store.path):
            store.samples.log_file(samples).unlink()


def _header(store: Store, samples: SampleRange) -> str:
    return json.dumps({"format": "confidence-probes answers", "identity": store.sha256, **asdict(samples)})


def _rows(line: bytes) -> list[Row]:
    """Return the rows of a log line, or an empty list if the line is incomplete or invalid."""
    with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        if line.endswith(b"\n"):
            rows = pa.Table.from_pylist(json.loads(line), SAMPLES_SCHEMA).to_pylist()
            return [row for row in rows if row["text"] is not None and all(map(isfinite, row["logprobs"] or ()))]
    return []
