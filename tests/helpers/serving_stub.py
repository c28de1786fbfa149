"""An OpenAI-compatible server with recognisable answers on the loopback interface, and a proxy that breaks replies.

Each runs in a separate process, needs only the standard library, and ends with its context or with its parent::

    with stub() as server, faults(server.url) as proxy:
        …ask proxy.url…
        server.answered()
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

MODEL = "stub-model"
#: Faults that the proxy applies to requests that it does not pass on.
FAULTS = ("429", "429 with Retry-After", "500", "502 with HTML", "cut", "stall", "broken JSON")


@dataclass(frozen=True)
class Options:
    """Behaviour of the stub.

    Attributes:
        model: Name of the model. Requests for another model are refused with 404.
        says_model: Name in the replies, or None for `model`.
        lists: Name in the list of models, or None for the name in the replies.
        key: Key that requests must contain, or None to accept any.
        answers: Texts from which answers are drawn, or None to make each answer unique.
        length: Number of characters per answer if `answers` is None.
        ignores: Options to ignore and fields to omit: n, logprobs, temperature, max_tokens, usage, finish_reason.
        copies: Whether all answers to one request are identical.
        refuses: Fields that are refused with 422.
        rejects: Text in a prompt that is rejected with 400.
        seconds: Delay before each answer.
        on_seed: Reaction to a request with a seed: "exit" ends the process, "500" fails this request, and "dead" fails
            this request and all later ones. None answers it.
        n_seeds: Number of requests with a seed that are answered before `on_seed` applies.
    """

    model: str = MODEL
    says_model: str | None = None
    lists: str | None = None
    key: str | None = None
    answers: tuple[str, ...] | None = None
    length: int = 12
    ignores: tuple[str, ...] = ()
    copies: bool = False
    refuses: tuple[str, ...] = ()
    rejects: str | None = None
    seconds: float = 0.0
    on_seed: str | None = None
    n_seeds: int = 0


def answer_text(options: Options, prompt: Any, seed: int | None, temperature: float, index: int) -> str:
    """Return the stub's answer `index` to a prompt.

    At temperature 0, it depends only on the prompt. At other temperatures, it also depends on the seed and the index.
    If there is no seed, the number of the request is used.
    """
    drawn = [] if temperature == 0 else [temperature, seed, index]
    number = int.from_bytes(blake2b(json.dumps([prompt, *drawn]).encode(), digest_size=8).digest())
    if options.answers is not None:
        return options.answers[number % len(options.answers)]
    text = f"{number:016x}"
    return (text * (options.length // len(text) + 1))[: options.length]


@dataclass(frozen=True)
class Running:
    """A running stub or proxy. Pass its `url` to `Server`."""

    url: str

    def answered(self) -> list[dict[str, Any]]:
        """Return prompt, seed, temperature, n, logprobs and texts of every request that the stub answered, in order."""
        return self._told("answered")

    def faults(self) -> Counter[str]:
        """Return how often the proxy applied each fault, with "none" for unchanged replies."""
        return Counter(self._told("faults"))

    def _told(self, what: str) -> Any:
        with urllib.request.urlopen(self.url.removesuffix("/v1") + f"/{what}", timeout=30) as reply:
            return json.load(reply)


@contextmanager
def stub(**options: Any) -> Iterator[Running]:
    """Run a stub with `Options`."""
    with _running("stub", asdict(Options(**options))) as running:
        yield running


@contextmanager
def faults(url: str, share: float = 0.3, seed: int = 0, stall: float = 30.0) -> Iterator[Running]:
    """Run a proxy in front of `url` that breaks a fraction of the replies. Stalled replies end after `stall` seconds."""
    with _running("proxy", {"url": url, "share": share, "seed": seed, "stall": stall}) as running:
        yield running


@contextmanager
def _running(what: str, options: dict[str, Any]) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), what, json.dumps(options)],
        stdin=subprocess.PIPE,  # the child ends when this pipe closes, even if this process is killed
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Running(f"http://127.0.0.1:{int(process.stdout.readline())}/v1")
    finally:
        process.kill()
        process.communicate()


# In the child


@dataclass(frozen=True)
class _Asked:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class _Answer:
    """A reply. `sent` bytes of the body are sent before the connection is cut, or all of them if it is None."""

    status: int
    body: bytes
    headers: tuple[str, ...] = ("content-type: application/json",)
    sent: int | None = None


class _Http(asyncio.Protocol):
    """A minimal HTTP/1.1 server with Content-Length, which handles the requests of a connection in order."""

    def __init__(self, answer: Callable[[_Asked], _Answer | Awaitable[_Answer]]) -> None:
        self._answer, self._received = answer, b""
        self._tasks: set[asyncio.Future[_Answer]] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._received = rest[length:]
        answer = self._answer(_Asked(first.split(" ")[1], headers, rest[:length]))
        if isinstance(answer, _Answer):
            self._send(answer)
        else:
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    def connection_lost(self, error: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()

    def _finished(self, task: asyncio.Future[_Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._send(task.result())

    def _send(self, answer: _Answer) -> None:
        head = "\r\n".join(
            [f"HTTP/1.1 {answer.status} Reason", *answer.headers, f"content-length: {len(answer.body)}", "", ""]
        )
        self._transport.write(head.encode() + answer.body[: answer.sent])
        if answer.sent is not None:
            self._transport.close()


class _Stub:
    def __init__(self, options: Options) -> None:
        self.options, self.answered, self.count = options, [], 0  # type: Options, list[dict[str, Any]], int
        self.n_seeds, self.is_dead = 0, False

    def __call__(self, asked: _Asked) -> _Answer | Awaitable[_Answer]:
        if asked.path == "/answered":
            return _json(200, self.answered)
        if asked.path == "/v1/models":
            listed = self.options.lists or self.options.says_model or self.options.model
            return _json(200, {"object": "list", "data": [{"id": listed, "object": "model"}]})
        return self._later(asked) if self.options.seconds else self._reply(asked)

    async def _later(self, asked: _Asked) -> _Answer:
        await asyncio.sleep(self.options.seconds)
        return self._reply(asked)

    def _reply(self, asked: _Asked) -> _Answer:
        options, chat = self.options, asked.path == "/v1/chat/completions"
        if not chat and asked.path != "/v1/completions":
            return _json(404, {"detail": "Not Found"})
        key = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if options.key is not None and key != options.key:
            return _json(401, {"error": {"message": f"Incorrect API key provided: {key}.", "code": "invalid_api_key"}})
        body = json.loads(asked.body)
        if body["model"] != options.model:
            return _json(404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}})
        refused = sorted(body.keys() & set(options.refuses))
        if refused:
            return _json(422, {"detail": f"Unexpected fields in the request: {refused}"})
        if options.rejects is not None and options.rejects in str(body.get("messages", body.get("prompt"))):
            return _json(400, {"error": {"message": "The prompt is too long."}})
        if "seed" in body:
            self.n_seeds += 1
        has_failed = options.on_seed is not None and "seed" in body and self.n_seeds > options.n_seeds
        if has_failed and options.on_seed == "exit":
            os._exit(1)
        self.is_dead |= has_failed and options.on_seed == "dead"
        if has_failed or self.is_dead:
            return _json(500, {"error": {"message": "EngineCore encountered an issue."}})
        self.count += 1
        return _json(200, self._completion(body, chat))

    def _completion(self, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        options = self.options
        prompt = body["messages"] if chat else body["prompt"]
        temperature = 0 if "temperature" in options.ignores else body.get("temperature", 1.0)
        n = 1 if "n" in options.ignores else body.get("n", 1)
        seed = body.get("seed")
        drawn = self.count if seed is None else seed
        indices = [0] * n if options.copies else range(n)
        texts = [answer_text(options, prompt, drawn, temperature, i) for i in indices]
        self.answered.append(
            {
                "prompt": prompt,
                "seed": seed,
                "temperature": temperature,
                "n": n,
                "texts": texts,
                "logprobs": body.get("logprobs"),
            }
        )
        longest = 10**9 if "max_tokens" in options.ignores else body["max_tokens"]
        pieces = [[text[i : i + 4] for i in range(0, len(text), 4)][:longest] for text in texts]
        with_logprobs = body.get("logprobs") and "logprobs" not in options.ignores
        answers_tokens = sum(map(len, pieces))
        prompt_tokens = len(json.dumps(prompt)) // 4
        return {
            "id": f"cmpl-{self.count}",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": options.says_model or options.model,
            "choices": [self._choice(i, parts, chat, with_logprobs, longest) for i, parts in enumerate(pieces)],
            "usage": None
            if "usage" in options.ignores
            else {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": answers_tokens,
                "total_tokens": prompt_tokens + answers_tokens,
            },
        }

    def _choice(self, index: int, pieces: list[str], chat: bool, with_logprobs: bool, longest: int) -> dict[str, Any]:
        text = "".join(pieces)
        finish = None if "finish_reason" in self.options.ignores else "length" if len(pieces) == longest else "stop"
        logprobs: dict[str, Any] | None = None
        if with_logprobs and chat:
            logprobs = {"content": [{"token": piece, "logprob": -0.5, "top_logprobs": []} for piece in pieces]}
        elif with_logprobs:
            logprobs = {"tokens": pieces, "token_logprobs": [-0.5] * len(pieces)}
        what = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {"index": index, **what, "logprobs": logprobs, "finish_reason": finish}


class _Proxy:
    def __init__(self, url: str, share: float, seed: int, stall: float) -> None:
        self.host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
        self.port, self.share, self.stall = int(port), share, stall
        self.chance, self.counts = random.Random(seed), Counter[str]()

    async def __call__(self, asked: _Asked) -> _Answer:
        if asked.path == "/faults":
            return _json(200, self.counts)
        fault = self.chance.choice(FAULTS) if self.chance.random() < self.share else "none"
        self.counts[fault] += 1
        match fault:
            case "429":
                return _json(429, {"error": {"message": "Too many requests."}})
            case "429 with Retry-After":
                answer = _json(429, {"error": {"message": "Too many requests."}})
                return _Answer(429, answer.body, (*answer.headers, "retry-after: 1"))
            case "500":
                return _json(500, {"error": {"message": "Something went wrong."}})
            case "502 with HTML":
                return _Answer(502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", ("content-type: text/html",))
            case "stall":
                await asyncio.sleep(self.stall)
                return _Answer(200, b"{}", sent=0)
        answer = await self._upstream(asked)
        match fault:
            case "cut":
                return _Answer(answer.status, answer.body, sent=self.chance.randrange(len(answer.body)))
            case "broken JSON":
                return _Answer(answer.status, answer.body[: self.chance.randrange(len(answer.body))])
        return answer

    async def _upstream(self, asked: _Asked) -> _Answer:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            kept = [
                f"{name}: {asked.headers[name]}" for name in ("authorization", "content-type") if name in asked.headers
            ]
            head = [f"POST {asked.path} HTTP/1.1", f"host: {self.host}", "connection: close", *kept]
            writer.write("\r\n".join([*head, f"content-length: {len(asked.body)}", "", ""]).encode() + asked.body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(":") for line in lines)}
            return _Answer(int(first.split(" ")[1]), await reader.readexactly(int(headers["content-length"])))
        finally:
            writer.close()


def _json(status: int, content: Any) -> _Answer:
    return _Answer(status, json.dumps(content).encode())


async def _serve(answer: Callable[[_Asked], _Answer | Awaitable[_Answer]]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Http(answer), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)  # until the parent ends


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    asyncio.run(_serve(_Stub(Options(**given)) if sys.argv[1] == "stub" else _Proxy(**given)))
