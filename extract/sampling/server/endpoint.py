"""One address of a server: its connections, what its failures mean, and when it rests."""

import asyncio
import email.utils
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from extract.errors import InputError
from extract.sampling.server.policy import Server
from extract.sampling.server.protocol import BrokenReply, Reply, Request, read_reply, server_words
from extract.sampling.server.redact import without_key
from extract.text import one_line

#: Failures in a row after which an endpoint rests, and its longest rest in seconds.
_MOST_FAILURES, _LONGEST_REST = 3, 30.0
#: Connections of one pool. httpcore scans all connections of a pool twice for each request, so that one pool of 500
#: would be slower than the server.
_POOL = 8
#: Seconds to connect; a busy server accepts late.
_CONNECT = 30.0
#: Statuses besides 5xx after which the same request may be answered, and those that are about the request itself.
_TRANSIENT, _ABOUT_REQUEST = (408, 409, 425, 429), (400, 413, 422)


class RejectedRequest(InputError):
    """The server rejects what this very request holds, for example a prompt that is too long."""


class Failure(Exception):
    """A failed attempt that may be repeated.

    Args:
        reached: Whether a server was there at all.
        wait: Seconds that the server asks to wait.
        brief: The reason without the server's words, which may repeat a question; None where it has none of them.
    """

    def __init__(self, reason: str, reached: bool = True, wait: float | None = None, brief: str | None = None) -> None:
        super().__init__(reason)
        self.reached, self.wait, self.brief = reached, wait, brief or reason


class Endpoint:
    """An address, with a few pools of connections. It rests after some failures in a row, ever longer.

    Nothing that it returns or raises holds the key, but for the texts of answers.

    Attributes:
        rests_until: Time of `time.monotonic` before which others are preferred.

    Raises:
        InputError: The package openai is missing, or the key, the address or a proxy's can't be used.
    """

    def __init__(self, server: Server, url: str) -> None:
        self.server, self.url, self.rests_until, self._failures, self._key = server, url, 0.0, 0, _api_key(server)
        clients = _clients(server, url, self._key or "none")
        self._in_flight = dict.fromkeys(clients, 0)  # attempts under way of each pool

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return sum(self._in_flight.values())

    async def ask(self, request: Request, model: str) -> Reply:
        """One attempt at a request.

        Raises:
            Failure: It may be repeated.
            RejectedRequest: The server does not take this request.
            InputError: No retry of any request mends it.
        """
        api = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[api] += 1
        try:
            reply = await self._post(api, request, model)
        except Failure:
            now = time.monotonic()
            if now >= self.rests_until:  # failures of attempts from before the rest don't count
                self._failures += 1
                if self._failures >= _MOST_FAILURES:
                    self.rests_until = now + min(_LONGEST_REST, 2.0 ** (self._failures - _MOST_FAILURES))
            raise
        finally:
            self._in_flight[api] -= 1
        self._failures, self.rests_until = 0, 0.0
        return reply

    async def model_names(self) -> set[str]:
        """Names of the models that the server lists; none where it lists nothing."""
        try:
            async with asyncio.timeout(self.server.timeout):
                content = await next(iter(self._in_flight)).get("/models", cast_to=bytes)
            return {model["id"] for model in json.loads(content)["data"]}
        except Exception:  # whatever a server may send; the list is only a help
            return set()

    async def close(self) -> None:
        """Close all connections."""
        for api in self._in_flight:
            await api.close()

    async def _post(self, api: Any, request: Request, model: str) -> Reply:
        """The reply, read from its bytes because the openai client checks no reply's form."""
        import openai

        try:
            async with asyncio.timeout(self.server.timeout):  # openai's own begins anew with every byte
                content = await api.post(request.path, cast_to=bytes, body=request.body(model))
            reply = read_reply(content, request)
            return replace(reply, model=reply.model and self._line(reply.model))
        except BrokenReply as broken:
            raise Failure(self._line(f"{self.url} sent {broken}"), brief=f"{self.url} sent no whole reply") from None
        except (TimeoutError, openai.APITimeoutError):
            raise Failure(f"{self.url} did not answer within {self.server.timeout:g} seconds") from None
        except openai.APIStatusError as error:
            text = error.response.content.decode("utf-8", "replace")
            raise self._failure_of_status(error.status_code, error.response.headers, text) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            words = self._line(str(cause or error)) or type(cause).__name__
            raise Failure(f"{self.url}: {words}", reached="Connect" not in type(cause).__name__) from None
        except Exception as error:  # what openai and the layer under it make of a reply that is no proper HTTP
            raise Failure(f"{self.url} sent what can't be read ({type(error).__name__})") from None

    def _failure_of_status(self, status: int, headers: Mapping[str, str], text: str) -> Exception:
        """What a status other than 200 means: a `Failure`, or an `InputError` that no retry mends."""
        try:
            words = server_words(json.loads(text)) or text
        except (ValueError, RecursionError):
            words = text
        words = self._line(words or "no reason given").rstrip(".")
        out_of_credit = "insufficient_quota" in text  # a 429 that waiting does not mend
        if (status in _TRANSIENT or status >= 500) and not out_of_credit:
            brief = f"{self.url} answers with status {status}"
            return Failure(f"status {status}: {words}", wait=_retry_after(headers), brief=brief)
        next_step = "Change what these words name: the model, an option of the policy, or `server.extra_body`."
        if status in (401, 403):
            next_step = f"Put a valid key into the environment variable {self.server.api_key_env}."
        elif status == 404:
            next_step = "Give the name that the server knows as `model`, and an address up to /v1 as `server.url`."
        elif 300 <= status < 400:
            words = f"it moved to {self._line(headers.get('location', 'elsewhere'))}"
            next_step = "Give the new address as `server.url`."
        kind = RejectedRequest if status in _ABOUT_REQUEST else InputError
        return kind(f"Expected {self.url} to answer, but it refuses with status {status}: {words}. {next_step}")

    def _line(self, words: str) -> str:
        """A server's words on one line without the key."""
        return without_key(one_line(words, 300), self._key)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None without one."""
    given = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(given))
    with suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    return None


def _api_key(server: Server) -> str | None:
    """The key from the environment; None without one."""
    key = os.environ.get(server.api_key_env, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise InputError(
            f"Expected the environment variable {server.api_key_env} to hold a key of plain letters and signs, but it "
            "has others. Set it to the key alone."
        )
    return key or None


def import_package(name: str) -> ModuleType:
    """A package of the extra `server`.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            f"Expected the package {name}, which the server sampler needs, but it is not installed. Run: pip install "
            "'confidence-probes[server]'"
        ) from None


def _clients(server: Server, url: str, key: str) -> list[Any]:
    """Clients for one address, each with a few connections, which take nothing from openai's environment variables."""
    openai = import_package("openai")
    # httpx or httpx2, whichever this openai is built on
    http = import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])
    limits = http.Limits(max_connections=_POOL, max_keepalive_connections=_POOL)
    timeout = http.Timeout(server.timeout, connect=min(_CONNECT, server.timeout))
    ssl_context = http.create_ssl_context()  # once, because loading certificates is slow
    clients = []
    for _ in range(math.ceil(server.max_concurrency / _POOL)):
        try:
            api = openai.AsyncOpenAI(
                base_url=url,
                api_key=key,
                max_retries=0,
                timeout=timeout,
                default_headers={"Authorization": f"Bearer {key}"},  # before one of OPENAI_CUSTOM_HEADERS
                http_client=openai.DefaultAsyncHttpxClient(limits=limits, follow_redirects=False, verify=ssl_context),
            )
        except (ImportError, ValueError, http.InvalidURL) as error:  # its words may hold a proxy's password
            raise InputError(
                f"Expected to connect to {url}, but its address or a proxy's can't be used ({type(error).__name__}). "
                "Look at `server.url` and ALL_PROXY, HTTP_PROXY and HTTPS_PROXY; SOCKS takes: pip install socksio"
            ) from None
        api.organization = api.project = api.admin_api_key = None
        clients.append(api)
    return clients


def allow_open_files(n: int) -> None:
    """Raise the soft limit on open files to `n` connections and logs, as far as the hard limit allows.

    Raises:
        InputError: The hard limit is too low.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    (soft, hard), needed = resource.getrlimit(resource.RLIMIT_NOFILE), n + 50  # Python and its libraries open some too
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"Expected to open {needed} files and connections at a time, but this process may open {hard}. Ask for "
            "fewer at a time with `server.max_concurrency`, or raise the limit (`ulimit -n`)."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
