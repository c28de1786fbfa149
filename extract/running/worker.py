"""Parallel workers that write to the same store: the assignment of blocks to workers, and locks."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from filelock import AcquireReturnProxy, FileLock, Timeout

from extract.errors import InputError


@dataclass(frozen=True)
class Worker:
    """Worker number `rank` of `count` workers. It processes every `count`-th block, starting with block `rank`.

    `torchrun` starts workers on one or several machines. The workers of a run never wait for each other.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """Create the worker from RANK and WORLD_SIZE, which `torchrun` sets. Without them, there is only one worker.

        Raises:
            InputError: If RANK or WORLD_SIZE is not a whole number, or RANK is not below WORLD_SIZE.
        """
        rank, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not rank and not count:
            return cls()
        if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count)):
            raise InputError(
                "Expected the environment variable RANK to be a whole number below WORLD_SIZE, but got RANK="
                f"{rank!r} and WORLD_SIZE={count!r}. Start several workers with "
                "`torchrun --nproc-per-node N -m extract …`, or unset both variables."
            )
        return cls(int(rank), int(count))

    def has(self, block: int) -> bool:
        """Whether this worker processes a block."""
        return block % self.count == self.rank

    @property
    def label(self) -> str:
        """Suffix for labels, such as `` 1/4``. It is empty for a single worker."""
        return f" {self.rank + 1}/{self.count}" if self.count > 1 else ""

    @contextmanager
    def writing(self, store: Path) -> Iterator[None]:
        """Lock this worker's blocks in a store, and delete the unfinished files of killed runs.

        If another run has locked some of these blocks, print a line and wait for that run to finish. A lock is
        released when its process ends.
        """
        store.mkdir(parents=True, exist_ok=True)
        with self._lock(store):
            with alone(store):
                for path in store.rglob(".*.tmp"):
                    block = re.match(r"\.([0-9]{5,9})\.", path.name)
                    if self.has(int(block[1])) if block else self.rank == 0:
                        path.unlink(missing_ok=True)
            yield

    def _lock(self, store: Path) -> AcquireReturnProxy:
        waits = False
        while True:
            with alone(store):  # so that no other run starts between the check and the lock
                rival = next((path for path in sorted(store.glob(".writer-*.lock")) if self._waits_for(path)), None)
                if rival is None:
                    return FileLock(store / f".writer-{self.rank}-of-{self.count}.lock").acquire()
            if not waits:
                print(f"waiting: another run is writing to {str(store)!r}", file=sys.stderr)
                waits = True
            with FileLock(rival):
                pass

    def _waits_for(self, path: Path) -> bool:
        """Whether a lock is held by a worker that processes some of the same blocks.

        Two workers can share blocks if they have the same rank, or if their runs have different numbers of workers.
        """
        names = re.fullmatch(r"\.writer-([0-9]+)-of-([0-9]+)\.lock", path.name)
        if names is None or (int(names[2]) == self.count and int(names[1]) != self.rank):
            return False
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True


@contextmanager
def alone(store: Path) -> Iterator[None]:
    """Lock the whole store during a short task, so that only one process at a time performs it."""
    with FileLock(store / ".index.lock"):
        yield
