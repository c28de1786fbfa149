"""The loop that fills a store: find the shards whose file is missing or damaged, then make each of them."""

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
    """A worker's shards whose file is missing or damaged. Damaged files are reported, and stay until they are replaced.

    Args:
        store: The store.
        shards: Shards that should be there.
        worker: Takes its own blocks.
        file: Where a shard's file is.
        check: Reads a finished file and raises `Damaged`; None compares its checksum.
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
    """Make one item after the other under a progress bar; returns what `make` returned for each.

    Args:
        label: What is made, for the bar.
        unit: What a row is, for example ``"answers"``.
        items: For example shards.
        n_rows: Rows of an item.
        make: Makes an item, writes its file, and reports rows and tokens to the bar.
        worker: For the bar.
    """
    with Progress(f"{label}{worker.label}", sum(map(n_rows, items)), unit) as progress:
        return [make(item, progress) for item in items]


def is_damaged(store: Store, path: Path, check: Callable[[], object] | None = None) -> bool:
    """Whether a finished file is damaged; if so, says what `check`, else the checksum, finds wrong with it."""
    try:
        check_file(path, store.path) if check is None else check()
    except Damaged as error:
        say(f"{error.path.relative_to(store.path)}: {error.problem}; making it again")
        return True
    return False
