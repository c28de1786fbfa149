"""Exit status of a command, and one line on standard error when it fails or is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from extract.errors import InputError

_GO_ON = "What is finished is kept; run the same command again to go on."


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


def exit_status(command: Callable[[], object]) -> int:
    """Run a command and print one line if it fails for a reason that the user can correct, or is stopped.

    Returns:
        0; 2 for an `InputError` or an error of the operating system; 130 after Ctrl-C and 143 after SIGTERM, as in
        shells.
    """
    try:
        with _sigterm_raises():
            command()
        return 0
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # Lightning converts it
            return _stopped(end.__context__)
        raise
    except BrokenPipeError:  # the reader of our output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it exits
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a folder that may not be written, …
        if error.strerror is None:
            raise
        return _print_error(f"{f'{error.filename!r}: ' if error.filename else ''}{error.strerror}. {_GO_ON}", 2)
    except ValueError as error:  # an InputError that was raised inside the parser is the cause of another error
        message = error if isinstance(error, InputError) else error.__cause__
        if not isinstance(message, InputError):
            raise
        return _print_error(str(message), 2)


def end_process(run: Callable[[], int]) -> NoReturn:
    """End the process with the status that `run`, which uses `exit_status`, returns. A second Ctrl-C exits silently."""
    try:
        status = run()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _stopped(stop: KeyboardInterrupt) -> int:
    word, number = ("terminated", signal.SIGTERM) if isinstance(stop, Terminated) else ("interrupted", signal.SIGINT)
    return _print_error(f"{word}. {_GO_ON}", 128 + number)


def _print_error(line: str, status: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return status


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `Terminated`, so that unfinished files are removed as after Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
