"""The one exception for what a user can put right: its text is a whole message, shown without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Says which argument, what came, what was expected and what to do next, in one line."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as ``" Did you mean `limit`?"``, or an empty string when nothing known is close to `word`."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean `{match[0]}`?" if match else ""
