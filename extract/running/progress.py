"""Progress of long work: a bar with rates, what was spent and the time left, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tqdm import tqdm

_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
#: Seconds between two pictures of the bar: on a terminal, where one takes the other's place, and in a file.
_ON_TERMINAL, _IN_FILE = 0.5, 10.0


class Progress:
    """A bar over `total` items that also counts tokens; call it with the items and tokens done.

    Rates, and the time left, are by the mean over the whole run: answers come in bursts.

    Args:
        what: Word in front of the bar.
        total: Number of items.
        unit: What an item is.
    """

    def __init__(self, what: str, total: int, unit: str) -> None:
        interval = _ON_TERMINAL if sys.stderr.isatty() else _IN_FILE
        self._bar = tqdm(
            total=total,
            desc=what,
            unit=f" {unit}",
            mininterval=interval,
            smoothing=0,
            bar_format=_BAR,
            dynamic_ncols=True,
        )
        self._start = time.perf_counter()
        self._tokens = 0
        self._note = ""

    def __call__(self, items: int, tokens: int) -> None:
        """Count work that is done."""
        self._tokens += tokens
        rate = f"{self._tokens / (time.perf_counter() - self._start):,.0f} tokens/s"
        self._bar.set_postfix_str(f"{rate}, {self._note}" if self._note else rate, refresh=False)
        self._bar.update(items)

    def note(self, words: str) -> None:
        """Show words at the end of the bar from the next count on, for example what `spent` says."""
        self._note = words

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


class Counted:
    """Passes counts on to `progress` and remembers them, so that work that has to be done again can be taken back."""

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress, self._items, self._tokens = progress, 0, 0

    def __call__(self, items: int, tokens: int) -> None:
        """Count work that is done."""
        self._items, self._tokens = self._items + items, self._tokens + tokens
        self._progress(items, tokens)

    def take_back(self) -> None:
        """Uncount all of it."""
        self._progress(-self._items, -self._tokens)


def spent(
    prompt_tokens: int, answer_tokens: int, price_prompt: float | None = None, price_answer: float | None = None
) -> str:
    """What tokens cost, in words: dollars where both prices are known, else the tokens themselves.

    Args:
        prompt_tokens: Tokens of prompts that were sent.
        answer_tokens: Tokens of answers that came.
        price_prompt: Dollars for a million of the former.
        price_answer: Dollars for a million of the latter.

    >>> spent(2_000_000, 500_000, 0.1, 0.4)
    '$0.40 spent'
    >>> spent(1234, 5)
    '1,234 prompt and 5 answer tokens'
    """
    if price_prompt is None or price_answer is None:
        return f"{prompt_tokens:,} prompt and {answer_tokens:,} answer tokens"
    return f"${(prompt_tokens * price_prompt + answer_tokens * price_answer) / 1e6:,.2f} spent"


def say(line: str) -> None:
    """Print a line for the user on standard error."""
    print(line, file=sys.stderr)
