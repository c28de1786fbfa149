"""Client that sends concurrent requests to a server, with retries and budgets."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from extract.errors import InputError
from extract.running.progress import say
from extract.sampling.server.endpoint import Endpoint, Failure, import_package
from extract.sampling.server.policy import Server
from extract.sampling.server.protocol import Reply, Request

#: Suffixes that servers append to model names: a revision, the tag `latest` or a date.
_VERSION = re.compile(r"(@[^/]*|:latest|-\d{4}-\d{2}-\d{2}|-\d{8})$")
#: Number of consecutive failed requests after which the run ends.
_MOST_GIVEN_UP = 16
#: Maximum random wait before a retry, and maximum wait that a server can request, in seconds.
_LONGEST_WAIT, _LONGEST_ASKED_WAIT = 30.0, 120.0
#: Number of prompt tokens per byte, assumed before the first reply. English text has about 0.25.
_TOKENS_PER_BYTE = 0.5
#: Hint that is added to an error if the server may have crashed.
_SEEDS = (
    " Some servers, such as vLLM 0.32 on a CPU, crash on requests with a seed. If this server has crashed, restart it, "
    "and run the command again with --server.seeds=false."
)
_GO_ON = "A budget applies to one run. Run the same command again to continue."


class Unanswered(Exception):
    """Raised if all attempts at a request failed, or if the client was stopped."""


class BudgetSpent(Exception):
    """Raised if the next request could exceed a budget."""


@dataclass
class Spending:
    """Counts the requests and tokens of a run.

    A failed attempt counts as a request without tokens. If the server does not report the number of prompt tokens, the
    number is estimated. If it does not report the number of answer tokens, the maximum is assumed.
    """

    server: Server
    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    _reserved: int = 0  # worst-case tokens of the attempts in flight
    _tokens_per_byte: float = 0.0
    _released: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    @property
    def tokens(self) -> int:
        """Total number of prompt and answer tokens."""
        return self.prompt_tokens + self.answer_tokens

    @asynccontextmanager
    async def reserved(self, request: Request) -> AsyncIterator[None]:
        """Reserve the maximum number of tokens that one attempt at `request` can use.

        Waits until the reservations of other attempts leave enough tokens. Inside the `with` block, call `count` with
        the reply.

        Raises:
            BudgetSpent: If too few tokens are left for this attempt, or if the request budget is spent.
        """
        limit, tokens = self.server.budget_tokens or math.inf, self.most_tokens(request)
        while self._reserved and self.tokens + self._reserved + tokens > limit:
            self._released.clear()
            await self._released.wait()
        if self.tokens + tokens > limit:
            raise BudgetSpent(
                f"the budget of {limit:,} tokens is too small for the next request, which could use {tokens:,} tokens "
                f"in addition to the {self.tokens:,} tokens used so far. {_GO_ON}"
            )
        if self.requests >= (self.server.budget_requests or math.inf):
            raise BudgetSpent(f"the budget of {self.server.budget_requests:,} requests is spent. {_GO_ON}")
        self._reserved += tokens
        try:
            yield
        finally:
            self._reserved -= tokens
            self._released.set()

    def count(self, request: Request, reply: Reply) -> None:
        """Add the tokens of a reply."""
        prompt, answer, most_answer = reply.prompt_tokens, reply.completion_tokens, request.n * request.max_tokens
        if prompt is not None:
            self._tokens_per_byte = max(self._tokens_per_byte, prompt / max(_prompt_bytes(request), 1))
        self.prompt_tokens += self.most_tokens(request) - most_answer if prompt is None else prompt
        self.answer_tokens += most_answer if answer is None else answer

    def most_tokens(self, request: Request) -> int:
        """Maximum number of tokens that a request can use. The length of the prompt is estimated."""
        prompt = 1 + int(_prompt_bytes(request) * (self._tokens_per_byte or _TOKENS_PER_BYTE))
        return prompt + request.n * request.max_tokens


class Client(AbstractAsyncContextManager["Client"]):
    """Sends requests to a server, with at most `server.max_concurrency` attempts in flight.

    `known_as` contains the model names in the replies to the preflight (see `run_preflight`). If it is not empty,
    replies from other models are rejected.

    Attributes:
        given_up: Last error of the most recent request that ran out of attempts, or None.

    Raises:
        InputError: If a required package is not installed, or if the API key is invalid.
    """

    def __init__(self, server: Server, model: str, spending: Spending, known_as: Collection[str | None] = ()) -> None:
        self.server, self.model, self.spending, self._known_as = server, model, spending, known_as
        self.endpoints = [Endpoint(server, url) for url in server.urls]
        self._free, self._stopping = asyncio.Semaphore(server.max_concurrency), asyncio.Event()
        self.has_answered, self._has_warned, self._n_given_up = False, False, 0
        self.given_up: Failure | None = None
        tenacity = import_package("tenacity")
        self._retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Failure),
            stop=tenacity.stop_after_attempt(server.attempts),
            wait=retry_wait,
            sleep=self._pause,
            before_sleep=self._note_retry,
            reraise=True,
        )

    async def __aexit__(self, *error: object) -> None:
        """Close all connections."""
        for endpoint in self.endpoints:
            await endpoint.close()

    async def ask(self, request: Request) -> Reply:
        """Send a request and return the reply. Transient failures (429, 5xx, timeouts, invalid replies) are retried.

        Raises:
            Unanswered: If all attempts failed, or if `stop` was called.
            BudgetSpent: If another attempt could exceed a budget.
            RejectedRequest: If the server rejects this request.
            InputError: If the request fails for a reason that affects all requests.
        """
        try:
            return await self._retrying.copy()(self._attempt, request)  # a copy, because it is stateful
        except Failure as failure:
            raise self._give_up(failure) from None

    def stop(self) -> None:
        """Stop sending requests. A pending `ask` raises `Unanswered`, unless its current attempt succeeds."""
        self._stopping.set()

    async def _attempt(self, request: Request) -> Reply:
        """Send a request once, to the least busy endpoint.

        Paused endpoints are used only if all endpoints are paused.
        """
        async with self._free, self.spending.reserved(request):
            if self._stopping.is_set():
                raise Unanswered("no further requests will be sent")
            self.spending.requests += 1
            now = time.monotonic()
            endpoint = min(self.endpoints, key=lambda endpoint: (max(endpoint.rests_until, now), endpoint.in_flight))
            reply = await endpoint.ask(request, self.model)
            self.has_answered, self._n_given_up = True, 0
            self.spending.count(request, reply)
        name = reply.model
        if self._known_as and name is not None and name not in self._known_as and not same_model(self.model, name):
            raise InputError(
                f"Expected all answers to come from the model {self.model!r}, but one came from "
                f"{endpoint.line(name)!r}. Use a server that does not fall back to other models."
            )
        return reply

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `stop` is called."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _note_retry(self, state: Any) -> None:
        """Count a retry. Report the first retry if no request has been answered yet."""
        self.spending.retries += 1
        if not self.has_answered and not self._has_warned:
            self._has_warned = True
            say(f"server: {state.outcome.exception().brief}; retrying")

    def _give_up(self, failure: Failure) -> Exception:
        self._n_given_up += 1
        self.given_up = failure
        urls, attempts = " or ".join(self.server.urls), self.server.attempts
        hint = _SEEDS if failure.crashed and self.server.seeds else ""
        if not self.has_answered:
            problem = "it does not answer" if failure.reached else "the connection failed"
            if self._known_as:  # the server answered the preflight
                return InputError(f"Expected the server at {urls} to keep answering, but {problem}: {failure}.{hint}")
            return InputError(
                f"Expected an OpenAI-compatible server at {urls}, but {problem}: {failure}. Start the server, "
                f"or set `server.url` to its address, which usually ends in /v1.{hint if failure.reached else ''}"
            )
        if self._n_given_up >= _MOST_GIVEN_UP:
            return InputError(
                f"Expected the server at {urls} to keep answering, but {self._n_given_up} requests in a row failed "
                f"{attempts} times each: {failure}. Received answers are kept. Run the same command again to continue."
                f"{hint}"
            )
        return Unanswered(f"{attempts} attempts failed, the last one with: {failure}.{hint}".rstrip("."))


def _prompt_bytes(request: Request) -> int:
    prompt = request.prompt
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return sum(len(text.encode(errors="replace")) for text in texts)


def retry_wait(state: Any) -> float:
    """Return the seconds until the next attempt: the wait that the server requests, plus full jitter.

    The jitter is a random time up to a limit that doubles with each attempt. See Brooker, Exponential Backoff and
    Jitter, AWS Architecture Blog, 2015.
    """
    wait_random_exponential = import_package("tenacity").wait_random_exponential
    jitter, asked = wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT)(state), state.outcome.exception().wait
    return jitter if asked is None else min(asked, _LONGEST_ASKED_WAIT) + min(jitter, 1 + asked)


def same_model(requested: str, replied: str) -> bool:
    """Whether two names refer to the same model. A path, version, date or tag is ignored if only one name has it.

    >>> same_model("gpt-4o", "gpt-4o-2024-08-06"), same_model("SmolLM2", "HuggingFaceTB/SmolLM2@main")
    (True, True)
    >>> same_model("gpt-4o", "gpt-4o-mini"), same_model("Qwen3-8B", "Qwen3-8B-FP8")
    (False, False)
    """
    a, b = requested.lower().rstrip("/"), replied.lower().rstrip("/")
    bare_a, bare_b = _VERSION.sub("", a), _VERSION.sub("", b)
    versions_agree = a == bare_a or b == bare_b or a.endswith(b.removeprefix(bare_b))
    paths_agree = f"/{bare_a}".endswith(f"/{bare_b}") or f"/{bare_b}".endswith(f"/{bare_a}")
    return versions_agree and paths_agree
