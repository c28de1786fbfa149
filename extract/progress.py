"""Progress of long work: a bar with a rate, tokens per second and the time left, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Progress:
    """A bar over `total` items that also counts tokens; call it with the items and tokens done.

    Args:
        what: Word in front of the bar.
        total: Number of items.
        unit: What an item is.
    """

    def __init__(self, what: str, total: int, unit: str) -> None:
        self._bar = tqdm(total=total, desc=what, unit=f" {unit}", mininterval=0.5, dynamic_ncols=True)
        self._start = time.perf_counter()
        self._tokens = 0

    def __call__(self, items: int, tokens: int) -> None:
        """Count work that is done."""
        self._tokens += tokens
        self._bar.set_postfix_str(f"{self._tokens / (time.perf_counter() - self._start):,.0f} tokens/s", refresh=False)
        self._bar.update(items)

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
