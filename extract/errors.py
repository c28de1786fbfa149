"""Errors that a user can correct. The commands print only the message, without a traceback."""

import difflib
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """Invalid input from a user. The message is one line that states the problem and the remedy."""


class Damaged(InputError):
    """Error in a data file, for example a checksum mismatch."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"Expected {str(path)!r} to be intact, but {problem}. To replace the file, rerun the command that wrote "
            "it (sample, grade, read or ask). If no command wrote it, delete it."
        )
        self.path, self.problem = path, problem


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ``" Did you mean `limit`?"``, or "" if no known word is close to `word`."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean `{match[0]}`?" if match else ""


def at_least_one(option: str, value: int, default: int) -> int:
    """Return `value`, or raise an `InputError` if it is less than 1.

    The message names the option and its default.
    """
    if value < 1:
        raise InputError(f"Expected `{option}` to be at least 1, but got {value}. The default is {default}.")
    return value
