"""Parallel workers that write to the same store."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from filelock import AcquireReturnProxy, FileLock, Timeout

from extract.errors import InputError
from extract.running.progress import Progress


class InBlock(Protocol):
    """Unit of work, such as a shard, that belongs to a block."""

    @property
    def block(self) -> int:
        """Index of the block."""


Item = TypeVar("Item", bound=InBlock)
Result = TypeVar("Result")
#: Function that prepares a process, for example by loading a model, and yields a function that processes items.
Start = Callable[[], AbstractContextManager[Callable[[Sequence[Item], Progress], Result]]]


@dataclass(frozen=True)
class Worker:
    """Worker number `rank` of `count` workers. It processes every `count`-th block, starting with block `rank`."""

    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """Create the worker from RANK and WORLD_SIZE, which `torchrun` sets.

        If neither variable is set, there is only one worker.

        Raises:
            InputError: If RANK or WORLD_SIZE is not a whole number, or if RANK is not below WORLD_SIZE.
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

    def once(self, function: Callable[[], Result]) -> Result:
        """Call a function in this process. The Ray engine instead calls it in one process of the cluster."""
        return function()

    def run(
        self,
        start: Start[Item, Result],
        items: Sequence[Item],
        n_rows: Callable[[Item], int],
        bar: Callable[[], Progress],
    ) -> Iterator[Result]:
        """Pass all items to the function that `start` yields, and yield the result.

        The function is called once, in this process. The Ray engine instead processes each block in an actor and yields
        one result per block.

        `n_rows` returns the number of rows in an item. `bar` returns the progress bar and is called after `start`.
        """
        with start() as process, bar() as progress:
            yield process(items, progress)

    @property
    def label(self) -> str:
        """Worker number for progress bars, such as `` 1/4`` for the first of 4 workers. Empty for a single worker."""
        return f" {self.rank + 1}/{self.count}" if self.count > 1 else ""

    @contextmanager
    def writing(self, store: Path) -> Iterator[None]:
        """Lock this worker's blocks in a store, and delete the unfinished files of killed runs.

        If other runs have locked some of these blocks, wait for them. A lock is released when the process that holds it
        ends.
        """
        store.mkdir(parents=True, exist_ok=True)
        with self._lock(store):
            with alone(store):
                self._delete_unfinished(store)
            yield

    def _delete_unfinished(self, store: Path) -> None:
        """Delete temporary files left in this worker's blocks by killed processes."""
        for path in store.rglob(".*.tmp"):
            block = re.match(r"\.([0-9]{5,9})\.", path.name)
            if self.has(int(block[1])) if block else self.rank == 0:
                path.unlink(missing_ok=True)

    def _lock(self, store: Path) -> AcquireReturnProxy:
        waits = False
        while True:
            with alone(store):
                rival = next((path for path in sorted(store.glob(".writer-*.lock")) if self._waits_for(path)), None)
                if rival is None:
                    return FileLock(store / f".writer-{self.rank}-of-{self.count}.lock").acquire()
            if not waits:
                print(f"waiting: another run is writing to {str(store)!r}", file=sys.stderr)
                waits = True
            with FileLock(rival):
                pass

    def _waits_for(self, path: Path) -> bool:
        """Whether another run holds the lock file `path` and might process some of this worker's blocks."""
        # runs with the same number of workers share blocks only if their ranks are equal
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
    """Lock the whole store during a short task."""
    with FileLock(store / ".index.lock"):
        yield


class Lazy(Generic[Result]):
    """Value, such as a loaded model, that each process builds on first use.

    Ray sends only `build` to other processes, not the value.
    """

    def __init__(self, build: Callable[[], Result]) -> None:
        self._build, self._built = build, list[Result]()

    def __call__(self) -> Result:
        """Return the value. The first call builds it."""
        if not self._built:
            self._built.append(self._build())
        return self._built[0]

    def __reduce__(self) -> tuple[type[Self], tuple[Callable[[], Result]]]:
        return type(self), (self._build,)
