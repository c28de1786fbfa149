"""Measure the peak size of all tensors that exist at the same time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Count the storages of all tensors that operations return in the context, until they are freed.

    Tensors created before the context and the internal memory of operations do not count.

    Attributes:
        now: Bytes that are currently allocated.
        peak: Maximum of `now`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            self._note(tensor, 0)  # not created in this context
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
    """Return the peak number of bytes that an action allocates.

    On a GPU, they are counted by the allocator. On a CPU, they are counted by `LiveBytes`.
    """
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
