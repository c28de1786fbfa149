"""``python -m probes COMMAND``: compare, transfer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from extract.cli import run
from probes import commands

COMMANDS: dict[str, Callable[..., Any]] = {"compare": commands.compare, "transfer": commands.transfer}

if __name__ == "__main__":
    sys.exit(run(COMMANDS, "python -m probes"))
