"""Features that stay in the files of a store and are read in chunks."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self, overload

import torch
from torch import Tensor

from extract.errors import InputError
from extract.running.progress import Progress
from extract.store.shards import Shard
from extract.store.signals import Signals

#: Maximum size in bytes of a chunk of float32 features.
CHUNK_BYTES = 2**24
#: Largest difference between the indices of neighbouring rows in a chunk.
LARGEST_GAP = 64
CPU = torch.device("cpu")


@dataclass(frozen=True)
class FeatureFiles:
    """Files with the vectors of a signal.

    Attributes:
        keys: Keys of the signal, one per feature.
        starts: Index of the first row in each shard, followed by the total number of rows.
        numbers: Values that are appended to each vector of a row, [row, number] float32.
    """

    signals: Signals
    signal: str
    keys: Sequence[str]
    shards: Sequence[Shard]
    starts: Sequence[int]
    width: int
    numbers: Tensor

    def read(self, features: Sequence[int], start: int, stop: int) -> Tensor:
        """Read the features of rows `start` to `stop` − 1, [row, feature, d_model] float32."""
        values = torch.empty(stop - start, len(features), self.width + self.numbers.shape[1])
        values[:, :, self.width :] = self.numbers[start:stop, None]
        for i in range(bisect_right(self.starts, start) - 1, bisect_left(self.starts, stop)):
            first = self.starts[i]
            low, high = max(start, first), min(stop, self.starts[i + 1])
            for place, feature in enumerate(features):
                rows = self.signals.read_rows(
                    self.signal, self.keys[feature], self.shards[i], low - first, high - first
                )
                values[low - start : high - start, place, : self.width] = rows
        return values


@dataclass(frozen=True)
class StreamedFeatures:
    """Features of selected rows of a store. Row selection copies only indices. Selecting features reads files.

    Attributes:
        rows: Rows of the store, [row] int64.
        n_workers: Number of threads that read chunks.
        device: Device on which the features are returned.
    """

    files: FeatureFiles
    rows: Tensor
    n_workers: int
    device: torch.device = CPU

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of several parts. All parts must have the same `files`."""
        return replace(parts[0], rows=torch.cat([part.rows for part in parts]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of rows, number of features, and width of each feature."""
        return len(self.rows), len(self.files.keys), self.files.width + self.files.numbers.shape[1]

    def to(self, device: torch.device) -> Self:
        """Return the same features on another device."""
        return replace(self, device=device)

    @overload
    def __getitem__(self, index: Tensor) -> Self: ...
    @overload
    def __getitem__(self, index: tuple[slice, list[int]]) -> Tensor: ...
    def __getitem__(self, index: Tensor | tuple[slice, list[int]]) -> Self | Tensor:
        """Select rows by index or mask.

        `[:, features]` reads only the listed features and returns a tensor [row, feature, d_model] float32.
        """
        if isinstance(index, Tensor):
            return replace(self, rows=self.rows[index.to(self.rows.device)])
        return self.map(index[1], lambda _, rows: rows)

    def read(self) -> Tensor:
        """Read all features, [row, feature, d_model] float32."""
        return self[:, list(range(len(self.files.keys)))]

    def finite(self) -> Tensor:
        """Return a bool mask [row] of the rows in which all features are finite."""
        finite = torch.ones(len(self.rows), dtype=torch.bool)
        with Progress("check", len(self.files.keys), "features") as progress:
            for feature in range(len(self.files.keys)):
                finite &= self.map([feature], lambda _, rows: torch.stack(rows[:, 0].aminmax(dim=1)).isfinite().all(0))
                progress(1, 0)
        return finite

    def map(self, features: Sequence[int], function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Apply a function to features in chunks, and return the results [row, …] in the order of `rows`.

        See `chunks` for the arguments. Here, `function` must return a tensor [row, …].
        """
        found = torch.empty(0)
        for places, values in self.chunks(features, function):
            if not len(found):
                found = values.new_empty(len(self.rows), *values.shape[1:])
            found[places] = values
        return found

    def chunks(
        self, features: Sequence[int], function: Callable[[Tensor, Tensor], Any]
    ) -> Iterator[tuple[Tensor, Any]]:
        """Apply a function to features in chunks, in store order.

        For each chunk, yields its indices into `rows` and the result of the function.

        Args:
            features: Indices of the features.
            function: Called with a chunk's indices into `rows`, [row] int64, and its features, [row, feature, d_model]
                float32. Runs in a thread and without gradients.
        """
        rows, order = self.rows.sort()
        n_rows = max(1, CHUNK_BYTES // (4 * self.shape[2] * len(features)))
        starts = (rows.diff() > LARGEST_GAP) | ((rows // n_rows).diff() > 0)
        sizes = torch.cat([starts.new_ones(1), starts]).nonzero()[:, 0]
        parts = order.tensor_split(sizes[1:])

        @torch.no_grad()  # gradient mode is set per thread
        def read(places: Tensor) -> tuple[Tensor, Any]:
            own = self.rows[places]
            first = int(own[0])
            values = self.files.read(features, first, int(own[-1]) + 1)
            if len(values) > len(own):
                values = values[own - first]
            return places, function(places, values.to(self.device))

        return in_order(read, parts, self.n_workers)


def in_order(function: Callable[[Any], Any], items: Iterable[Any], n_workers: int) -> Iterator[Any]:
    """Apply a function to all items in a thread pool, and yield the results in the order of the items.

    At most `n_workers` + 1 results are held in memory.
    """
    with ThreadPoolExecutor(n_workers) as pool:
        waiting: deque[Future[Any]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > n_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def unstreamable(probe: str) -> InputError:
    """Return the error for a probe that needs all features in memory."""
    return InputError(
        f"Expected `in_memory` to be true for {probe}, which reads all rows at once, but got false. Omit "
        "--data.in_memory, or choose a probe that reads features in chunks, such as --model=Ridge."
    )
