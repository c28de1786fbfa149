"""Replay forward passes as CUDA graphs. Launching their operations one by one would take longer than computing them."""

from collections.abc import Callable

import torch
from torch import Tensor

from extract.sampling.local.slot_cache import SlotCache


class Replay:
    """Forward pass with a `SlotCache`. On a CUDA device, it is captured and then replayed, which is much faster.

    Passes that can't be captured, for example because they copy a value to the CPU, are run as usual.

    Args:
        run: Function of token ids and positions, each [slot, 1] int64, that returns logits [slot, vocab].
        cache: Cache that `run` uses.
    """

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor], cache: SlotCache) -> None:
        self._run, self._cache = run, cache
        self._can_capture = cache.bias.is_cuda
        self._graph: torch.cuda.CUDAGraph | None = None
        self._bias: Tensor | None = None  # that of the captured pass
        self._inputs: tuple[Tensor, Tensor]
        self._logits: Tensor

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits [slot, vocab]. The next call overwrites them."""
        if self._can_capture and self._bias is not self._cache.bias:
            self._capture(ids, positions)
        if self._graph is None:
            return self._run(ids, positions)
        for static, new in zip(self._inputs, (ids, positions), strict=True):
            static.copy_(new)
        self._graph.replay()
        return self._logits

    def _capture(self, ids: Tensor, positions: Tensor) -> None:
        """Capture a pass. It is run once before, because the first calls of some operations can't be captured.

        Both passes write the same keys and values to the cache, so the additional one does not change the result.
        """
        self._graph, self._bias, self._inputs = None, self._cache.bias, (ids.clone(), positions.clone())
        stream = torch.cuda.Stream(ids.device)
        stream.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.cuda.stream(stream):
            self._run(*self._inputs)
        torch.cuda.current_stream(ids.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._logits = self._run(*self._inputs)
            self._graph = graph
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._can_capture = False
            torch.cuda.synchronize(ids.device)
