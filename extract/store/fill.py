"""Find shards with missing or damaged files, and create or replace these files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from extract.errors import Damaged
from extract.running.progress import Progress, say
from extract.running.worker import Item, Result, Worker, alone
from extract.store.files import check_file, is_finished
from extract.store.shards import Shard
from extract.store.store import Store
from extract.store.verify import write_manifest

AnyShard = TypeVar("AnyShard", bound=Shard)


def missing_shards(
    store: Store,
    shards: Iterable[AnyShard],
    worker: Worker,
    file: Callable[[AnyShard], Path],
    check: Callable[[AnyShard], object] | None = None,
) -> list[AnyShard]:
    """Return a worker's shards whose files are missing or damaged. Damaged files are reported.

    Args:
        shards: All shards that the store should have.
        worker: Worker whose shards are checked.
        file: Function that returns the path of a shard's file.
        check: Function that raises `Damaged` if a shard's file is damaged. By default, the checksum is verified.
    """

    def is_missing(shard: AnyShard) -> bool:
        return not is_finished(file(shard)) or is_damaged(store, file(shard), check and (lambda: check(shard)))

    return [shard for shard in shards if worker.has(shard.block) and is_missing(shard)]


def fill(
    label: str,
    unit: str,
    items: Sequence[Item],
    n_rows: Callable[[Item], int],
    start: Callable[[], AbstractContextManager[Callable[[Item, Progress], Result]]],
    worker: Worker,
) -> list[Result]:
    """Process all items, show a progress bar, and return the results.

    Args:
        unit: What the rows are called in the progress bar, for example ``"answers"``.
        n_rows: Function that returns the number of rows in an item.
        start: Function that returns a context manager. The context manager prepares a process, for example by loading a
            model. It yields a function that writes an item's file and reports progress. That function should skip
            existing files, because the Ray engine can process an item twice.
    """
    bar = partial(Progress, f"{label}{worker.label}", sum(map(n_rows, items)), unit)
    return [result for results in worker.run(partial(_one_by_one, start), items, n_rows, bar) for result in results]


@contextmanager
def _one_by_one(
    start: Callable[[], AbstractContextManager[Callable[[Item, Progress], Result]]],
) -> Iterator[Callable[[Sequence[Item], Progress], list[Result]]]:
    with start() as make:
        yield lambda items, progress: [make(item, progress) for item in items]


def is_written(check: Callable[[], object]) -> bool:
    """Whether a file is intact. `check` must raise `Damaged` if it is not."""
    with suppress(Damaged):
        check()
        return True
    return False


def is_damaged(store: Store, path: Path, check: Callable[[], object] | None = None) -> bool:
    """Return whether a finished file is damaged, and report it if so. By default, the checksum is verified."""
    try:
        check_file(path, store.path) if check is None else check()
    except Damaged as error:
        say(f"{error.path.relative_to(store.path)}: {error.problem}. Replacing it.")
        return True
    return False


@contextmanager
def extended(store: str, worker: Worker | None) -> Iterator[tuple[Store, Worker]]:
    """Context manager that opens a store and locks the worker's blocks. On exit, it writes the manifest."""
    opened, worker = Store.open(store), worker or Worker.from_environment()
    with worker.writing(opened.path):
        yield opened, worker
        with alone(opened.path):
            write_manifest(opened)
