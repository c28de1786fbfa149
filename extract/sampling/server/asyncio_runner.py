"""Running asynchronous work from a command: to its end, or until a signal asks for one."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

from extract.running.exit import Terminated

Result = TypeVar("Result")


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run asynchronous work to its end; where a loop runs already, as in a notebook, in a thread of its own.

    Ctrl-C and SIGTERM cancel it, so that it closes what it has open, and are raised after that; further ones change
    nothing meanwhile. An exception out of a signal handler would end whatever stood at that moment in the loop instead.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
        Terminated: After SIGTERM.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_run, work).result()


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # only the main thread may say what signals do
    asked: list[int] = []
    runner = asyncio.Runner()
    loop, tasks = runner.get_loop(), list[asyncio.Task[Result]]()

    def end(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1 and not loop.is_closed():
            for task in tasks:
                loop.call_soon_threadsafe(task.cancel)  # which also wakes the loop

    async def begun() -> Result:
        tasks.append(asyncio.ensure_future(work))
        if asked:
            tasks[0].cancel()
        return await tasks[0]

    heeded = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, end) for one in heeded}
    try:
        with runner:
            return runner.run(begun())
    except asyncio.CancelledError:
        if asked:
            raise Terminated if asked[0] == signal.SIGTERM else KeyboardInterrupt from None
        raise
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
