"""Run `python -m extract` in processes that are forked from a process that has already imported the package.

Importing torch and transformers takes several times as long as most commands of the tests.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

CONTEXT = multiprocessing.get_context("forkserver")
LAZY = ["transformers.models.llama.modeling_llama", "openai.resources.chat", "openai.resources.completions"]
CONTEXT.set_forkserver_preload(["extract.__main__", "tests.helpers.forking", *LAZY])


def run_program(options: Sequence[str], said: str) -> None:
    """Run `python -m extract` with options, and write its standard error to the file `said`."""
    os.dup2(os.open(said, os.O_WRONLY), sys.stderr.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, although the parent may do so
    torch.set_num_threads(1)
    sys.argv = ["extract", *options]
    runpy.run_module("extract", run_name="__main__", alter_sys=True)


class Forked:
    """A forked process with the methods of `subprocess.Popen`. Its standard error is text."""

    def __init__(self, options: Sequence[str]) -> None:
        descriptor, self.said = tempfile.mkstemp()
        os.close(descriptor)
        self.process = CONTEXT.Process(target=run_program, args=(list(options), self.said))
        self.process.start()

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.process.pid is not None and self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the process, and return an empty text and its standard error."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, "the process still runs"
        text = Path(self.said).read_text(encoding="utf-8")
        Path(self.said).unlink()
        return "", text
