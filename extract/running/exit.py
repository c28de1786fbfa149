"""Exit status of commands, and one-line messages for failures."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, NoReturn, TypeVar

from extract.errors import InputError

Result = TypeVar("Result")
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REPEAT_SECONDS = 1.0  # terminals and impatient users may send Ctrl-C several times in a row
_GO_ON = "Finished work is kept. Run the same command again to continue."


class Terminated(KeyboardInterrupt):
    """Raised when the process receives SIGTERM."""


def exit_status(command: Callable[[], object]) -> int:
    """Run a command, print its errors on one line, and return its exit status.

    Returns:
        0 on success, 2 after an `InputError` or an operating system error, 130 after Ctrl-C, and 141 if the reader of
        the output has exited. Inside `end_process`, 143 after SIGTERM.
    """
    try:
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
    """Exit with the status that `run` returns.

    The first Ctrl-C or SIGTERM raises `KeyboardInterrupt` or `Terminated`. Further signals within a second are ignored,
    so that they cannot interrupt the cleanup. A later signal ends the process at once.
    """
    first: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first.append(now)
        if len(first) == 1:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if now - first[0] > _REPEAT_SECONDS:
            os._exit(128 + number)

    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        status = run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # existing objects skip the final garbage collection, which saves a second
    sys.exit(status)


def _stopped(stop: KeyboardInterrupt) -> int:
    word, number = ("terminated", signal.SIGTERM) if isinstance(stop, Terminated) else ("interrupted", signal.SIGINT)
    return _print_error(f"{word}. {_GO_ON}", 128 + number)


def _print_error(line: str, status: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return status


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to completion. If an event loop is already running, run the coroutine in a new thread.

    In the main thread, Ctrl-C or SIGTERM cancels the coroutine. Later signals are ignored. The signal that cancelled
    the coroutine has its usual effect once the coroutine has ended.
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
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}

    async def cancelled_by_signals() -> Result:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()

        def cancel(number: int, frame: FrameType | None) -> None:
            received.append(number)
            if len(received) == 1 and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)  # also wakes the loop

        for number, handler in handlers.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, cancel)
        return await task

    try:
        result = asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
        raise KeyboardInterrupt  # the handler has returned
    return result
