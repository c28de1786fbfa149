"""One address of a server: connections, error handling, and pauses after repeated failures."""

import asyncio
import email.utils
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from extract.errors import InputError
from extract.sampling.server.policy import Server
from extract.sampling.server.protocol import BrokenReply, Reply, Request, read_reply, server_words
from extract.sampling.server.redact import without_key
from extract.text import one_line

#: Number of consecutive failures after which an endpoint is paused, and the longest pause in seconds.
_MOST_FAILURES, _LONGEST_REST = 3, 30.0
#: Connections per pool. httpcore scans all connections of a pool twice per request, so a large pool would be slow.
_POOL = 8
#: Connection timeout in seconds, long enough for a busy server.
_CONNECT = 30.0
#: Maximum time in seconds to find out whether a server still replies.
_LONGEST_CHECK = 10.0
#: Statuses that are retried in addition to all 5xx, and statuses that concern only one request.
_TRANSIENT, _ABOUT_REQUEST = (408, 409, 425, 429), (400, 413, 422)


class RejectedRequest(InputError):
    """Raised if the server rejects a request's content, for example an overlong prompt."""


class Failure(Exception):
    """Raised if an attempt fails but can be retried.

    Args:
        reason: Why the attempt failed.
        reached: Whether the server was reached.
        wait: Number of seconds to wait, as requested by the server.
        brief: Reason without the server's text, which may quote a question.
        crashed: Whether the server may have crashed.
    """

    def __init__(
        self,
        reason: str,
        reached: bool = True,
        wait: float | None = None,
        brief: str | None = None,
        crashed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reached, self.wait, self.brief, self.crashed = reached, wait, brief or reason, crashed


class Endpoint:
    """One server address with several connection pools.

    After repeated failures, an endpoint is paused until `rests_until` (on the `time.monotonic` clock). Each further
    failure doubles the pause, up to a limit.
    """

    def __init__(self, server: Server, url: str) -> None:
        self.server, self.url, self.rests_until, self._failures, self._key = server, url, 0.0, 0, _api_key(server)
        clients = _clients(server, url, self._key or "none")
        self._in_flight = dict.fromkeys(clients, 0)  # attempts in flight, by pool

    @property
    def in_flight(self) -> int:
        """Number of attempts in flight."""
        return sum(self._in_flight.values())

    async def ask(self, request: Request, model: str) -> Reply:
        """Make one attempt at a request.

        Raises a `Failure` if a failed attempt can be retried, and an `InputError` if it can't.
        """
        api = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[api] += 1
        try:
            reply = await self._post(api, request, model)
        except Failure:
            now = time.monotonic()
            if now >= self.rests_until:  # during a pause, failures of earlier attempts don't count
                self._failures += 1
                if self._failures >= _MOST_FAILURES:
                    self.rests_until = now + min(_LONGEST_REST, 2.0 ** (self._failures - _MOST_FAILURES))
            raise
        finally:
            self._in_flight[api] -= 1
        self._failures, self.rests_until = 0, 0.0
        return reply

    async def model_names(self) -> set[str]:
        """Names of the models that the server lists, if any."""
        try:
            async with asyncio.timeout(self.server.timeout):
                content = await next(iter(self._in_flight)).get("/models", cast_to=bytes)
            return {model["id"] for model in json.loads(content)["data"]}
        except Exception:  # servers can send anything, and the list is optional
            return set()

    async def is_up(self) -> bool:
        """Whether a server replies at this address, with any status."""
        import openai

        try:
            async with asyncio.timeout(min(self.server.timeout, _LONGEST_CHECK)):
                await next(iter(self._in_flight)).get("/models", cast_to=bytes)
        except openai.APIStatusError:  # the list of models is optional
            return True
        except Exception:  # openai and its HTTP library raise many exception types for invalid HTTP
            return False
        return True

    async def close(self) -> None:
        """Close all connections."""
        for api in self._in_flight:
            await api.close()

    async def _post(self, api: Any, request: Request, model: str) -> Reply:
        """Send a request, and parse the body of the reply."""
        import openai

        try:
            async with asyncio.timeout(self.server.timeout):  # openai's own timeout restarts with every byte
                content = await api.post(request.path, cast_to=bytes, body=request.body(model))
            return read_reply(content, request)
        except BrokenReply as broken:
            raise Failure(self.line(f"{self.url} sent {broken}"), brief=f"{self.url} sent an invalid reply") from None
        except (TimeoutError, openai.APITimeoutError):
            raise Failure(f"{self.url} did not answer within {self.server.timeout:g} seconds") from None
        except openai.APIStatusError as error:
            text = error.response.content.decode("utf-8", "replace")
            raise self._failure_of_status(error.status_code, error.response.headers, text) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            words = self.line(str(cause or error)) or type(cause).__name__
            reached = "Connect" not in type(cause).__name__
            raise Failure(f"{self.url}: {words}", reached=reached, crashed=True) from None
        except Exception as error:  # openai and its HTTP library raise many exception types for invalid HTTP
            raise Failure(f"{self.url} sent an unreadable reply ({type(error).__name__})") from None

    def _failure_of_status(self, status: int, headers: Mapping[str, str], text: str) -> Exception:
        """Return a `Failure` for a transient status, and an `InputError` otherwise."""
        try:
            words = server_words(json.loads(text)) or text
        except (ValueError, RecursionError):
            words = text
        words = self.line(words or "no reason given").rstrip(".")
        out_of_credit = "insufficient_quota" in text  # a 429 that no retry can fix
        if (status in _TRANSIENT or status >= 500) and not out_of_credit:
            brief = f"{self.url} answers with status {status}"
            return Failure(f"status {status}: {words}", wait=_retry_after(headers), brief=brief, crashed=status == 500)
        next_step = "Correct the setting that causes this: `model`, a `policy` option or `server.extra_body`."
        if status in (401, 403):
            next_step = f"Set the environment variable {self.server.api_key_env} to a valid API key."
        elif status == 404:
            next_step = "Set `model` to the model's name on the server, and `server.url` to an address ending in /v1."
        elif 300 <= status < 400:
            words = f"moved to {self.line(headers.get('location', 'elsewhere'))}"
            next_step = "Set `server.url` to the new address."
        kind = RejectedRequest if status in _ABOUT_REQUEST else InputError
        return kind(f"Expected {self.url} to answer, but it returned status {status}: {words}. {next_step}")

    def line(self, words: str) -> str:
        """Convert text from the server to one line, and remove the API key."""
        return without_key(one_line(words, 300), self._key)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the wait in seconds from the Retry-After header, or None."""
    given = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(given))
    with suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    return None


def _api_key(server: Server) -> str | None:
    key = os.environ.get(server.api_key_env, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise InputError(
            f"Expected the environment variable {server.api_key_env} to contain only printable ASCII characters, but "
            "it contains other characters. Set it to the API key alone."
        )
    return key or None


def import_package(name: str) -> ModuleType:
    """Import a package of the `server` extra. Raises an `InputError` if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            f"Expected the package {name} to be installed for the server sampler, but it is not. Run: pip install "
            "'confidence-probes[server]'"
        ) from None


def _clients(server: Server, url: str, key: str) -> list[Any]:
    """Create the clients for one address, each with its own connection pool."""
    openai = import_package("openai")
    # httpx or httpx2, depending on the version of openai
    http = import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])
    limits = http.Limits(max_connections=_POOL, max_keepalive_connections=_POOL)
    timeout = http.Timeout(server.timeout, connect=min(_CONNECT, server.timeout))
    certificates, clients = _certificates(http), []
    for _ in range(math.ceil(server.max_concurrency / _POOL)):
        try:
            api = openai.AsyncOpenAI(
                base_url=url,
                api_key=key,
                max_retries=0,
                timeout=timeout,
                default_headers={"Authorization": f"Bearer {key}"},  # overrides OPENAI_CUSTOM_HEADERS
                http_client=openai.DefaultAsyncHttpxClient(verify=certificates, limits=limits, follow_redirects=False),
            )
        except (ImportError, ValueError, http.InvalidURL) as error:  # the error's text can contain a proxy password
            raise InputError(
                f"Expected {url} and its proxy to be valid addresses, but one of them is not ({type(error).__name__}). "
                "Check `server.url`, ALL_PROXY, HTTP_PROXY and HTTPS_PROXY. For a SOCKS proxy, run: pip install socksio"
            ) from None
        api.organization = api.project = api.admin_api_key = None
        clients.append(api)
    return clients


@cache  # loading certificates is slow
def _certificates(http: ModuleType) -> Any:
    """SSL context shared by all clients."""
    return http.create_ssl_context()


def allow_open_files(n: int) -> None:
    """Raise the soft limit on open files to allow a total of `n` connections and log files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    (soft, hard), needed = resource.getrlimit(resource.RLIMIT_NOFILE), n + 50  # Python also opens files
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"Expected a limit of at least {needed} open files and connections, but the limit is {hard}. "
            "Lower `server.max_concurrency`, or raise the limit (`ulimit -n`)."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
