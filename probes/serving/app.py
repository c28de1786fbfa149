"""The HTTP application: routes, and the conversion of errors to responses."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, TemplateError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from extract.errors import InputError
from extract.text import one_line, shown
from probes.serving.access import Gate, error_response, read_body
from probes.serving.chat import Answering, Defaults, EventStream, as_request_error, completion, engine_failure
from probes.serving.metrics import Measured, Metrics
from probes.serving.protocol import ChatRequest, Message, RequestError, ScoreRequest, number, parse, to_json
from probes.serving.verify import VerifyRequest, verdict

if TYPE_CHECKING:
    from probes.saved.artefact import ConfidenceProbe
    from probes.saved.novelty import Confidences
    from probes.serving.engine import Engine

#: Requests with more than `FEW` questions or `SHORT` characters are tokenised in a thread, not in the event loop.
FEW, SHORT = 8, 20_000

Result = TypeVar("Result")


def create_app(
    engine: Engine, probe: ConfidenceProbe, model_name: str, api_key: str | None = None, check_host: bool = True
) -> FastAPI:
    """Create the FastAPI application that serves a probe.

    While `app.state.closing` is true, the application answers only requests for ``/health``.

    Args:
        engine, probe: The engine and its probe.
        model_name: Name of the model in requests and responses.
        api_key: Key that requests must contain, or None.
        check_host: Whether the `Host` header of requests must be a loopback address or localhost.
    """
    app = FastAPI(openapi_url=None)
    app.state.closing = False
    started, defaults, metrics = int(time.time()), Defaults.of(probe), Metrics(engine.counts)
    endpoints = Endpoints(engine, probe, model_name, defaults)
    model = {"id": model_name, "object": "model", "created": started, "owned_by": "confidence-probes"}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _answered(endpoints.chat(request))

    @app.post("/v1/score")
    async def score(request: Request) -> Response:
        return await _answered(endpoints.score(request))

    @app.post("/verify")
    async def verify(request: Request) -> Response:
        return await _answered(endpoints.verify(request))

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}")
    async def model_of_name(name: str) -> Response:
        endpoints.check_name(name)
        return _json(model)

    @app.get("/health")
    async def health() -> Response:
        is_closing = app.state.closing or engine.is_closed
        return _json({"status": "closing" if is_closing else "ok", "model": model_name}, 503 if is_closing else 200)

    @app.get("/metrics")
    async def measured() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/")
    async def page() -> Response:
        facts = {"reads_answers": probe.reads_answers, "temperature": defaults.temperature}
        return _page(model=model_name, needs_key=api_key is not None, **facts)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            messages = {404: "There is no such page.", 405: "Expected another HTTP method for this page."}
            message = messages.get(error.status_code, str(error.detail))
            error = RequestError(error.status_code, message, headers=error.headers)
        return error_response(as_request_error(error))

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(HTTPException, refused)
    paths = tuple(route.path for route in app.routes if "{" not in route.path)  # type: ignore[attr-defined]  # BaseRoute does not declare `path`
    app.add_middleware(Gate, api_key=api_key, check_host=check_host)
    app.add_middleware(Measured, metrics=metrics, endpoints=paths)
    return app


class Endpoints:
    """Endpoints that use the model.

    `defaults` are the default settings for requests. See `create_app` for the other arguments.
    """

    def __init__(self, engine: Engine, probe: ConfidenceProbe, model_name: str, defaults: Defaults) -> None:
        self._engine, self._probe, self._name, self._defaults = engine, probe, model_name, defaults

    def check_name(self, name: str | None) -> None:
        """Reject a request for a different model. `name` is None if the request names no model."""
        if name not in (None, self._name):
            raise RequestError(
                404,
                f"Expected `model` to be {self._name!r}, the only model of this server, but got {shown(name)}.",
                "model",
                "model_not_found",
            )

    async def chat(self, http: Request) -> Response:
        """Answer a chat request with a complete response or a stream of events."""
        request = parse(ChatRequest, await read_body(http))
        self.check_name(request.model)
        (prompt,) = await self._encode({"messages": request.messages})
        answering = Answering(self._engine, prompt, self._defaults.settings(request), request.backoff)
        if request.stream:
            options = request.stream_options
            return EventStream(answering, self._name, options is not None and bool(options.include_usage))
        try:
            return _json(await _unless_disconnected(http, completion(answering, self._name)))
        finally:
            answering.cancel()

    async def score(self, http: Request) -> Response:
        """Return the confidence for each question, or for each given answer."""
        request = parse(ScoreRequest, await read_body(http))
        self.check_name(request.model)
        self._check_answers(request.questions, request.answers)
        prompts = await self._encode({f"questions[{i}]": asked for i, asked in enumerate(request.questions)})
        found = await self._score(http, prompts, request.answers, request.backoff)
        rows = []
        for i, (confidence, novelty, is_novel) in enumerate(zip(*(values.tolist() for values in found), strict=True)):
            row = {"index": i, "confidence": number(confidence), "novelty": number(novelty), "is_novel": is_novel}
            if request.abstain_below is not None:
                row["abstain"] = not confidence >= request.abstain_below
            rows.append(row)
        n = sum(map(len, prompts))
        usage = {"prompt_tokens": n, "total_tokens": n}
        return _json({"object": "list", "model": self._name, "data": rows, "usage": usage})

    async def verify(self, http: Request) -> Response:
        """Return the confidence for an answer, in the format of vLLM's semantic router."""
        request = parse(VerifyRequest, await read_body(http))
        prompts = await self._encode({"question": request.prompt})
        reads_answers = self._probe.reads_answers
        found = await self._score(http, prompts, [request.answer] if reads_answers else None, True)
        confidence, novelty, is_novel = (values.tolist()[0] for values in found)
        if number(confidence) is None:
            raise RequestError(400, "Expected `answer` to have at least one token, but it has none.", "answer")
        return _json(verdict(request, reads_answers, (confidence, novelty, is_novel)))

    async def _encode(self, questions: Mapping[str, str | Sequence[Message]]) -> list[list[int]]:
        """Convert questions to token ids. The keys of `questions` are used in error messages."""
        prompts = {param: self._defaults.prompt(question, param) for param, question in questions.items()}

        def encode() -> list[list[int]]:
            return [self._encode_question(prompt, param) for param, prompt in prompts.items()]

        lengths = [len(p) if isinstance(p, str) else sum(len(m["content"]) for m in p) for p in prompts.values()]
        return await _in_thread_if_long(encode, lengths)

    def _encode_question(self, prompt: str | list[dict[str, str]], param: str) -> list[int]:
        try:
            return self._engine.encode(prompt)
        except InputError as error:
            raise RequestError(400, str(error), param, "invalid_value") from None
        except TemplateError as error:  # many chat templates accept only some orders of roles
            message = f"The model's chat template rejects `{param}`: {one_line(error, 200)}"
            raise RequestError(400, message, param, "invalid_value") from None

    def _check_answers(self, questions: Sequence[object], answers: Sequence[str] | None) -> None:
        """Require one answer per question if the probe reads answers, and no answers otherwise."""
        if not self._probe.reads_answers and answers is not None:
            message = "Expected no `answers`, because the probe reads only questions, but got answers. Remove them."
        elif self._probe.reads_answers and len(answers or ()) != len(questions):
            message = (
                f"Expected `answers` to contain one answer per question, because the probe reads answers, but got "
                f"{len(answers or ())} for {len(questions)} questions."
            )
        else:
            return
        raise RequestError(400, message, "answers", "invalid_value")

    async def _score(
        self, http: Request, prompts: list[list[int]], answers: Sequence[str] | None, backoff: bool
    ) -> Confidences:
        async def found() -> Confidences:
            def job() -> Future[Confidences]:
                return self._engine.score(prompts, answers, backoff)

            future = await _in_thread_if_long(job, [*map(len, answers or ())])
            try:
                return await asyncio.wrap_future(future)
            except Exception as error:  # a failed pass can raise any type; the client gets a status instead
                raise engine_failure(error) from None

        return await _unless_disconnected(http, found())


async def _in_thread_if_long(work: Callable[[], Result], lengths: Sequence[int]) -> Result:
    """Call `work` in this thread, or in another thread if it has to tokenise a lot of text."""
    return work() if len(lengths) <= FEW and sum(lengths) <= SHORT else await asyncio.to_thread(work)


async def _answered(response: Awaitable[Response]) -> Response:
    """Await a response. Convert exceptions to error responses, so that Starlette does not close the connection."""
    try:
        return await response
    except ClientDisconnect:
        return Response(status_code=499)  # nobody receives it
    except Exception as error:  # any failure becomes a response in OpenAI's format
        return error_response(as_request_error(error))


async def _unless_disconnected(http: Request, work: Awaitable[Result]) -> Result:
    """Wait for a result. If the client disconnects first, cancel the work and raise ClientDisconnect."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(http.receive())  # the body has been read
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        gone.cancel()


def _json(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


@cache
def _template() -> Template:
    options: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True}
    return Environment(loader=FileSystemLoader(Path(__file__).parent), **options).get_template("page.html.j2")


def _page(**facts: Any) -> Response:
    """Render the server's HTML page. A nonce restricts the page to its own script and style."""
    nonce = secrets.token_urlsafe(16)
    text = _template().render(nonce=nonce, **facts)
    policy = (
        f"default-src 'none'; img-src data:; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'"
    )
    headers = {
        "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)
