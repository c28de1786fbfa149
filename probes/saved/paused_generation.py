"""Run transformers' `generate` in a thread that pauses after each token until the next one is requested.

The model runs only while the caller waits for a token. It stops as soon as the iterator is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

from torch import Tensor


def tokens_of(generate: Callable[[Streamer], None]) -> Generator[int]:
    """Yield the tokens that `generate` draws. It is called in a new thread, with a streamer for transformers.

    Exceptions in `generate` are raised here. When the iterator is closed, `generate` ends with an exception.
    """
    streamer = Streamer()
    thread = threading.Thread(target=streamer.run, args=(generate,), daemon=True)
    thread.start()
    try:
        while True:
            streamer.paused.acquire()
            if streamer.is_finished:
                break
            yield streamer.token
            streamer.resume.release()
    finally:  # reached even if the stream is closed or interrupted
        streamer.is_closed = True
        streamer.resume.release()
        thread.join()
    if streamer.error is not None:
        raise streamer.error


class _Closed(BaseException):
    """Ends `generate` after the stream was closed."""


class Streamer:
    """Streamer for transformers' `generate` that pauses the thread of `generate` after each token.

    Attributes:
        token: The token that was drawn last.
        is_finished: Whether `generate` has returned or raised an exception.
        is_closed: Whether `generate` should end when it is resumed.
        error: Exception raised by `generate`.
        paused: Semaphore that is released when the thread pauses.
        resume: Semaphore that is released to resume the thread.
    """

    def __init__(self) -> None:
        self.token, self.is_finished, self.is_closed = -1, False, False
        self.error: BaseException | None = None
        self.paused, self.resume = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, generate: Callable[[Streamer], None]) -> None:
        """Call `generate` with this streamer."""
        try:
            generate(self)
        except _Closed:
            pass
        except BaseException as error:  # raised again in the caller's thread
            self.error = error
        finally:
            self.is_finished = True
            self.paused.release()

    def put(self, tokens: Tensor) -> None:
        """Accept the prompt [1, token], or a drawn token [1]."""
        if tokens.dim() == 1:
            self.token = int(tokens)
            self.paused.release()
            self.resume.acquire()
            if self.is_closed:
                raise _Closed

    def end(self) -> None:
        """Accept the end of the answer."""
