"""Command line of ``python -m applications COMMAND``."""

from collections.abc import Callable
from typing import Any

from applications import commands
from extract.running.cli import run
from extract.running.exit import end_process

#: Functions of `applications.commands` by their names on the command line.
COMMANDS: dict[str, Callable[..., Any]] = {
    "passk": commands.passk,
    "budget": commands.budget,
    "vote": commands.vote,
}

if __name__ == "__main__":
    end_process(lambda: run(COMMANDS, "python -m applications"))
