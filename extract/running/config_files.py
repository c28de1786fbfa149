"""Options as YAML: numbers that are read as a person means them, and config files that are refused before anything is built of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from extract.errors import InputError

_LARGEST = 2**20  # bytes
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9_]*)",
    "tag:yaml.org,2002:float": r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class _Loader(yaml.SafeLoader):
    """Reads decimal numbers only: to YAML 1.1 the grid 0:1:0.5 is sixty seconds and a half, and a date is no text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, form) for tag, form in known if tag not in (*_NUMBERS, "tag:yaml.org,2002:timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


for _tag, _form in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_form})$"), list("-+.0123456789"))


def load_yaml(text: str) -> Any:
    """The value of a YAML text.

    >>> [load_yaml(text) for text in ("0:1:0.5", "1:2:1", "60.5", "1e-3", "[7, 2024-01-01]")]
    ['0:1:0.5', '1:2:1', 60.5, 0.001, [7, '2024-01-01']]
    """
    return yaml.load(text, Loader=_Loader)


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
