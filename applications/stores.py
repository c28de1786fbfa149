"""Open a store or a temperature grid, and load its tables."""

from collections.abc import Mapping
from pathlib import Path

from datamodules.table import QuestionTable, load_table
from extract.errors import InputError
from extract.hashing import differences
from extract.store.identity import member_stores
from extract.store.store import Store

#: Temperature of an imported store that does not record it.
UNKNOWN = -1.0
_TEMPERATURE = "policy.decoding.temperature"


def known_temperature(temperature: float) -> float | None:
    """Return `temperature`, or None if it is `UNKNOWN`."""
    return None if temperature == UNKNOWN else temperature


def load_tables(stores: Mapping[float, Store], grader: str | None) -> dict[float, QuestionTable]:
    """Load each store's question table with the grades of one grader. Returns the tables by temperature."""
    name = next(iter(stores.values())).grades.choose(grader)
    return {temperature: load_table(store, name) for temperature, store in stores.items()}


def open_stores(path: str) -> dict[float, Store]:
    """Open a store, or all stores of a temperature grid. Returns a dict from temperature to store, in ascending order.

    The temperature of an imported store can be `UNKNOWN`.

    Raises:
        InputError: If a store has no samples, if two stores of a grid have the same temperature, or if the stores of a
            grid differ in anything but temperature.
    """
    stores = [Store.open(folder) for folder in member_stores(Path(path)) or [Path(path)]]
    found: dict[float, Store] = {}
    for store in stores:
        different = [line for line in differences(store.identity, stores[0].identity) if _TEMPERATURE not in line]
        value = store.identity["policy"]["decoding"]["temperature"]
        temperature = UNKNOWN if value is None else float(value)
        if different:
            raise InputError(
                f"Expected the stores in {path!r} to differ only in temperature, but '{store.path}' differs from "
                f"'{stores[0].path}' in {'; '.join(different)}. Pass a single store, or a folder with only one "
                "temperature grid."
            )
        if temperature in found:
            raise InputError(
                f"Expected the stores in {path!r} to have different temperatures, but '{found[temperature].path}' and "
                f"'{store.path}' both have temperature {temperature:g}. Move one of them out of the folder."
            )
        if not store.samples.ranges():
            raise InputError(
                f"Expected '{store.path}' (temperature {temperature:g}) to contain samples, but it has none. Complete "
                "the store with `python -m extract sample`, or move it out of the folder."
            )
        found[temperature] = store
    return dict(sorted(found.items()))
