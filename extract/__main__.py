"""Command line of ``python -m extract COMMAND``."""

from collections.abc import Callable
from typing import Any

from extract import commands
from extract.likelihood.command import likelihood
from extract.reword import reword
from extract.running.cli import run
from extract.running.exit import end_process
from extract.sampling.imported.command import import_log
from extract.sampling.temperature_grid import each_store
from extract.store.merge import merge
from extract.store.verify import verify
from extract.viewing.inspection import inspect
from extract.viewing.show import show

COMMANDS: dict[str, Callable[..., Any]] = {
    "sample": commands.sample_family,
    "import": import_log,
    "reword": reword,
    "grade": each_store(commands.grade),
    "read": each_store(commands.read),
    "ask": each_store(commands.ask),
    "likelihood": likelihood,
    "inspect": inspect,
    "show": each_store(show),
    "merge": merge,
    "verify": each_store(verify),
}

if __name__ == "__main__":
    end_process(lambda: run(COMMANDS, "python -m extract"))
