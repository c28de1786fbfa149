"""`Spending`: what a run has asked of a server and what it cost, kept within the run's budgets."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from extract.sampling.server.policy import Server
from extract.sampling.server.protocol import Reply, Request

#: Prompt tokens for a byte of the prompt, until a reply has told better; English has about a quarter.
_TOKENS_PER_BYTE = 0.5
_GO_ON = "A budget is for one run; run the same command again to go on."


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


def _prompt_bytes(request: Request) -> int:
    prompt = request.prompt
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return sum(len(text.encode(errors="replace")) for text in texts)
