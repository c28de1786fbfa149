"""Filling a store with what baselines ask: the blocks and parts that lack it, a worker's own, one file at a time."""

from __future__ import annotations

from collections.abc import Sequence

from extract.asking.base import Baseline, block_of
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.store.files import is_finished
from extract.store.fill import is_damaged
from extract.store.shards import Shard
from extract.store.store import Store


def fill_asked(store: Store, baselines: Sequence[Baseline], worker: Worker) -> None:
    """Ask what is missing. All settings are compared with what is held before the first model is asked.

    Raises:
        InputError: Settings differ, or a model can't be loaded or read.
    """
    missing = {baseline.name: _missing(store, baseline, worker) for baseline in baselines}
    for baseline in baselines:
        if missing[baseline.name] or baseline.always_checked:
            for scope in baseline.scopes:
                baseline.check_how(scope)
    for baseline in baselines:
        places = missing[baseline.name]
        if not places:
            say(f"ask: {baseline.name} is there for every {' and '.join(baseline.scopes)}")
            continue
        baseline.prepare()
        total = sum(map(store.questions.n_rows, places))
        with Progress(f"ask {baseline.name}{worker.label}", total, "asked") as progress:
            n_unusable = sum(baseline.fill(place, progress) for place in places)
        say(f"ask: {baseline.name}, {total} asked, {n_unusable} without a usable value")


def _missing(store: Store, baseline: Baseline, worker: Worker) -> list[Shard]:
    own = [place for scope in baseline.scopes for place in store.shards(scope) if worker.has(block_of(place))]
    return [place for place in own if not is_finished(baseline.file(place)) or _is_damaged(store, baseline, place)]


def _is_damaged(store: Store, baseline: Baseline, place: Shard) -> bool:
    return is_damaged(store, baseline.file(place), lambda: baseline.check_file(place))
