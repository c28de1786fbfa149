"""Run `transformers serve` on the loopback interface."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extract.store.store import Store

#: Enables sampling from the full distribution. Without this, the server decodes greedily at any temperature.
DRAWS = {"generation_config": {"do_sample": True, "top_k": 0}}


@contextmanager
def transformers_serve(model: Path, seconds: float = 120.0) -> Iterator[str]:
    """Run `transformers serve` without a network, and yield its address. The model has the name of its folder.

    Args:
        model: Folder of the model.
        seconds: Maximum time to start.

    Raises:
        RuntimeError: If the server does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.txt"
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--device",
            "cpu",
            "--dtype",
            "float32",
            "--log-level",
            "error",
        ]
        with said.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "transformers.cli.transformers", "serve", model.name, *options],
                cwd=model.parent,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": folder},
                stdout=stream,
                stderr=stream,
            )
        try:
            deadline = time.monotonic() + seconds
            while (place := re.search(r"running on (http://127\.0\.0\.1:\d+)", said.read_text())) is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"transformers serve did not start: {said.read_text()[-500:]}")
                time.sleep(0.1)
            yield f"{place[1]}/v1"
        finally:
            process.kill()
            process.wait()


def prompt_lengths(store: Store) -> dict[str, int]:
    """Return the number of prompt tokens for each question."""
    rows = store.samples.read().select(["question_id", "prompt_tokens"]).to_pylist()
    return {row["question_id"]: row["prompt_tokens"] for row in rows}
