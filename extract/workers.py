"""One process among several that write the same store: which blocks are its own, and who else may write."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from extract.errors import InputError


@dataclass(frozen=True)
class Worker:
    """Worker `rank` of `count`, which takes every block whose number is `rank` modulo `count`.

    As `torchrun` starts them, on one machine or on several. No worker waits for another one.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> Worker:
        """The worker that RANK and WORLD_SIZE say, which `torchrun` sets; the only one without them.

        Raises:
            InputError: They are no whole numbers, or the rank is not below the number of workers.
        """
        rank, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count)):
            raise InputError(
                f"Expected the environment to hold RANK below WORLD_SIZE, but got RANK={rank!r} and WORLD_SIZE={count!r}. Start several workers with `torchrun --nproc-per-node N -m extract …`, or unset both."
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
        """Keep other runs from writing the store meanwhile, and take away what a killed one left unfinished.

        A second run waits for the first and says so. The lock ends with the process, however that ends.
        """
        store.mkdir(parents=True, exist_ok=True)
        lock = FileLock(store / f".writer-{self.rank}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting: another run is writing {str(store)!r}", file=sys.stderr)
            lock.acquire()
        try:
            self._tidy(store)
            yield
        finally:
            lock.release()

    def _tidy(self, store: Path) -> None:
        with alone(store):
            for path in store.rglob(".*.tmp"):
                block = re.match(r"\.([0-9]{5,9})\.", path.name)
                if self.has(int(block[1])) if block else self.rank == 0:
                    path.unlink(missing_ok=True)


@contextmanager
def alone(store: Path) -> Iterator[None]:
    """Keep the other workers of a store waiting: for what is done once for all of them, and at once."""
    with FileLock(store / ".index.lock"):
        yield
