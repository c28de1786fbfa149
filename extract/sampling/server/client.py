"""The client: many concurrent requests to one server or several, each repeated until answered, within budgets."""

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

#: What servers append to a model's name: a revision, the usual tag, or a date.
_VERSION = re.compile(r"(@[^/]*|:latest|-\d{4}-\d{2}-\d{2}|-\d{8})$")
#: After so many requests given up in a row, the server counts as gone.
_MOST_GIVEN_UP = 16
#: Longest waits between two attempts in seconds: the client's own, and one that the server asks for.
_LONGEST_WAIT, _LONGEST_ASKED_WAIT = 30.0, 120.0
#: Prompt tokens for a byte of the prompt, until a reply has told better; English has about a quarter.
_TOKENS_PER_BYTE = 0.5
_GO_ON = "A budget is for one run; run the same command again to go on."


class Unanswered(Exception):
    """Every attempt at a request failed, or the client was stopped before; the text is one line with the reason."""


class BudgetSpent(Exception):
    """The next request could exceed a budget; the text is one line that says which one and what to do."""


@dataclass
class Spending:
    """What was spent in this run. A failed attempt counts as a request but not as tokens, which no server reports.

    Attributes:
        server: Its budgets and prices.
        requests: Attempts that were sent.
        retries: Attempts that were repeated after a failure.
        prompt_tokens: Prompt tokens of all replies, estimated where the server does not say, as are `answer_tokens`.
    """

    server: Server
    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    _reserved: int = 0  # tokens that the attempts under way may cost
    _tokens_per_byte: float = 0.0
    _released: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens together."""
        return self.prompt_tokens + self.answer_tokens

    @asynccontextmanager
    async def reserved(self, request: Request) -> AsyncIterator[None]:
        """Reserve the worst-case token cost of an attempt, which is counted as sent; call `count` with its reply.

        While the attempts under way leave too little for this one, it waits: most answers are shorter than allowed.

        Raises:
            BudgetSpent: The attempt could exceed a budget although no other is under way.
        """
        limit, tokens = self.server.budget_tokens or math.inf, self.most_tokens(request)
        while self._reserved and self.tokens + self._reserved + tokens > limit:
            self._released.clear()
            await self._released.wait()
        if self.tokens + tokens > limit:
            raise BudgetSpent(
                f"the budget of {limit:,} tokens is spent: {self.tokens:,} are used, and the next request may take "
                f"{tokens:,}. {_GO_ON}"
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
        """Count the tokens of a reply."""
        prompt, answer, most_answer = reply.prompt_tokens, reply.completion_tokens, request.n * request.max_tokens
        if prompt is not None:
            self._tokens_per_byte = max(self._tokens_per_byte, prompt / max(_prompt_bytes(request), 1))
        self.prompt_tokens += self.most_tokens(request) - most_answer if prompt is None else prompt
        self.answer_tokens += most_answer if answer is None else answer

    def most_tokens(self, request: Request) -> int:
        """Tokens that a request may cost; an estimate where its prompt is concerned."""
        prompt = 1 + int(_prompt_bytes(request) * (self._tokens_per_byte or _TOKENS_PER_BYTE))
        return prompt + request.n * request.max_tokens


class Client(AbstractAsyncContextManager["Client"]):
    """Asks a server, with at most `server.max_concurrency` attempts at a time.

    Args:
        model: What the server calls the model.
        spending: Counts what is spent, and holds the budgets.
        known_as: Names of the model in replies, as the preflight has found them; other names are then refused.

    Attributes:
        endpoints: One for each address.
        has_answered: Whether a request was answered.

    Raises:
        InputError: A package is missing, or the key can't be sent.
    """

    def __init__(self, server: Server, model: str, spending: Spending, known_as: Collection[str | None] = ()) -> None:
        self.server, self.model, self.spending, self._known_as = server, model, spending, known_as
        self.endpoints = [Endpoint(server, url) for url in server.urls]
        self._free, self._stopping = asyncio.Semaphore(server.max_concurrency), asyncio.Event()
        self.has_answered, self._has_warned, self._n_given_up = False, False, 0
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
        """The server's reply to a request. Failures that may pass (429, 5xx, time-outs, broken replies) are retried.

        Raises:
            Unanswered: All attempts failed, or `stop` was called.
            BudgetSpent: A further attempt could exceed a budget.
            RejectedRequest: The server does not take this request.
            InputError: A refused key, no such model, a reply of another model, or a server that does not answer.
        """
        try:
            return await self._retrying.copy()(self._attempt, request)  # a copy, because it has state while it waits
        except Failure as failure:
            raise self._give_up(failure) from None

    def stop(self) -> None:
        """Begin no further attempt: each `ask` ends with `Unanswered` unless an attempt under way is answered."""
        self._stopping.set()

    async def _attempt(self, request: Request) -> Reply:
        """One attempt, at the endpoint with the fewest under way among those that don't rest."""
        async with self._free, self.spending.reserved(request):
            if self._stopping.is_set():
                raise Unanswered("no further request is made")
            self.spending.requests += 1
            now = time.monotonic()
            endpoint = min(self.endpoints, key=lambda endpoint: (max(endpoint.rests_until, now), endpoint.in_flight))
            reply = await endpoint.ask(request, self.model)
            self.has_answered, self._n_given_up = True, 0
            self.spending.count(request, reply)
        name = reply.model
        if self._known_as and name is not None and name not in self._known_as and not same_model(self.model, name):
            raise InputError(
                f"Expected all answers to be by the model {self.model!r}, but one came from {name!r}. Ask a server "
                "that does not fall back to other models."
            )
        return reply

    async def _pause(self, seconds: float) -> None:
        """Wait until the time is over or the client is to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _note_retry(self, state: Any) -> None:
        """Count a retry. The first is reported where nothing was answered yet: the attempts may take a minute."""
        self.spending.retries += 1
        if not self.has_answered and not self._has_warned:
            self._has_warned = True
            say(f"server: {state.outcome.exception().brief}; trying again")

    def _give_up(self, failure: Failure) -> Exception:
        self._n_given_up += 1
        urls, attempts = " or ".join(self.server.urls), self.server.attempts
        if not self.has_answered:
            problem = "none answered" if failure.reached else "none is there"
            return InputError(
                f"Expected an OpenAI-compatible server at {urls}, but {problem}: {failure}. Start it, or give its "
                "address as `server.url`; most often it ends in /v1."
            )
        if self._n_given_up >= _MOST_GIVEN_UP:
            return InputError(
                f"Expected the server at {urls} to go on answering, but {self._n_given_up} requests in a row failed "
                f"{attempts} times each: {failure}. What has arrived is kept; run the same command again to go on."
            )
        return Unanswered(f"{attempts} attempts failed, the last one so: {failure}")


def _prompt_bytes(request: Request) -> int:
    prompt = request.prompt
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return sum(len(text.encode(errors="replace")) for text in texts)


def retry_wait(state: Any) -> float:
    """Seconds until the next attempt, from a `tenacity.RetryCallState`: full jitter beside what the server asks for.

    Full jitter is uniform up to a limit that doubles, so that requests that failed together don't return together
    (Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
    """
    wait_random_exponential = import_package("tenacity").wait_random_exponential
    jitter, asked = wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT)(state), state.outcome.exception().wait
    return jitter if asked is None else min(asked, _LONGEST_ASKED_WAIT) + min(jitter, 1 + asked)


def same_model(requested: str, replied: str) -> bool:
    """Whether a reply's name of the model means the requested one: it may add a path, a version, a date or a tag.

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
