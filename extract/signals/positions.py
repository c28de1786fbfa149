"""Named token places, as checked indices. Nothing wraps and nothing falls back."""

from __future__ import annotations

from collections.abc import Callable

from extract.errors import InputError, nearest

#: Index of the place in a prompt of P tokens. The distribution of the first answer token is read at `last_prompt`.
QUESTION_POSITIONS: dict[str, Callable[[int], int]] = {"last_prompt": lambda n_prompt: n_prompt - 1}


def question_position(name: str, n_prompt: int) -> int:
    """0-based index of a named place in a prompt of `n_prompt` tokens.

    Raises:
        InputError: Unknown name, or the index lies outside the prompt.
    """
    if name not in QUESTION_POSITIONS:
        raise InputError(
            f"Expected `positions` to be among {', '.join(QUESTION_POSITIONS)}, but got {name!r}.{nearest(name, QUESTION_POSITIONS)}"
        )
    index = QUESTION_POSITIONS[name](n_prompt)
    if not 0 <= index < n_prompt:
        raise InputError(
            f"Expected position {name!r} to lie in a prompt of {n_prompt} tokens, but its index is {index}. Give a longer prompt."
        )
    return index
