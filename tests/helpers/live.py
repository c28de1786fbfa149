"""The most bytes of tensors that are alive at once while something runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages of all tensors that operations return in the context, from then until they are freed.

    What was there before the context, and what an operation needs inside itself, does not count.

    Attributes:
        now: Bytes that are alive.
        peak: The most that were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            self._note(tensor, 0)  # not made here
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self._note(tensor, None)
        return result

    def _note(self, tensor: Any, size: int | None) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known and self._known[key].alive:
            return
        size = storage.nbytes() if size is None else size
        self._known[key] = weakref.finalize(storage, self._freed, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _freed(self, key: int, size: int) -> None:
        self.now -= size
        self._known.pop(key, None)


def peak_bytes(action: Callable[[], object]) -> int:
    """Most bytes alive at once, beyond those before: on a GPU as its allocator counts them, on a CPU as `LiveBytes` does."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        action()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    with LiveBytes() as live:
        action()
    return live.peak
