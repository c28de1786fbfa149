"""Config files that somebody else wrote: what is refused before a parser builds anything of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from extract.errors import InputError

_LARGEST = 2**20  # bytes


def config_files(arguments: Sequence[str]) -> Iterator[Path]:
    """Files that a command line names by ``--config`` or ``-c``.

    >>> [str(path) for path in config_files(["--config", "a.yaml", "--k=3", "--config=b.yaml"])]
    ['a.yaml', 'b.yaml']
    """
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, _, value = argument.partition("=")
        if name in ("--config", "-c"):
            yield Path(value or following)


def check_config(path: Path) -> None:
    """Refuse a config file that is larger than any, or whose few lines stand for billions.

    Raises:
        InputError: Over a million bytes, or aliases (``*name``), which can repeat each other without end.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise InputError(
                f"Expected {str(path)!r} to be a config file, but it has more than {_LARGEST} bytes. Give another --config."
            )
        events = yaml.parse(content, Loader=yaml.SafeLoader)
        alias = next((event for event in events if isinstance(event, yaml.AliasEvent)), None)
    except (OSError, yaml.YAMLError, RecursionError):
        return  # the parser says what is wrong
    if alias is not None:
        raise InputError(
            f"Expected {str(path)!r} to be a config file without aliases, but it has *{alias.anchor} in line {alias.start_mark.line + 1}. Write the value itself there."
        )
