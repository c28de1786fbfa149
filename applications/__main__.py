"""Command line of ``python -m applications COMMAND``."""

from collections.abc import Callable
from typing import Any

from applications.budget.command import budget
from applications.passk.command import passk
from applications.voting.command import vote
from extract.running.cli import run
from extract.running.exit import end_process

#: Commands by name. Each application defines its command in its module `command`.
COMMANDS: dict[str, Callable[..., Any]] = {
    "passk": passk,
    "budget": budget,
    "vote": vote,
}

if __name__ == "__main__":
    end_process(lambda: run(COMMANDS, "python -m applications"))
