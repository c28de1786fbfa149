"""Responses from ``/v1/chat/completions``: complete answers, or answers streamed as server-sent events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from extract.errors import InputError
from probes.serving.access import closing
from probes.serving.engine import Engine, EngineClosed, QueueFull, Settings
from probes.serving.jobs import AnswerStep, log_failure
from probes.serving.protocol import ChatRequest, Message, RequestError, number, to_json

if TYPE_CHECKING:
    from probes.saved.artefact import ConfidenceProbe

#: Token limit of an answer if neither the request nor the probe's training data specifies one.
MAX_TOKENS = 256
#: Message for failures whose cause is not sent to clients.
FAILED = "The server failed to answer the request. The reason is in the server's log."


@dataclass(frozen=True)
class Defaults:
    """Default settings for requests: those used to generate the probe's training data.

    If the temperature is unknown, decoding is greedy.

    Attributes:
        is_chat: Whether the probe's prompts use the chat template.
        max_tokens, temperature, top_p, top_k: See `Settings`.
    """

    is_chat: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int

    @classmethod
    def of(cls, probe: ConfidenceProbe) -> Defaults:
        """Return the defaults for a probe."""
        decoding: Mapping[str, Any] = probe.config.get("decoding") or {}
        # settings of imported answers can be unknown
        return cls(
            is_chat=probe.config["prompt"].get("chat", True),
            max_tokens=decoding.get("max_new_tokens") or MAX_TOKENS,
            temperature=decoding.get("temperature") or 0.0,
            top_p=decoding.get("top_p") or 1.0,
            top_k=decoding.get("top_k") or 0,
        )

    def settings(self, request: ChatRequest) -> Settings:
        """Return the settings for generating the answer to a request."""
        return Settings(
            max_tokens=self.max_tokens if request.token_limit is None else request.token_limit,
            temperature=self.temperature if request.temperature is None else request.temperature,
            top_p=self.top_p if request.top_p is None else request.top_p,
            seed=request.seed,
            stop=tuple(request.stop or ()),
            top_k=self.top_k if request.top_k is None else max(request.top_k, 0),
            entropy=request.entropy,
        )

    def prompt(self, question: str | Sequence[Message], param: str) -> str | list[dict[str, str]]:
        """Convert a question to a prompt for the engine.

        A string or a single user message is inserted into the probe's prompt template. Other chats are used unchanged.

        Raises:
            RequestError: If the probe's prompts are plain text, and the question is neither a string nor a single user
                message.
        """
        if isinstance(question, str):
            return question
        if len(question) == 1 and question[0].role == "user":
            return question[0].content
        if not self.is_chat:
            has_system = any(message.role == "system" for message in question)
            raise RequestError(
                400,
                f"Expected `{param}` to be a single message from the user, but got "
                f"{'a system message' if has_system else 'several messages'}. The probe was trained with plain "
                "prompts, without a chat template. Send only the question.",
                param,
                "invalid_value",
            )
        return [message.model_dump() for message in question]


class Answering:
    """An answer that is being generated. Each `AnswerStep` is passed from the engine's thread to the event loop."""

    def __init__(self, engine: Engine, prompt: list[int], settings: Settings, backoff: bool) -> None:
        self._loop, self._events = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self._n_prompt, self.reason = len(prompt), ""
        self._last: AnswerStep | None = None
        self._job = engine.generate(prompt, settings, self._put_step, self._put, backoff)

    def _put_step(self, step: AnswerStep) -> None:
        self._last = step
        self._put(replace(step, text=""))  # saves memory if a client is slow

    def _put(self, event: AnswerStep | str | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def steps(self) -> AsyncIterator[AnswerStep]:
        """Yield the steps of the answer, with `text` left empty. Then set `reason` to the finish reason.

        Raises:
            RequestError: If generation failed.
        """
        while True:
            event = await self._events.get()
            if isinstance(event, BaseException):
                raise engine_failure(event)
            if isinstance(event, str):
                self.reason = event
                return
            yield event

    def cancel(self) -> None:
        """Stop generating the answer."""
        self._job.cancel()

    async def complete(self) -> AnswerStep:
        """Wait for generation to finish. Return the last step, with the complete text and all entropies."""
        entropies = list[float]()
        async for step in self.steps():
            entropies += step.entropies or ()
        if self._last is None:
            raise RuntimeError("the engine returned no `AnswerStep`")
        return self._last if self._last.entropies is None else replace(self._last, entropies=tuple(entropies))

    def usage(self, step: AnswerStep) -> dict[str, int]:
        """Return the number of prompt tokens, the number of answer tokens up to a step, and their sum."""
        n = step.n_tokens
        return {"prompt_tokens": self._n_prompt, "completion_tokens": n, "total_tokens": self._n_prompt + n}


def confidence_fields(step: AnswerStep) -> dict[str, Any]:
    """Return the fields of a choice that are not part of OpenAI's format. Undefined numbers are None."""
    entropies = {} if step.entropies is None else {"entropy": [number(value) for value in step.entropies]}
    return {
        "confidence": number(step.confidence),
        "novelty": number(step.novelty),
        "is_novel": bool(step.is_novel),
        **entropies,
    }


def new_completion(model: str, kind: str) -> dict[str, Any]:
    """Return the fields shared by whole answers and chunks of streamed answers."""
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


async def completion(answering: Answering, model: str) -> dict[str, Any]:
    """Return a complete answer in OpenAI's format."""
    step = await answering.complete()
    message = {"role": "assistant", "content": step.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answering.reason}
    return {
        **new_completion(model, "chat.completion"),
        "choices": [{**choice, **confidence_fields(step)}],
        "usage": answering.usage(step),
    }


class EventStream(StreamingResponse):
    """Response that streams an answer. If the client disconnects, generation is cancelled.

    If `include_usage` is true, the last event contains the token counts.
    """

    def __init__(self, answering: Answering, model: str, include_usage: bool) -> None:
        content = events(answering, model, include_usage)
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answering = answering

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answering.cancel()


async def events(answering: Answering, model: str, include_usage: bool) -> AsyncIterator[bytes]:
    """Yield a streamed answer as server-sent events in OpenAI's format.

    Each chunk contains the new text of one step and the confidence so far. If generation fails, the error is sent as an
    event.
    """
    common = new_completion(model, "chat.completion.chunk")
    usage = {"usage": None} if include_usage else {}

    def event(content: Mapping[str, Any]) -> bytes:
        return b"data: " + to_json(content) + b"\n\n"

    def chunk(delta: Mapping[str, str], step: AnswerStep, reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **confidence_fields(step)}
        return event({**common, "choices": [choice], **usage})

    role, last = {"role": "assistant"}, None
    try:
        async for step in answering.steps():
            yield chunk({**role, "content": step.piece}, step, None)
            role, last = {}, step
        assert last is not None
        without = None if last.entropies is None else ()  # already sent with the last step
        yield chunk({}, replace(last, entropies=without), answering.reason)
        if include_usage:
            yield event({**common, "choices": [], "usage": answering.usage(last)})
    # Every exception is caught, because the status has already been sent: an exception that left the generator would
    # close the connection without a reason. `as_request_error` logs unexpected errors.
    except Exception as error:
        yield event(as_request_error(error).body())
    yield b"data: [DONE]\n\n"


def engine_failure(error: BaseException) -> RequestError:
    """Convert an exception to an error for the client. The engine has already logged the exception."""
    if isinstance(error, EngineClosed):
        return closing()
    message = str(error) if isinstance(error, InputError) else FAILED
    return RequestError(500, message, code="internal_error")


def as_request_error(error: Exception) -> RequestError:
    """Convert any exception to an error for the client. Unexpected exceptions are also logged."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineClosed):
        return closing()
    if isinstance(error, QueueFull):
        return RequestError(429, str(error), code="queue_full", headers={"Retry-After": "1"})
    if isinstance(error, InputError):
        return RequestError(400, str(error), code="invalid_value")
    log_failure("A request", error)
    return RequestError(500, FAILED, code="internal_error")
