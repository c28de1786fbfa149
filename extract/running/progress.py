"""Progress bars and messages on standard error."""

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
    """A progress bar that counts items and tokens. Call the instance to add finished items and tokens.

    The rates are means over the whole run, because answers arrive in bursts. `total` is None if the number of items is
    unknown.
    """

    def __init__(self, label: str, total: int | None, unit: str) -> None:
        interval = 0.5 if sys.stderr.isatty() else 10.0  # seconds
        options: dict[str, Any] = {"mininterval": interval, "smoothing": 0, "dynamic_ncols": True}
        self._bar = tqdm(total=total, desc=label, unit=f" {unit}", bar_format=_BAR, **options)
        self._start, self._tokens, self._note = time.perf_counter(), 0, ""

    def __call__(self, items: int, tokens: int) -> None:
        """Count newly finished items and tokens."""
        self._tokens += tokens
        rate = f"{self._tokens / (time.perf_counter() - self._start):,.0f} tokens/s" if self._tokens else ""
        self._bar.set_postfix_str(", ".join(filter(None, (rate, self._note))), refresh=False)
        self._bar.update(items)

    def note(self, text: str) -> None:
        """Set the text at the end of the bar. The bar shows the text at its next update."""
        self._note = text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


def spent(
    prompt_tokens: int, answer_tokens: int, price_prompt: float | None = None, price_answer: float | None = None
) -> str:
    """Format the cost of tokens in dollars, or the token counts if a price is unknown.

    Prices are in dollars per million tokens.

    >>> spent(2_000_000, 500_000, 0.1, 0.4)
    '$0.40 spent'
    >>> spent(1234, 5)
    '1,234 prompt and 5 answer tokens'
    """
    if price_prompt is None or price_answer is None:
        return f"{prompt_tokens:,} prompt and {answer_tokens:,} answer tokens"
    return f"${(prompt_tokens * price_prompt + answer_tokens * price_answer) / 1e6:,.2f} spent"


def say(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr)


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Silence loggers. For ``"transformers"``, also hide progress bars."""
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
