"""Named token places, as checked indices. Nothing wraps and nothing falls back."""

from __future__ import annotations

from collections.abc import Callable

from extract.errors import InputError, nearest

#: Index of the place in a prompt of P tokens. The distribution of the first answer token is read at `last_prompt`.
QUESTION_POSITIONS: dict[str, Callable[[int], int]] = {"last_prompt": lambda n_prompt: n_prompt - 1}

#: Tokens of the place in a prompt of P tokens with an answer of n content tokens y_1 … y_n behind it, over whose states
#: the mean is taken. y_t stands at index P + t − 1, and its state has seen it; it was drawn from index P + t − 2.
ANSWER_POSITIONS: dict[str, Callable[[int, int], range]] = {
    "first_answer": lambda n_prompt, n_answer: range(n_prompt, n_prompt + 1),
    "last_answer": lambda n_prompt, n_answer: range(n_prompt + n_answer - 1, n_prompt + n_answer),
    "mean_answer": lambda n_prompt, n_answer: range(n_prompt, n_prompt + n_answer),
}


def question_position(name: str, n_prompt: int) -> int:
    """0-based index of a named place in a prompt of `n_prompt` tokens.

    Raises:
        InputError: Unknown name, or the index lies outside the prompt.
    """
    if name not in QUESTION_POSITIONS:
        raise _unknown(name, list(QUESTION_POSITIONS))
    index = QUESTION_POSITIONS[name](n_prompt)
    if not 0 <= index < n_prompt:
        raise InputError(
            f"Expected position {name!r} to lie in a prompt of {n_prompt} tokens, but its index is {index}. Give a longer prompt."
        )
    return index


def answer_position(name: str, n_prompt: int, n_answer: int) -> range:
    """0-based indices of the tokens of a named place, in prompt and answer, all of which are the answer's.

    Args:
        name: One of `ANSWER_POSITIONS`.
        n_prompt: Tokens of the prompt, at least one.
        n_answer: Content tokens of the answer; without any there is no such place.

    Raises:
        InputError: Unknown name, or the tokens lie outside the answer.
    """
    if name not in ANSWER_POSITIONS:
        raise _unknown(name, list(ANSWER_POSITIONS))
    tokens = ANSWER_POSITIONS[name](n_prompt, n_answer)
    if n_prompt < 1 or not n_prompt <= tokens.start < tokens.stop <= n_prompt + n_answer:
        raise InputError(
            f"Expected position {name!r} to lie in an answer of {n_answer} tokens after a prompt of {n_prompt}, but it is from {tokens.start} to {tokens.stop - 1}. Leave empty answers out."
        )
    return tokens


def _unknown(name: str, known: list[str]) -> InputError:
    return InputError(f"Expected `positions` to be among {', '.join(known)}, but got {name!r}.{nearest(name, known)}")
