"""``python -m extract COMMAND``: sample, grade, read, ask, inspect, show, verify."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from extract import commands
from extract.asking.commands import ask
from extract.cli import run
from extract.pages.commands import show

COMMANDS: dict[str, Callable[..., Any]] = {
    "sample": commands.sample,
    "grade": commands.grade,
    "read": commands.read,
    "ask": ask,
    "inspect": commands.inspect,
    "show": show,
    "verify": commands.verify,
}

if __name__ == "__main__":
    sys.exit(run(COMMANDS, "python -m extract"))
