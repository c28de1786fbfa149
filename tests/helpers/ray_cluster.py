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


def processes(title: str) -> list[int]:
    """Return the ids of the running processes of this user whose command line begins with a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if folder.stat().st_uid == os.getuid() and (folder / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(folder.name))
    return found


def kill_actor(choose: int = 0) -> bool:
    """Kill an actor that processes a block. Returns whether there was one."""
    actors = sorted(processes("ray::_Actor.process"))
    if actors:
        os.kill(actors[choose % len(actors)], signal.SIGKILL)
    return bool(actors)
