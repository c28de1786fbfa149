"""Name the stores of a temperature grid, and run commands on each store.

A grid is a folder with one store per temperature.
"""

import sys
from collections.abc import Callable
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.policy import Decoding
from extract.store.identity import member_stores


def member_name(temperature: float) -> str:
    """Return the folder name of the store for one temperature.

    The names of temperatures below 10 sort in numerical order.

    >>> [member_name(temperature) for temperature in (0, 0.05, 0.1, 1.0, 1e-05)]
    ['t0.0', 't0.05', 't0.1', 't1.0', 't0.00001']
    """
    return f"t{Decimal(repr(float(temperature))):f}"


def grid_folders(folder: Path, decoding: Decoding) -> dict[float, Path]:
    """Return the store folder of each temperature. With only one temperature, it is `folder` itself.

    Raises an `InputError` if `folder` is a single store but `decoding` has several temperatures.
    """
    if not isinstance(decoding.temperature, str):
        return {decoding.temperature: folder}
    if (folder / "identity.json").is_file():
        raise InputError(
            f"Expected `store` to be a folder with one store per temperature, but {str(folder)!r} is itself a store. "
            "Pass a different --store."
        )
    return {temperature: folder / member_name(temperature) for temperature in decoding.temperatures}


def each_store(command: Callable[..., Any]) -> Callable[..., None]:
    """Decorate a command so that it runs on each store of a grid.

    If the command fails on a store, it still runs on the others. An error is raised at the end. If the command has an
    `out` option, the store's name is appended to the file name.
    """

    @wraps(command)
    def on_each(store: str, **options: Any) -> None:
        members = member_stores(Path(store))
        if not members:
            command(store=store, **options)
        failed = []
        for member in members:
            sys.stdout.flush()
            print(f"== {member}", file=sys.stderr, flush=True)
            own = options
            if "out" in options:
                out = Path(options["out"])
                own = {**options, "out": str(out.with_name(f"{out.stem}-{member.name}{out.suffix}"))}
            try:
                command(store=str(member), **own)
            except InputError as error:
                print(f"error: {error}", file=sys.stderr)
                failed.append(member.name)
        if failed:
            raise InputError(
                f"Expected the command to succeed for all {len(members)} stores in {store!r}, but it failed for "
                f"{', '.join(failed)}. See the errors above."
            )

    return on_each
