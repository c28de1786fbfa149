"""Replay forward passes as CUDA graphs. Launching the kernels one by one would take longer than running them."""

import warnings
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from extract.sampling.local.reading import forward
from extract.sampling.local.slot_cache import SlotCache

#: Models whose passes can't be captured.
uncapturable = WeakSet[Any]()


class Replay:
    """Forward pass of a model with a `SlotCache`. On a CUDA device, it is captured as a CUDA graph and replayed.

    Some passes can't be captured, for example because they copy a value to the CPU. They are run as usual.
    """

    def __init__(self, model: Any, cache: SlotCache) -> None:
        self._model, self._cache = model, cache
        self._graph: torch.cuda.CUDAGraph | None = None
        self._bias: Tensor | None = None  # bias of the captured pass
        self._inputs: tuple[Tensor, Tensor]
        self._logits: Tensor

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits [slot, vocab] for token ids and positions [slot, 1].

        The next call may overwrite the logits.
        """
        if self._bias is not self._cache.bias:
            is_first, self._bias, self._graph = self._bias is None, self._cache.bias, None
            if ids.is_cuda and self._model not in uncapturable:
                self._capture(ids, positions, is_first)
        if self._graph is None:
            return self._run(ids, positions)
        for static, new in zip(self._inputs, (ids, positions), strict=True):
            static.copy_(new)
        self._graph.replay()
        return self._logits

    def _run(self, ids: Tensor, positions: Tensor) -> Tensor:
        return forward(self._model, ids, None, positions, self._cache)

    def _capture(self, ids: Tensor, positions: Tensor, is_first: bool) -> None:
        """Capture a forward pass as a CUDA graph if possible.

        Before the first capture, check that a pass does not make the CPU wait for the GPU. The extra passes before a
        capture do not change the result, because they write the same keys and values.
        """
        self._inputs, stream = (ids.clone(), positions.clone()), _stream(ids.device)
        stream.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.cuda.device(ids.device), torch.cuda.stream(stream):
            self._run(*self._inputs)  # the first calls of some operations can't be captured
            if is_first and self._waits():
                uncapturable.add(self._model)
            else:
                self._record(stream)
        torch.cuda.current_stream(ids.device).wait_stream(stream)

    def _record(self, stream: torch.cuda.Stream) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._logits = self._run(*self._inputs)
            self._graph = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an operation that is not allowed in a graph
            uncapturable.add(self._model)

    def _waits(self) -> bool:
        """Whether torch detects that a pass makes the CPU wait for the GPU."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self._run(*self._inputs)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return any("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for all captures on a device.

    With one stream per graph, cuBLAS would allocate one workspace per graph.
    """
    return torch.cuda.Stream(device)
