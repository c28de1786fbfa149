"""A small Ray cluster on this machine, and its actors, for tests and benchmarks of the Ray engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch


@contextmanager
def small_cluster(cpus: int = 2) -> Iterator[None]:
    """Connect this process to a new cluster, which listens only on the loopback address."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": ""}
    with patch.dict(os.environ, quiet):
        import ray

        try:
            ray.init(
                "local",
                num_cpus=cpus,
                object_store_memory=80 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _node_ip_address="127.0.0.1",
            )
            yield
        finally:
            ray.shutdown()


def children(parent: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    found: list[int] = []
    for thread in Path(f"/proc/{parent}/task").glob("*"):
        with suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text().split())
    return found


def actors_of(driver: int) -> list[int]:
    """Return the ids of the actors of a driver that has started its own cluster. They are its grandchildren."""
    found = []
    for process in (process for child in children(driver) for process in children(child)):
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::_Actor"):
                found.append(process)
    return found


def kill_an_actor() -> bool:
    """Kill an actor of this process. Returns whether there was one."""
    for actor in actors_of(os.getpid())[:1]:
        os.kill(actor, signal.SIGKILL)
        return True
    return False
