"""Signals of questions are copied from the stores of other temperatures, whose prompts are the same."""

from collections.abc import Mapping
from contextlib import suppress

from extract.errors import InputError
from extract.hashing import differences
from extract.running.progress import say
from extract.store.identity import member_stores
from extract.store.shards import Shard
from extract.store.store import Store


def copy_known(
    store: Store, missing: Mapping[Shard, list[str]], layers: dict[str, list[int] | None]
) -> dict[Shard, list[str]]:
    """Copy the signals of questions that a store lacks from the stores of other temperatures.

    Args:
        store: The store.
        missing: Names of the signals that each block lacks.
        layers: Layers to keep of the signals that have some; None stands for all, and becomes those of what is copied.

    Returns:
        What is still missing.
    """
    others, still_missing = same_but_temperature(store), {shard: list(signals) for shard, signals in missing.items()}
    for signal in dict.fromkeys(signal for signals in missing.values() for signal in signals):
        for other in others:
            lacking = (shard for shard, signals in still_missing.items() if signal in signals)
            shards = [shard for shard in lacking if _holds(other, signal, shard)]
            keys = {key for shard in shards for key in other.signals.shard_layout(signal, shard)}
            found = sorted({int(key.split("/")[0]) for key in keys})
            if not shards or sorted(layers.get(signal) or found) != found:
                continue
            if signal in layers:
                layers[signal] = found
            for shard in shards:
                store.signals.copy(signal, shard, other.signals)
                still_missing[shard].remove(signal)
            say(f"read: {signal} of {len(shards)} blocks copied from {str(other.path)!r}, whose prompts are the same")
    return {shard: signals for shard, signals in still_missing.items() if signals}


def same_but_temperature(store: Store) -> list[Store]:
    """Stores beside a store whose identity differs in the temperature alone, and that the same model reads."""
    found = []
    for folder in member_stores(store.path.absolute().parent):
        with suppress(InputError):  # a neighbour that can't be opened holds nothing to copy
            other = Store.open(folder)
            different = [line.partition(":")[0] for line in differences(other.identity, store.identity)]
            if different == ["policy.decoding.temperature"] and other.reader == store.reader:
                found.append(other)
    return found


def _holds(store: Store, signal: str, shard: Shard) -> bool:
    """Whether a signal of a block is there and as it was written."""
    with suppress(InputError):
        return bool(store.signals.shard_layout(signal, shard))
    return False
