"""Options of the server sampler, and the requests built from them."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from extract.errors import InputError
from extract.policy import Decoding
from extract.questions.question import Question
from extract.sampling.server.protocol import Request
from extract.schemas import Field, check_options, number, or_null, whole
from extract.text import shown

_SECRET = re.compile("(?i)key|token$|secret|password|auth(?!ors?$)|bearer|credential")
#: Minimum length of API keys to search for in `extra_body`. Shorter values are placeholders.
_SHORTEST_KEY = 8
#: Request fields that other options set. `extra_body` can only remove them, with the value null.
_SET_BY_OPTIONS = frozenset("model messages prompt stream n temperature top_p max_tokens stop seed logprobs".split())
_BUDGET = or_null(Field("at least 1", lambda value: value >= 1))
_PRICE = or_null(number("at least 0", lambda value: value >= 0))
_OPTIONS = {
    "max_concurrency": whole(1, 10_000),
    "n": whole(1, 1000),
    "timeout": number("above 0", lambda value: value > 0),
    "attempts": whole(1, 1000),
    "budget_requests": _BUDGET,
    "budget_tokens": _BUDGET,
    "price_prompt": _PRICE,
    "price_answer": _PRICE,
}


@dataclass(frozen=True)
class Server:
    """Options for an OpenAI-compatible server, such as vLLM, SGLang, llama.cpp, LiteLLM or `transformers serve`.

    Attributes:
        url: Base address without /chat/completions, or a list of addresses that share the requests.
        max_concurrency: Maximum number of concurrent requests.
        n: Number of answers per request. Values above 1 reduce prompt processing, but not all servers support them.
        logprobs: Whether to request the log-probability of each token.
        seeds: Whether to send a seed with each request, derived from policy.seed, the question and the sample.
        timeout: Time limit for one attempt, in seconds.
        attempts: Maximum number of attempts per request.
        budget_requests: Maximum number of attempts in this run; null means no limit.
        budget_tokens: Maximum number of prompt and answer tokens in this run; null means no limit.
        price_prompt: Price in dollars per million prompt tokens, for the displayed cost.
        price_answer: Price in dollars per million answer tokens.
        api_key_env: Environment variable that contains the API key.
        extra_body: Additional fields to send with every request. They become part of the store's identity. A
            `generation_config` is sent as JSON text, as `transformers serve` expects.
    """

    url: str | list[str] = "http://localhost:8000/v1"
    max_concurrency: int = 256
    n: int = 1
    logprobs: bool = True
    seeds: bool = True
    timeout: float = 600.0
    attempts: int = 8
    budget_requests: int | None = None
    budget_tokens: int | None = None
    price_prompt: float | None = None
    price_answer: float | None = None
    api_key_env: str = "OPENAI_API_KEY"
    extra_body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.urls:
            raise InputError("Expected `server.url` to contain at least one address, but got none. Pass an address.")
        for url in self.urls:
            _check_url(url)
        check_options(self, _OPTIONS, "server.")
        config = self.extra_body.get("generation_config")
        if isinstance(config, dict):  # option parsers convert JSON text to a dict
            text = json.dumps(config, sort_keys=True)
            object.__setattr__(self, "extra_body", {**self.extra_body, "generation_config": text})
        self._check_extra_body()

    @property
    def urls(self) -> list[str]:
        """All addresses, without trailing slashes."""
        given = [self.url] if isinstance(self.url, str) else list(self.url)
        return [url.rstrip("/") for url in given]

    @property
    def budgets(self) -> dict[str, int | None]:
        """Budgets for requests and tokens, by option name."""
        return {"server.budget_requests": self.budget_requests, "server.budget_tokens": self.budget_tokens}

    def _check_extra_body(self) -> None:
        key = os.environ.get(self.api_key_env, "").strip()
        secret = next(filter(_SECRET.search, _field_names(self.extra_body)), None)
        if secret is not None or (len(key) >= _SHORTEST_KEY and key in str(self.extra_body)):
            found = "the API key" if secret is None else f"the field {shown(secret)}"
            raise InputError(
                f"Expected `server.extra_body` to contain no secrets, but got {found}. Remove it, because the store "
                f"records this option. The API key in {self.api_key_env} is sent automatically."
            )
        given = (name for name, value in self.extra_body.items() if value is not None)
        if conflict := next(filter(_SET_BY_OPTIONS.__contains__, given), None):
            raise InputError(
                f"Expected `server.extra_body` to contain no field that another option sets, but got {conflict!r}. Use "
                "`model`, a `server` option or a `policy` option instead. To omit a field, set it to null."
            )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unclosed brackets, or an invalid port
        valid = False
    if not (valid and url.isprintable() and " " not in url):
        raise InputError(
            f"Expected `server.url` to be the address of a server, such as http://localhost:8000/v1, but got "
            f"{shown(url)}. Pass an address that begins with http:// or https://."
        )
    if parts.username or parts.password or parts.query:
        raise InputError(
            "Expected `server.url` to contain no user name, password or query, but it contains at least one of "
            "these parts, which may be secret. Remove them, and put the API key in the environment variable named by "
            "`server.api_key_env`."
        )


def _field_names(value: Any) -> Iterator[str]:
    """Yield the names of all fields in a JSON value."""
    if isinstance(value, dict):
        yield from map(str, value)
        value = list(value.values())
    for inner in value if isinstance(value, list | tuple) else ():
        yield from _field_names(inner)


def request_for(question: Question, samples: Sequence[int], decoding: Decoding, server: Server) -> Request:
    """Build the request for samples of a question."""
    prompt, extra = decoding.prompt, dict(server.extra_body)
    if prompt.thinking is not None:
        extra["chat_template_kwargs"] = {"enable_thinking": prompt.thinking, **extra.get("chat_template_kwargs", {})}
    return Request(
        prompt=prompt.messages(question.prompt) if prompt.chat else prompt.text(question.prompt),
        n=len(samples),
        temperature=float(decoding.temperature),
        top_p=decoding.top_p,
        top_k=decoding.top_k,
        max_tokens=decoding.max_new_tokens,
        stop=decoding.stop,
        seed=request_seed(decoding.seed, question.id, samples[0]) if server.seeds else None,
        logprobs=server.logprobs,
        extra=extra,
    )


def request_seed(seed: int, question_id: str, sample: int) -> int:
    """Derive a 31-bit seed from the policy's seed, the question and the sample. Some servers reject larger seeds.

    >>> request_seed(0, "q1", 0), request_seed(0, "q1", 1)
    (1445421104, 1971607367)
    """
    digest = hashlib.sha256(f"{seed}\0{question_id}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
