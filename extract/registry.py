"""Registries of named entries. They provide option values, help messages and tables in the docs."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from extract.errors import InputError, nearest

Entry = TypeVar("Entry")
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(dict[str, Entry]):
    """Dict of entries by name, in order of registration.

    Args:
        option: Name of the option that selects an entry. Used in error messages.
        entries: Initial entries.
        renamed: Dict from old to new names. An old name is rejected, and the error message suggests the new name.

    >>> Registry("grader", {"short": 1, "exact": 2})["shrt"]
    Traceback (most recent call last):
    extract.errors.InputError: Expected `grader` to be one of short, exact, but got 'shrt'. Did you mean `short`?
    """

    def __init__(self, option: str, entries: Mapping[str, Entry], renamed: Mapping[str, str] | None = None) -> None:
        super().__init__(entries)
        self._option, self._renamed = option, renamed or {}

    def register(self, name: str, entry: Entry) -> Entry:
        """Add an entry, for example from a plugin or a test, and return it."""
        self[name] = entry
        return entry

    def __missing__(self, name: str) -> NoReturn:
        now = self._renamed.get(name)
        hint = f" It was renamed to `{now}`." if now in self else nearest(name, self)
        raise InputError(f"Expected `{self._option}` to be one of {', '.join(self)}, but got {name!r}.{hint}")


def import_object(place: str) -> Any:
    """Import the object at ``module:attribute``."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)


def fill_names(**registries: Iterable[str]) -> Callable[[Function], Function]:
    """Decorator that replaces each ``{keyword}`` in a docstring with the names in a registry.

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
