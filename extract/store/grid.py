"""Signals of questions that the store of another temperature holds: its prompts are the same, so they are copied, not read again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

from extract.errors import InputError
from extract.running.progress import say
from extract.store.files import Damaged, is_finished
from extract.store.identity import member_stores
from extract.store.shards import Shard
from extract.store.store import Store


def copy_known(
    store: Store, missing: Mapping[Shard, list[str]], layers: dict[str, list[int] | None]
) -> dict[Shard, list[str]]:
    """Copy what another store of the family holds of the signals that a store's blocks of questions lack.

    Args:
        store: The store.
        missing: Names of the signals that each block lacks.
        layers: Layers to keep of the signals that have some; None stands for all, and becomes those of what is copied.

    Returns:
        What is still missing.
    """
    left = {place: list(names) for place, names in missing.items()}
    for name in dict.fromkeys(name for names in missing.values() for name in names):
        for sibling in siblings(store):
            held = [place for place, names in left.items() if name in names and _holds(sibling, name, place)]
            found = {int(key.split("/")[0]) for place in held for key in sibling.signals.shard_layout(name, place)}
            if not held or (name in layers and found != set(layers[name] or found)):
                continue
            if name in layers:
                layers[name] = sorted(found)
            for place in held:
                store.signals.copy(name, place, sibling.signals)
                left[place].remove(name)
            say(f"read: {name} of {len(held)} blocks copied from {str(sibling.path)!r}, whose prompts are the same")
    return {place: names for place, names in left.items() if names}


def siblings(store: Store) -> list[Store]:
    """Stores beside a store that differ from it in their temperature alone, and are read with the same model."""
    found = []
    for folder in member_stores(store.path.absolute().parent):
        with suppress(InputError):  # what is wrong with it is not this store's affair
            other = Store.open(folder)
            if other.sha256 != store.sha256 and _at_any(other) == _at_any(store) and other.reader == store.reader:
                found.append(other)
    return found


def _at_any(store: Store) -> dict[str, Any]:
    identity = deepcopy(store.identity)
    del identity["policy"]["decoding"]["temperature"]
    return identity


def _holds(store: Store, signal: str, place: Shard) -> bool:
    """Whether a signal of a block is there and as it was written."""
    if not is_finished(store.signals.file(signal, place)):
        return False
    with suppress(Damaged):
        return bool(store.signals.shard_layout(signal, place))
    return False
