"""`Spending`: what a run has asked of a server and what it cost, kept within the run's budgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from extract.sampling.server.options import Server
from extract.sampling.server.protocol import Reply, Request

#: Prompt tokens for a byte of the prompt, until a reply has told better; English has about a quarter.
_TOKENS_PER_BYTE = 0.5
_GO_ON = "A budget is for one run; run the same command again to go on."


class BudgetSpent(Exception):
    """The next request could exceed a budget; its text is one line that says which and what to do."""


@dataclass
class Spending:
    """What was spent in this run.

    A failed attempt counts as a request and not as tokens, because the server tells none of it.

    Attributes:
        server: Its budgets and prices.
        requests: Attempts that were sent.
        retries: Those of them that repeat a failed one.
        prompt_tokens: Prompt tokens of all replies; estimated where a server tells none.
        answer_tokens: Answer tokens of all replies; estimated where a server tells none.
    """

    server: Server
    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    _reserved: int = 0  # tokens that the attempts under way may cost
    _tokens_per_byte: float = 0.0
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens together."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def dollars(self) -> float | None:
        """Cost so far by the prices given; None without prices."""
        if self.server.price_prompt is None and self.server.price_answer is None:
            return None
        prompt, answer = self.server.price_prompt or 0.0, self.server.price_answer or 0.0
        return (self.prompt_tokens * prompt + self.answer_tokens * answer) / 1e6

    @asynccontextmanager
    async def room(self, request: Request) -> AsyncIterator[None]:
        """Hold what an attempt may cost until it is over. Inside, tell that it is `sent`, and `count` what it did cost.

        While attempts under way leave too little for this one, it waits for them: most answers are shorter than allowed.

        Raises:
            BudgetSpent: Also with no other attempt under way it could exceed a budget.
        """
        tokens = 0 if self.server.budget_tokens is None else self.most_tokens(request)
        await self._wait_for_room(tokens)
        self._reserved += tokens
        try:
            yield
        finally:
            self._reserved -= tokens
            self._settled.set()

    def sent(self, again: bool) -> None:
        """Count an attempt, at once when there is room for it."""
        self.requests += 1
        self.retries += again

    async def _wait_for_room(self, tokens: int) -> None:
        requests, most = self.server.budget_requests, self.server.budget_tokens
        while most is not None and self.tokens + self._reserved + tokens > most and self._reserved:
            self._settled.clear()
            await self._settled.wait()
        if most is not None and self.tokens + tokens > most:
            raise BudgetSpent(
                f"the budget of {most:,} tokens is spent: {self.tokens:,} are used, and the next request may take {tokens:,}. {_GO_ON}"
            )
        if requests is not None and self.requests >= requests:
            raise BudgetSpent(f"the budget of {requests:,} requests is spent. {_GO_ON}")

    def count(self, request: Request, reply: Reply) -> None:
        """Count the tokens of a reply."""
        n_bytes = prompt_bytes(request)
        if reply.prompt_tokens is not None:
            self._tokens_per_byte = max(self._tokens_per_byte, reply.prompt_tokens / max(n_bytes, 1))
        prompt, answer = reply.prompt_tokens, reply.completion_tokens
        self.prompt_tokens += self._prompt_tokens(n_bytes) if prompt is None else prompt
        self.answer_tokens += request.n * request.max_tokens if answer is None else answer

    def _prompt_tokens(self, n_bytes: int) -> int:
        return 1 + int(n_bytes * (self._tokens_per_byte or _TOKENS_PER_BYTE))

    def most_tokens(self, request: Request) -> int:
        """Tokens that a request may cost; of its prompt an estimate."""
        return self._prompt_tokens(prompt_bytes(request)) + request.n * request.max_tokens


def prompt_bytes(request: Request) -> int:
    """Bytes of a request's prompt.

    >>> prompt_bytes(Request([{"role": "user", "content": "¿Qué?"}]))
    7
    """
    prompt = request.prompt
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return sum(len(text.encode(errors="replace")) for text in texts)
