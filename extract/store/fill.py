"""Loop that fills a store: find shards whose file is missing or damaged, and make them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from extract.errors import Damaged
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.store.files import check_file, is_finished
from extract.store.shards import Shard
from extract.store.store import Store

Item = TypeVar("Item")
Result = TypeVar("Result")
AnyShard = TypeVar("AnyShard", bound=Shard)


def missing_shards(
    store: Store,
    shards: Iterable[AnyShard],
    worker: Worker,
    file: Callable[[AnyShard], Path],
    check: Callable[[AnyShard], object] | None = None,
) -> list[AnyShard]:
    """Shards of a worker whose file is missing or damaged. Damaged files are reported and kept until replaced.

    Args:
        store: The store.
        shards: All expected shards.
        worker: Worker, which takes only its own blocks.
        file: Returns the path of a shard's file.
        check: Reads a finished file and raises `Damaged`; None verifies its checksum.
    """

    def is_missing(shard: AnyShard) -> bool:
        return not is_finished(file(shard)) or is_damaged(store, file(shard), check and (lambda: check(shard)))

    return [shard for shard in shards if worker.has(shard.block) and is_missing(shard)]


def fill(
    label: str,
    unit: str,
    items: Sequence[Item],
    n_rows: Callable[[Item], int],
    make: Callable[[Item, Progress], Result],
    worker: Worker,
) -> list[Result]:
    """Make items one by one under a progress bar, and return the results of `make`.

    Args:
        label: Label of the bar.
        unit: Unit of the rows, for example ``"answers"``.
        items: Items to make, for example shards.
        n_rows: Returns the number of rows of an item.
        make: Makes an item, writes its file, and reports rows and tokens to the bar.
        worker: Worker, whose number is added to the label.
    """
    with Progress(f"{label}{worker.label}", sum(map(n_rows, items)), unit) as progress:
        return [make(item, progress) for item in items]


def is_damaged(store: Store, path: Path, check: Callable[[], object] | None = None) -> bool:
    """Whether a finished file is damaged by `check`, or by its checksum if `check` is None. Prints the problem."""
    try:
        check_file(path, store.path) if check is None else check()
    except Damaged as error:
        say(f"{error.path.relative_to(store.path)}: {error.problem}; making it again")
        return True
    return False
