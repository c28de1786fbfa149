"""`Server`: where a served model is, and how it is asked. None of it but `extra` and the form of requests changes an identity."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from extract.errors import InputError
from extract.text import shown

_SECRET = re.compile("(?i)key|token$|secret|password|auth(?!ors?$)|bearer|credential")
#: Characters of a key that is looked for among values; the word that stands in for one where a server wants none is shorter.
_SHORTEST_KEY = 8
#: Fields of a request that other options decide. With null, `extra` can leave them out for a server that has other names.
_DECIDED = frozenset("model messages prompt stream n temperature top_p max_tokens stop seed logprobs".split())


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible endpoint: vLLM, SGLang, LiteLLM, `transformers serve`, llama.cpp, or a service.

    Attributes:
        url: Base address, ending before /chat/completions; several of servers with the same model share the requests.
        in_flight: Most requests at the same time.
        per_request: Answers asked for in one request (`n`), for servers that have it; each saves reading the prompt.
        logprobs: Whether log-probabilities of the tokens are asked for.
        seeds: Whether each request carries a seed, a function of policy.seed, question and sample.
        timeout: Seconds that one attempt may take.
        attempts: Attempts at a request before it is given up for this run.
        budget_requests: Most attempts of this run; null has no limit.
        budget_tokens: Most prompt and answer tokens of this run; null has no limit.
        price_prompt: Dollars for a million prompt tokens, to show what was spent.
        price_answer: Dollars for a million answer tokens.
        key_variable: Environment variable with the key. It is sent to the server and stands nowhere else.
        extra: Further fields of every request, as the server knows them; part of the identity. A `generation_config` of
            several entries is sent as JSON in a text, which is how `transformers serve` takes it.
    """

    url: str | list[str] = "http://localhost:8000/v1"
    in_flight: int = 256
    per_request: int = 1
    logprobs: bool = True
    seeds: bool = True
    timeout: float = 600.0
    attempts: int = 8
    budget_requests: int | None = None
    budget_tokens: int | None = None
    price_prompt: float | None = None
    price_answer: float | None = None
    key_variable: str = "OPENAI_API_KEY"
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.urls:
            raise InputError("Expected `server.url` to be an address or several, but got none. Give one.")
        for url in self.urls:
            parts = _parts(url)
            if parts is None:
                raise InputError(
                    f"Expected `server.url` to be the address of a server, such as http://localhost:8000/v1, but got {shown(url)}. Begin with http:// or https://."
                )
            if parts.username or parts.password or parts.query:
                raise InputError(
                    "Expected `server.url` without a user, password or query, which could be secrets. Put the key into the environment variable that --server.key_variable names."
                )
        numbers: dict[str, tuple[str, Callable[[Any], bool]]] = {
            "in_flight": ("from 1 to 10000", lambda value: 1 <= value <= 10_000),
            "per_request": ("from 1 to 1000", lambda value: 1 <= value <= 1000),
            "timeout": ("above 0", lambda value: 0 < value < float("inf")),
            "attempts": ("from 1 to 1000", lambda value: 1 <= value <= 1000),
            "budget_requests": ("at least 1", lambda value: value is None or value >= 1),
            "budget_tokens": ("at least 1", lambda value: value is None or value >= 1),
            "price_prompt": ("at least 0", lambda value: value is None or 0 <= value < float("inf")),
            "price_answer": ("at least 0", lambda value: value is None or 0 <= value < float("inf")),
        }
        for name, (expected, holds) in numbers.items():
            if not holds(getattr(self, name)):
                raise InputError(f"Expected `server.{name}` to be {expected}, but got {getattr(self, name)!r}.")
        if isinstance(
            self.extra.get("generation_config"), dict
        ):  # from a command line or YAML, where a text that holds one becomes one
            text = json.dumps(self.extra["generation_config"], sort_keys=True)
            object.__setattr__(self, "extra", {**self.extra, "generation_config": text})
        key = os.environ.get(self.key_variable, "").strip()
        if len(key) >= _SHORTEST_KEY and any(key in text for _, text in _leaves(self.extra)):
            raise InputError(
                f"Expected `server.extra` to hold no secrets, because it is kept in the store, but the key in the environment variable {self.key_variable} stands in it. Leave it out; the key is sent by itself."
            )
        secret = next((name for names, _ in _leaves(self.extra) for name in names if _SECRET.search(name)), None)
        if secret is not None:
            raise InputError(
                f"Expected `server.extra` to hold no secrets, because it is kept in the store, but got a field {shown(secret)}. Put the key into the environment variable {self.key_variable}."
            )
        decided = sorted(name for name in _DECIDED & self.extra.keys() if self.extra[name] is not None)
        if decided:
            raise InputError(
                f"Expected `server.extra` to hold what no other option decides, but got {decided[0]!r}. Use --model, --server.… or --policy.… for it; null leaves it out of the requests."
            )

    @property
    def urls(self) -> list[str]:
        """All addresses, without a slash at their ends."""
        given = [self.url] if isinstance(self.url, str) else list(self.url)
        return [url.rstrip("/") for url in given]


def _parts(url: str) -> SplitResult | None:
    """What an address consists of; None where it is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that don't close, or a port that is no number up to 65535
        return None
    return parts if valid and url.isprintable() and " " not in url else None


def _leaves(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each single value in a JSON as text, with the names of the fields around it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*names, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, names)
    else:
        yield names, str(value)
