"""Run the server of this package on the loopback interface, in a thread or as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from probes.saved.artefact import ConfidenceProbe
from probes.serving.app import create_app
from probes.serving.command import bound_socket, new_server
from tests.helpers.experiments import ROOT

#: The command without the other commands of the package, whose imports take seconds.
_PROGRAM = """
from extract.running.cli import run
from extract.running.exit import end_process
from probes.serving.command import serve

if __name__ == "__main__":
    end_process(lambda: run({"serve": serve}, "python -m probes"))
"""


@contextmanager
def served(
    engine: Any, probe: ConfidenceProbe, name: str = "tiny", closes: bool = True, **options: Any
) -> Iterator[str]:
    """Serve an engine in a thread, and yield the address.

    Args:
        engine: The engine.
        probe: The probe of the engine.
        name: Name of the model.
        closes: Whether the engine is closed at the end.
        **options: Options of `create_app`.
    """
    app = create_app(engine, probe, name, **options)
    with bound_socket("127.0.0.1", 0) as listener:
        server = new_server(app, engine if closes else SimpleNamespace(close=lambda seconds: None), "")  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@contextmanager
def serve_process(*options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command `serve` on a free port, and yield the process and the address."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "serve", "--port", "0", *options],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    killer = threading.Timer(60, process.kill)  # if the server does not start
    killer.start()
    try:
        lines: list[str] = []
        for line in process.stderr:  # transformers prints a progress bar before
            lines.append(line)
            if place := re.search(r"Serving .+ at (http://\S+:\d+)\. Press Ctrl-C to stop\.\n", line):
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(lines)[-500:]}")
        killer.cancel()
        yield process, place[1]
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        process.stderr.close()


def wait_until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)
