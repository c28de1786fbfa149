"""Filling a store with asked baselines."""

from collections.abc import Sequence
from functools import partial

from extract.asking.base import AskedBaseline
from extract.running.progress import say
from extract.running.worker import Worker
from extract.store.fill import fill, missing_shards
from extract.store.store import Store


def fill_asked(store: Store, baselines: Sequence[AskedBaseline], worker: Worker) -> None:
    """Ask what is missing. All settings are compared with those in the store before the first model is asked.

    Raises:
        InputError: Settings differ, or a model can't be loaded or asked.
    """
    missing = {}
    for baseline in baselines:
        shards = [shard for scope in baseline.scopes for shard in store.shards(scope)]
        file = partial(baseline.values.file, baseline.name)
        missing[baseline.name] = missing_shards(store, shards, worker, file, baseline.check_file)
    for baseline in baselines:
        if missing[baseline.name] or baseline.always_compared:
            for scope in baseline.scopes:
                baseline.values.check_settings(baseline.name, scope, baseline.settings(scope))
    for baseline in baselines:
        shards = missing[baseline.name]
        if not shards:
            say(f"ask: {baseline.name} is there for every {' and '.join(baseline.scopes)}")
            continue
        baseline.prepare()
        n_rows = store.questions.n_rows
        n_unusable = sum(fill(f"ask {baseline.name}", "asked", shards, n_rows, baseline.fill, worker))
        say(f"ask: {baseline.name}, {sum(map(n_rows, shards))} asked, {n_unusable} without a usable value")
