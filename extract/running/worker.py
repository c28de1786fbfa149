"""Workers that write one store in parallel: assignment of blocks, and locks."""

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
    """Worker `rank` of `count`, which takes every block whose number is `rank` modulo `count`.

    `torchrun` starts workers on one or several machines. Workers of a run never wait for each other.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """Worker given by RANK and WORLD_SIZE, which `torchrun` sets; a single worker without them.

        Raises:
            InputError: If they are not whole numbers, or the rank is not below the number of workers.
        """
        rank, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not rank and not count:
            return cls()
        if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count)):
            raise InputError(
                f"Expected RANK below WORLD_SIZE in the environment, but got RANK={rank!r} and WORLD_SIZE={count!r}. "
                "Start several workers with `torchrun --nproc-per-node N -m extract …`, or unset both."
            )
        return cls(int(rank), int(count))

    def has(self, block: int) -> bool:
        """Whether a block belongs to this worker."""
        return block % self.count == self.rank

    @property
    def label(self) -> str:
        """Suffix for labels, such as `` 1/4``; empty for a single worker."""
        return f" {self.rank + 1}/{self.count}" if self.count > 1 else ""

    @contextmanager
    def writing(self, store: Path) -> Iterator[None]:
        """Lock the worker's blocks of a store, and delete unfinished files of killed runs.

        A second run on the same blocks prints a line and waits. The lock ends with the process.
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
            with alone(store):  # no other run can start between check and lock
                rival = next((path for path in sorted(store.glob(".writer-*.lock")) if self._waits_for(path)), None)
                if rival is None:
                    return FileLock(store / f".writer-{self.rank}-of-{self.count}.lock").acquire()
            if not waits:
                print(f"waiting: another run is writing {str(store)!r}", file=sys.stderr)
                waits = True
            with FileLock(rival):
                pass

    def _waits_for(self, path: Path) -> bool:
        """Whether a lock is held by a worker with common blocks: the same rank, or any rank of another count."""
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
    """Lock a store for a short task that one worker does for all workers."""
    with FileLock(store / ".index.lock"):
        yield
