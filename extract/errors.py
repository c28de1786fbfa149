"""Errors that a user can put right: their text is a whole message, shown without a traceback."""

import difflib
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """Says which argument, what came, what was expected and what to do next, in one line."""


class Damaged(InputError):
    """A data file that is not as it was written.

    Args:
        path: The file.
        problem: What is wrong with it, in a few words on one line.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"Expected {str(path)!r} to be as it was written, but {problem}. Run the command that made it (sample, "
            "grade, read or ask) again, which makes it anew; delete it if no command did."
        )
        self.path, self.problem = path, problem


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as ``" Did you mean `limit`?"``, or an empty string when nothing known is close to `word`."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean `{match[0]}`?" if match else ""
