"""How a command ends: its exit status, and one line on standard error when it did not come to its end."""

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
    """The process was asked to end by SIGTERM."""


def exit_status(command: Callable[[], object]) -> int:
    """Run a command to its end, or say in one line why it stopped.

    Returns:
        0; 2 after what a user can put right; 130 after Ctrl-C and 143 after SIGTERM, as shells count them.
    """
    try:
        with _terminated():
            command()
    except InputError as error:
        return _say(str(error), 2)
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        return _stopped(end.__context__)  # Lightning makes this of it
    except BrokenPipeError:  # whoever read what is printed has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python says so again at its end
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a folder that may not be written, …
        if error.strerror is None:
            raise
        where = f"{str(error.filename)!r}: " if error.filename else ""
        return _say(f"{where}{error.strerror}. {_GO_ON}", 2)
    except ValueError as error:  # an InputError inside the parser comes wrapped
        if not isinstance(error.__cause__, InputError):
            raise
        return _say(str(error.__cause__), 2)
    return 0


def end_process(run: Callable[[], int]) -> NoReturn:
    """End the process with the status that `run` gives. Who presses Ctrl-C again meanwhile gets no traceback for it.

    Args:
        run: Ends with `exit_status`.
    """
    try:
        status = run()
    except KeyboardInterrupt:  # one more, while the first one was being dealt with
        status = 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _stopped(stop: KeyboardInterrupt) -> int:
    word, number = ("terminated", signal.SIGTERM) if isinstance(stop, Terminated) else ("interrupted", signal.SIGINT)
    return _say(f"{word}. {_GO_ON}", 128 + number)


def _say(line: str, status: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return status


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that files in the making are taken away."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
