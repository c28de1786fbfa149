"""Command line of ``python -m probes COMMAND``."""

from collections.abc import Callable
from typing import Any

from extract.running.cli import run
from extract.running.exit import end_process
from probes import commands
from probes.saved.priors import priors
from probes.saved.scoring import score
from probes.serving.command import serve

COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": commands.compare,
    "transfer": commands.transfer,
    "audit": commands.audit,
    "curve": commands.curve,
    "signals": commands.signals,
    "pictures": commands.pictures,
    "priors": priors,
    "score": score,
    "serve": serve,
}

if __name__ == "__main__":
    end_process(lambda: run(COMMANDS, "python -m probes"))
