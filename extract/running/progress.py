"""Output on standard error: progress bars with rates and remaining time, single lines, and silenced loggers."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from tqdm import tqdm

#: Progress callback, called with the numbers of finished items and tokens.
Count = Callable[[int, int], None]
_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"


class Progress:
    """A progress bar that also counts tokens. Call it with the numbers of finished items and tokens.

    Rates and remaining time are based on the mean over the whole run, because answers arrive in bursts.

    Args:
        label: Text before the bar.
        total: Number of items.
        unit: Unit of the items.
    """

    def __init__(self, label: str, total: int, unit: str) -> None:
        interval = 0.5 if sys.stderr.isatty() else 10.0  # seconds; a log file gets fewer updates
        options: dict[str, Any] = {"mininterval": interval, "smoothing": 0, "dynamic_ncols": True}
        self._bar = tqdm(total=total, desc=label, unit=f" {unit}", bar_format=_BAR, **options)
        self._start, self._tokens, self._note = time.perf_counter(), 0, ""

    def __call__(self, items: int, tokens: int) -> None:
        """Add finished items and tokens."""
        self._tokens += tokens
        rate = f"{self._tokens / (time.perf_counter() - self._start):,.0f} tokens/s"
        self._bar.set_postfix_str(f"{rate}, {self._note}" if self._note else rate, refresh=False)
        self._bar.update(items)

    def note(self, text: str) -> None:
        """Show a text at the end of the bar from the next update on, for example from `spent`."""
        self._note = text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


def spent(
    prompt_tokens: int, answer_tokens: int, price_prompt: float | None = None, price_answer: float | None = None
) -> str:
    """Cost of tokens as text: in dollars if both prices are known, else as numbers of tokens.

    Args:
        prompt_tokens: Number of prompt tokens that were sent.
        answer_tokens: Number of answer tokens that were received.
        price_prompt: Dollars per million prompt tokens.
        price_answer: Dollars per million answer tokens.

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


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Silence loggers of libraries. For ``"transformers"``, also hide its progress bars."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    bars: Any = None
    if "transformers" in names:
        from transformers.utils import logging as transformers_logging

        bars = transformers_logging if transformers_logging.is_progress_bar_enabled() else None
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        if bars:
            bars.disable_progress_bar()
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        if bars:
            bars.enable_progress_bar()
