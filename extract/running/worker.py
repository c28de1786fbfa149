"""Workers that write one store at the same time: which blocks belong to each, and the locks between them."""

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

    As `torchrun` starts them, on one machine or on several. No worker waits for another one.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """The worker that RANK and WORLD_SIZE say, which `torchrun` sets; the only one without them.

        Raises:
            InputError: They are no whole numbers, or the rank is not below the number of workers.
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
        """Whether a block is this worker's."""
        return block % self.count == self.rank

    @property
    def label(self) -> str:
        """Which worker this is, to stand after the name of its work; empty for the only one."""
        return f" {self.rank + 1}/{self.count}" if self.count > 1 else ""

    @contextmanager
    def writing(self, store: Path) -> Iterator[None]:
        """Lock the worker's blocks of a store, and delete unfinished files that a killed run left.

        A second run that may write the same blocks waits and says so. The lock ends with the process.
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
            with alone(store):  # so that nobody else begins between the look and the lock
                rival = next((path for path in sorted(store.glob(".writer-*.lock")) if self._waits_for(path)), None)
                if rival is None:
                    return FileLock(store / f".writer-{self.rank}-of-{self.count}.lock").acquire()
            if not waits:
                print(f"waiting: another run is writing {str(store)!r}", file=sys.stderr)
                waits = True
            with FileLock(rival):
                pass

    def _waits_for(self, path: Path) -> bool:
        """Whether another worker that has blocks of this one holds a lock: this rank, or one of another count."""
        rank, count = map(int, re.findall("[0-9]+", path.name))
        if count == self.count and rank != self.rank:
            return False
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True


@contextmanager
def alone(store: Path) -> Iterator[None]:
    """Lock a store for a short task that one worker does for all of them."""
    with FileLock(store / ".index.lock"):
        yield
