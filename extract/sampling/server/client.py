"""The client: many requests in flight to one server or several, each tried again until it is answered."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from extract.errors import InputError
from extract.sampling.server.budget import BudgetSpent, Spending
from extract.sampling.server.failures import Failure, RefusedRequest, back_off, refused
from extract.sampling.server.options import Server
from extract.sampling.server.protocol import Choice, Reply, Request
from extract.sampling.server.redact import without_key
from extract.sampling.server.replies import BrokenReply, names_listed, read_reply, same_model
from extract.text import one_line

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["BudgetSpent", "Choice", "Client", "RefusedRequest", "Reply", "Request", "Spending", "Stopped", "Unanswered"]

#: So many requests given up in a row, with no reply between them, and the server counts as gone.
_MOST_GIVEN_UP = 16
#: Failures in a row after which a server of several rests, and its longest rest in seconds.
_MOST_FAILURES, _LONGEST_REST = 3, 30.0
#: Connections of one pool. httpcore looks at each of a pool's connections twice a request, so that one pool of 500
#: would be slower than the server.
_POOL = 8
#: Seconds to connect; a server that is busy accepts late.
_CONNECT = 30.0


class Unanswered(Exception):
    """Every attempt at a request failed; its text is one line that says the last reason. Others may still be answered."""


class Stopped(Unanswered):
    """The client was told to stop before the request was answered."""


@dataclass
class _Pool:
    """A few connections to an address, and how many attempts are under way there."""

    api: AsyncOpenAI
    in_flight: int = 0


@dataclass
class _Endpoint:
    """One address: how many attempts are under way there, and how it has failed of late."""

    url: str
    pools: list[_Pool]
    in_flight: int = 0
    failures: int = 0
    rests_until: float = 0.0

    def failed(self) -> None:
        """Rest after some failures in a row, ever longer; failures of attempts from before the rest don't count."""
        now = time.monotonic()
        if now >= self.rests_until:
            self.failures += 1
            if self.failures >= _MOST_FAILURES:
                self.rests_until = now + min(_LONGEST_REST, 2.0 ** (self.failures - _MOST_FAILURES))

    def answered(self) -> None:
        """It is well."""
        self.failures, self.rests_until = 0, 0.0


class Client:
    """Asks a server. At most `server.in_flight` attempts are under way; a request that waits to be tried again is none.

    Args:
        server: Where and how.
        model: What the server calls the model.
        spend: Counts what is spent, and holds the budgets.
        known_as: Names of the model in replies, as the trial has found them; another name is then refused. Nothing is
            checked where it is empty.
        sleep: Waits between attempts, seconds.

    Raises:
        InputError: The openai package is missing, or the key can't be sent.
    """

    def __init__(
        self,
        server: Server,
        model: str,
        spend: Spending,
        known_as: Collection[str | None] = (),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.server, self.model, self.spend = server, model, spend
        self._known_as, self._sleep = set(known_as), sleep
        self._key = _key(server)
        self._endpoints = [_Endpoint(url, _pools(server, url, self._key or "none")) for url in server.urls]
        self._free = asyncio.Semaphore(server.in_flight)
        self._chance = random.Random()
        self._stopping = asyncio.Event()
        self.has_answered, self._given_up, self._said = False, 0, False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        for pool in (pool for endpoint in self._endpoints for pool in endpoint.pools):
            await pool.api.close()

    async def ask(self, request: Request) -> Reply:
        """The server's reply to a request.

        Raises:
            Unanswered: All attempts failed for reasons that may pass (429, 5xx, time-outs, cut or broken replies).
            BudgetSpent: A further attempt could exceed a budget.
            RefusedRequest: The server does not take this request.
            Stopped: `stop` was called.
            InputError: What else no retry mends: a refused key, no such model, a reply of another model, no server there
                at all, or one that no longer answers.
        """
        try:
            return await self._ask(request)
        except (InputError, Unanswered) as error:
            raise type(error)(self.without_key(str(error))) from None

    def stop(self) -> None:
        """Begin no further attempt: each `ask` ends with `Stopped` where it does not get a reply of one under way."""
        self._stopping.set()

    def without_key(self, text: str) -> str:
        """Words that may be a server's, without the key."""
        return without_key(text, self._key)

    async def _ask(self, request: Request) -> Reply:
        body = request.body(self.model)
        failure = await self._attempt(request, body, again=False)
        for failures in range(1, self.server.attempts):
            if isinstance(failure, Reply):
                return failure
            self._say_first(failure)
            await self._pause(back_off(failures, failure.wait, self._chance))
            failure = await self._attempt(request, body, again=True)
        if isinstance(failure, Reply):
            return failure
        raise self._gave_up(failure)

    async def model_names(self) -> set[str]:
        """Names of the models that the first server lists; none where it lists nothing."""
        try:
            async with asyncio.timeout(self.server.timeout):
                return names_listed(await self._endpoints[0].pools[0].api.get("/models", cast_to=bytes))
        except Exception:  # as in _post; a list is no more than a help
            return set()

    async def _pause(self, seconds: float) -> None:
        """Wait, until it is time or the client is to stop."""
        waits = [asyncio.ensure_future(wait) for wait in (self._sleep(seconds), self._stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _attempt(self, request: Request, body: dict[str, Any], again: bool) -> Reply | Failure:
        """One attempt, at the endpoint with the fewest under way of those that don't rest."""
        async with self._free, self.spend.room(request):
            if self._stopping.is_set():
                raise Stopped("no further request is made")
            self.spend.sent(again)
            now = time.monotonic()
            endpoint = min(self._endpoints, key=lambda one: (max(one.rests_until, now), one.in_flight))
            pool = min(endpoint.pools, key=lambda one: one.in_flight)
            endpoint.in_flight += 1
            pool.in_flight += 1
            try:
                reply = read_reply(await self._post(endpoint, pool.api, request.path, body), request)
            except BrokenReply as broken:
                endpoint.failed()
                return Failure(f"{endpoint.url} sent {broken}", brief=f"{endpoint.url} sent no whole reply")
            except Failure as failure:
                endpoint.failed()
                return failure
            finally:
                endpoint.in_flight -= 1
                pool.in_flight -= 1
            endpoint.answered()
            self.has_answered, self._given_up = True, 0
            self.spend.count(request, reply)
        self._check_model(reply)
        return reply

    async def _post(self, endpoint: _Endpoint, api: AsyncOpenAI, path: str, body: dict[str, Any]) -> bytes:
        """The reply's bytes. They are read here, because the openai client looks at no reply's form."""
        import openai

        try:
            async with asyncio.timeout(self.server.timeout):  # openai's own begins anew with every byte
                return await api.post(path, cast_to=bytes, body=body)
        except (TimeoutError, openai.APITimeoutError):
            raise Failure(f"{endpoint.url} did not answer within {self.server.timeout:g} seconds") from None
        except openai.APIStatusError as error:
            text = error.response.content.decode("utf-8", "replace")
            raise refused(error.status_code, error.response.headers, text, self.server, endpoint.url) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            words = one_line(str(cause or error), 300) or type(cause).__name__
            raise Failure(f"{endpoint.url}: {words}", reached="Connect" not in type(cause).__name__) from None
        except Exception as error:  # what openai and the layer under it make of a reply that is no proper HTTP
            raise Failure(f"{endpoint.url} sent what can't be read ({type(error).__name__})") from None

    def _check_model(self, reply: Reply) -> None:
        if not self._known_as or reply.model in self._known_as:
            return
        if reply.model is not None and not same_model(self.model, reply.model):
            raise InputError(
                f"Expected all answers to be by the model {self.model!r}, but one came from {one_line(reply.model, 300)!r}. Ask a server that does not fall back to other models; what has arrived is kept."
            )
        self._known_as.add(reply.model)

    def _say_first(self, failure: Failure) -> None:
        """Tell once that nothing was answered yet: the attempts may take a minute."""
        if not self.has_answered and not self._said:
            self._said = True
            print(f"server: {self.without_key(failure.brief)}; trying again", file=sys.stderr)

    def _gave_up(self, failure: Failure) -> Exception:
        self._given_up += 1
        if not self.has_answered:
            there = "but none answered" if failure.reached else "but none is there"
            return InputError(
                f"Expected an OpenAI-compatible server at {' or '.join(self.server.urls)}, {there}: {failure.reason}. Start it, or give its address, most often one that ends in /v1, with --server.url."
            )
        if self._given_up >= _MOST_GIVEN_UP:
            return InputError(
                f"Expected the server at {' or '.join(self.server.urls)} to go on answering, but {self._given_up} requests in a row failed {self.server.attempts} times each: {failure.reason}. What has arrived is kept; run the same command again to go on."
            )
        return Unanswered(f"{self.server.attempts} attempts failed, the last one so: {failure.reason}")


def _key(server: Server) -> str | None:
    """The key from the environment; None without one."""
    key = os.environ.get(server.key_variable, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise InputError(
            f"Expected the environment variable {server.key_variable} to hold a key of plain letters and signs, but it has others. Set it to the key alone."
        )
    return key or None


def _pools(server: Server, url: str, key: str) -> list[_Pool]:
    """Clients for one address, each with a few connections, which take nothing from openai's environment variables."""
    try:
        import openai
    except ImportError:
        raise InputError(
            "Expected the package openai, which asks servers, but it is not installed. Run: pip install 'confidence-probes[server]'"
        ) from None
    # httpx or httpx2, whichever this openai stands on
    http = import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])
    limits = http.Limits(max_connections=_POOL, max_keepalive_connections=_POOL)
    timeout = http.Timeout(server.timeout, connect=min(_CONNECT, server.timeout))
    trusted = http.create_ssl_context()  # once, because loading certificates takes its time
    pools = []
    for _ in range(math.ceil(server.in_flight / _POOL)):
        try:
            api = openai.AsyncOpenAI(
                base_url=url,
                api_key=key,
                max_retries=0,
                timeout=timeout,
                default_headers={"Authorization": f"Bearer {key}"},  # before one of OPENAI_CUSTOM_HEADERS
                http_client=openai.DefaultAsyncHttpxClient(limits=limits, follow_redirects=False, verify=trusted),
            )
        except (ImportError, ValueError, http.InvalidURL) as error:  # its words may hold a proxy's password
            raise InputError(
                f"Expected connections to {url} to be possible, but the address or a proxy's is none that can be used ({type(error).__name__}). Look at --server.url and the environment variables ALL_PROXY, HTTP_PROXY and HTTPS_PROXY; SOCKS takes: pip install socksio"
            ) from None
        api.organization = api.project = api.admin_api_key = None
        pools.append(_Pool(api))
    return pools
