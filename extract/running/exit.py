"""Exit status of commands, and one-line messages for failures."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

from extract.errors import InputError

Result = TypeVar("Result")
_GO_ON = "Finished work is kept. Run the same command again to continue."


class Terminated(KeyboardInterrupt):
    """Raised when the process receives SIGTERM."""


def exit_status(command: Callable[[], object]) -> int:
    """Run a command, print its errors on one line, and return its exit status.

    Returns:
        0 on success, 2 after an `InputError` or an operating system error, 130 after Ctrl-C, and 143 after SIGTERM.
    """
    try:
        with _sigterm_raises():
            command()
        return 0
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into SystemExit
            return _stopped(end.__context__)
        raise
    except BrokenPipeError:  # the reader of the output, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no error message at exit
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a read-only folder, …
        if error.strerror is None:
            raise
        return _print_error(f"{f'{error.filename!r}: ' if error.filename else ''}{error.strerror}. {_GO_ON}", 2)
    except ValueError as error:  # the parser wraps an InputError in another error
        message = error if isinstance(error, InputError) else error.__cause__
        if not isinstance(message, InputError):
            raise
        return _print_error(str(message), 2)


def end_process(run: Callable[[], int]) -> NoReturn:
    """Exit with the status that `run` returns. After a second Ctrl-C, exit without a traceback."""
    try:
        status = run()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # existing objects skip the final garbage collection, which saves a second
    sys.exit(status)


def _stopped(stop: KeyboardInterrupt) -> int:
    word, number = ("terminated", signal.SIGTERM) if isinstance(stop, Terminated) else ("interrupted", signal.SIGINT)
    return _print_error(f"{word}. {_GO_ON}", 128 + number)


def _print_error(line: str, status: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return status


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM within the context."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to completion. If an event loop is already running, run the coroutine in a new thread.

    Ctrl-C or SIGTERM cancels the coroutine and then raises `KeyboardInterrupt` or `Terminated`. Later signals are
    ignored.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_async(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_run_async, work).result()


def _run_async(work: Coroutine[Any, Any, Result]) -> Result:
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # only the main thread can handle signals
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    async def cancelled_by_signals() -> Result:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()

        def cancel(number: int) -> None:
            received.append(number)
            if len(received) == 1:
                task.cancel()

        for number in before:
            loop.add_signal_handler(number, cancel, number)
        try:
            return await task
        finally:
            signal.set_wakeup_fd(-1)  # no error message if a signal arrives while the loop closes

    try:
        return asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError:
        if received:
            raise Terminated if received[0] == signal.SIGTERM else KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
