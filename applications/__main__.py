"""Command line of ``python -m applications COMMAND``."""

from collections.abc import Callable
from typing import Any

from applications.background.command import background_temperature
from applications.budget.command import budget
from applications.decisions.command import decide
from applications.domains.command import domains
from applications.models.command import models
from applications.passk.command import passk
from applications.phrasing.command import phrasing
from applications.voting.command import vote
from extract.running.cli import run
from extract.running.exit import end_process

#: Commands by name. Each application defines its command in its module `command`.
COMMANDS: dict[str, Callable[..., Any]] = {
    "passk": passk,
    "budget": budget,
    "vote": vote,
    "decide": decide,
    "domains": domains,
    "models": models,
    "phrasing": phrasing,
    "background-temperature": background_temperature,
}

if __name__ == "__main__":
    end_process(lambda: run(COMMANDS, "python -m applications"))
