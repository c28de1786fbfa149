"""Why an attempt at a request failed: whether another may do better, when, and what to tell who reads it."""

from __future__ import annotations

import email.utils
import json
import random
import time
from collections.abc import Mapping

from extract.errors import InputError
from extract.sampling.server.options import Server
from extract.sampling.server.replies import server_words
from extract.text import one_line

#: Statuses besides 5xx after which the same request may be answered.
_PASSING = (408, 409, 425, 429)
#: Statuses that are about what the request holds.
_OF_REQUEST = (400, 413, 422)
#: Longest wait between two attempts, in seconds; without and with the server's word for it.
_LONGEST_WAIT, _LONGEST_ASKED_WAIT = 30.0, 120.0


class RefusedRequest(InputError):
    """The server refuses what this very request holds, for example a prompt that is too long; others it may answer."""


class Failure(Exception):
    """A failed attempt that may be repeated.

    Args:
        reason: What happened.
        reached: Whether a server was there at all.
        wait: Seconds that the server asks to wait; None where it asks for nothing.
        brief: The same without the server's own words, which may repeat a question; None where there are none of them.
    """

    def __init__(self, reason: str, reached: bool = True, wait: float | None = None, brief: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.reached, self.wait, self.brief = reason, reached, wait, brief or reason


def back_off(failures: int, wait: float | None, chance: random.Random) -> float:
    """Seconds to wait after so many failures of a request.

    Full jitter: uniform from 0 to a limit that doubles, so that requests that failed together don't return together
    (Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015). What the server asks for comes on top.

    Args:
        failures: Failed attempts so far, at least 1.
        wait: What the server asked for.
        chance: Source of the jitter.
    """
    jitter = chance.uniform(0, min(_LONGEST_WAIT, 0.5 * 2 ** min(failures - 1, 30)))
    return jitter if wait is None else min(wait, _LONGEST_ASKED_WAIT) + min(jitter, 1 + wait)


def refused(status: int, headers: Mapping[str, str], text: str, server: Server, url: str) -> Failure:
    """What a status other than 200 means.

    Args:
        status: HTTP status.
        headers: The reply's headers, case-insensitive.
        text: Its body.
        server: Names the variable that holds the key.
        url: The server's address.

    Raises:
        RefusedRequest: No retry mends it, and it is about this request.
        InputError: No retry of any request mends it.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    words = one_line(server_words(content) or text or "no reason given", 300).rstrip(".")
    spent = "insufficient_quota" in text  # a 429 that waiting does not mend
    if (status in _PASSING or status >= 500) and not spent:
        return Failure(
            f"status {status}: {words}", wait=_asked_wait(headers), brief=f"{url} answers with status {status}"
        )
    match status:
        case 401 | 403:
            next_step = f"Put a key that it takes into the environment variable {server.key_variable}."
        case 404:
            next_step = "Give the model's name as the server knows it with --model, and with --server.url an address that ends before /chat/completions, most often in /v1."
        case _ if 300 <= status < 400:
            words = f"it moved to {one_line(headers.get('location', 'elsewhere'), 300)}"
            next_step = "Give the new address with --server.url."
        case _:
            next_step = (
                "Change what these words name: the model, an option of the policy, or a field of --server.extra."
            )
    kind = RefusedRequest if status in _OF_REQUEST else InputError
    raise kind(f"Expected {url} to answer, but it refuses with status {status}: {words}. {next_step}")


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header: a number, or a date."""
    given = headers.get("retry-after")
    if given is None:
        return None
    try:
        return max(0.0, float(given))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
