"""Server metrics in the Prometheus text format."""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

#: Upper bounds of the histogram of request durations, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Name, type and description of the metric for each engine count.
ENGINE = {
    "queued": ("queued", "gauge", "Requests that are waiting for the model."),
    "running": ("running", "gauge", "Requests that are being processed."),
    "n_requests": ("engine_requests_total", "counter", "Requests that the queue accepted."),
    "n_rejected": ("rejected_total", "counter", "Requests that were rejected because the queue was full."),
    "n_passes": ("forward_passes_total", "counter", "Batches that the model processed."),
    "n_rows": ("forward_rows_total", "counter", "Rows of all batches."),
    "n_tokens": ("generated_tokens_total", "counter", "Generated tokens."),
    "seconds_busy": ("busy_seconds_total", "counter", "Time during which the model was running, in seconds."),
}
_PREFIX = "confidence_probes_"

App = Callable[[Any, Any, Any], Any]


class Metrics:
    """Request counts and durations by endpoint. `counts` is a function that returns the engine's own counts."""

    def __init__(self, counts: Callable[[], Mapping[str, float]]) -> None:
        self._counts = counts
        self._n: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))

    def observe(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request that was answered with `status` after `seconds`."""
        self._n[endpoint, status] += 1
        self._seconds[endpoint] += seconds
        self._buckets[endpoint][bisect_left(BOUNDS, seconds)] += 1

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        counts = self._counts()
        lines = []
        for name, (metric, kind, description) in ENGINE.items():
            lines += _head(metric, kind, description)
            lines.append(f"{_PREFIX}{metric} {counts[name]:.15g}")
        lines += _head("requests_total", "counter", "Answered requests, by endpoint and HTTP status.")
        for (endpoint, status), n in sorted(self._n.items()):
            lines.append(f'{_PREFIX}requests_total{{endpoint="{endpoint}",status="{status}"}} {n}')
        metric = "request_duration_seconds"
        lines += _head(metric, "histogram", "Time from the request to the end of the answer, in seconds.")
        for endpoint, buckets in sorted(self._buckets.items()):
            for bound, n in zip((*BOUNDS, "+Inf"), accumulate(buckets), strict=True):
                lines.append(f'{_PREFIX}{metric}_bucket{{endpoint="{endpoint}",le="{bound}"}} {n}')
            lines.append(f'{_PREFIX}{metric}_sum{{endpoint="{endpoint}"}} {self._seconds[endpoint]:.9g}')
            lines.append(f'{_PREFIX}{metric}_count{{endpoint="{endpoint}"}} {sum(buckets)}')
        return "\n".join([*lines, ""])


def _head(metric: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {_PREFIX}{metric} {description}", f"# TYPE {_PREFIX}{metric} {kind}"]


class Measured:
    """ASGI middleware that counts and times every request. Paths outside `endpoints` are counted as `other`."""

    def __init__(self, app: App, metrics: Metrics, endpoints: tuple[str, ...]) -> None:
        self._app, self._metrics, self._endpoints = app, metrics, endpoints

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 499  # the client disconnected early

        async def observed(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
            self._metrics.observe(endpoint, status, time.perf_counter() - start)
