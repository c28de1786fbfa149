"""Registries: a mapping from names to entries, from which choices, help and documentation tables derive."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from extract.errors import InputError, nearest

Entry = TypeVar("Entry")
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Mapping[str, Entry]):
    """Entries by name, in the order in which they were registered.

    Args:
        option: Option whose values are the names, for the message about an unknown one.
        entries: The first entries.
        renamed: Earlier names, which are refused with the present one.

    >>> Registry("grader", {"short": 1, "exact": 2})["shrt"]
    Traceback (most recent call last):
    extract.errors.InputError: Expected `grader` to be one of short, exact, but got 'shrt'. Did you mean `short`?
    """

    def __init__(self, option: str, entries: Mapping[str, Entry], renamed: Mapping[str, str] | None = None) -> None:
        self.option, self._entries, self._renamed = option, dict(entries), renamed or {}

    def register(self, name: str, entry: Entry) -> Entry:
        """Add an entry, for example from a plugin or a test."""
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            names = ", ".join(self._entries)
            now = self._renamed.get(name)
            hint = f" It is called `{now}` now." if now in self._entries else nearest(name, self._entries)
            raise InputError(f"Expected `{self.option}` to be one of {names}, but got {name!r}.{hint}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def import_object(place: str) -> Any:
    """The object at ``module:attribute``, the form in which registries name what they import when it is used."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)


def fill_names(**registries: Iterable[str]) -> Callable[[Function], Function]:
    """Decorator that replaces ``{keyword}`` in a docstring by the names of a registry, so that help follows from it.

    >>> @fill_names(graders={"short": 1, "exact": 2})
    ... def grade(grader):
    ...     '''Grader: one of {graders}.'''
    >>> grade.__doc__
    'Grader: one of short, exact.'
    """

    def fill(function: Function) -> Function:
        for keyword, names in registries.items():
            function.__doc__ = (function.__doc__ or "").replace(f"{{{keyword}}}", ", ".join(names))
        return function

    return fill
