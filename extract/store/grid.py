"""Copy question signals between the stores of a temperature grid."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from extract.errors import InputError
from extract.hashing import differences
from extract.running.progress import say
from extract.store.identity import member_stores
from extract.store.shards import Shard
from extract.store.store import Store


def copy_known(
    store: Store,
    missing: Mapping[Shard, list[str]],
    layers: dict[str, list[int] | None],
    settings: Mapping[str, dict[str, Any]],
) -> dict[Shard, list[str]]:
    """Fill in missing question signals of `store`. They are copied from stores that differ only in temperature.

    Args:
        missing: Dict from shard to the names of the signals that it lacks.
        layers: Dict from signal to the layers to keep (None for all). It is updated with the layers of the copied
            signals.
        settings: Dict from signal to the signal's required settings.

    Returns:
        The signals that are still missing, in the same form as `missing`.
    """
    others, still_missing = same_but_temperature(store), {shard: list(signals) for shard, signals in missing.items()}
    for signal in dict.fromkeys(signal for signals in missing.values() for signal in signals):
        for other in others:
            lacking = (shard for shard, signals in still_missing.items() if signal in signals)
            shards = [shard for shard in lacking if _holds(other, signal, shard)]
            keys = {key for shard in shards for key in other.signals.shard_layout(signal, shard)}
            found = sorted({int(key.split("/")[0]) for key in keys})
            is_same = other.signals.settings(signal, "question") == settings[signal]
            if not shards or not is_same or sorted(layers.get(signal) or found) != found:
                continue
            if signal in layers:
                layers[signal] = found
            for shard in shards:
                store.signals.copy(signal, shard, other.signals)
                still_missing[shard].remove(signal)
            say(
                f"read: copied {signal} for {len(shards)} blocks of questions from {str(other.path)!r}, which has the "
                "same prompts"
            )
    return {shard: signals for shard, signals in still_missing.items() if signals}


def same_but_temperature(store: Store) -> list[Store]:
    """Return the stores in the same folder that differ from `store` only in temperature and have the same `reader`."""
    found = []
    for folder in member_stores(store.path.absolute().parent):
        with suppress(InputError):  # skip stores that cannot be opened
            other = Store.open(folder)
            different = [line.partition(":")[0] for line in differences(other.identity, store.identity)]
            if different == ["policy.decoding.temperature"] and other.reader == store.reader:
                found.append(other)
    return found


def _holds(store: Store, signal: str, shard: Shard) -> bool:
    """Whether a store has an intact file for a signal and a shard."""
    with suppress(InputError):
        return bool(store.signals.shard_layout(signal, shard))
    return False
