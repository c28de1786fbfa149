"""Requests to the server, and errors for refused requests.

A request with an unsupported option is refused, unless the value has no effect.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from extract.errors import nearest
from extract.text import one_line, shown

MAX_QUESTIONS = 1024
#: Maximum number of stop strings, and maximum length of each.
MAX_STOPS, MAX_STOP_LENGTH = 16, 200
#: Unsupported options of the OpenAI and vLLM APIs, with the values that have no effect.
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
    "min_p": (0,),
    "repetition_penalty": (1,),
    **dict.fromkeys(
        (
            *("audio", "best_of", "chat_template", "chat_template_kwargs", "echo", "guided_json", "min_tokens"),
            *("moderation", "prediction", "prompt_cache_key", "reasoning_effort", "safety_identifier"),
            *("stop_token_ids", "suffix", "verbosity", "web_search_options"),
        ),
        (),
    ),
}

NOT_AN_OBJECT = "Expected the body to be a JSON object, but it is another JSON value."

Request = TypeVar("Request", bound="Body")


class RequestError(Exception):
    """Raised to refuse a request. Contains the status, headers and error body of the HTTP response."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        types = {401: "authentication_error", 429: "rate_limit_error"}
        kind = types.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def _text_of(content: Any) -> Any:
    """Join the text parts of a message's content, if it is a list."""
    if not isinstance(content, list):
        return content
    for part in content:
        is_text = isinstance(part, dict) and isinstance(part.get("text"), str)
        if not is_text or part != {"type": "text", "text": part["text"]}:
            raise ValueError("Only strings and parts of type text are supported")
    return "".join(part["text"] for part in content)


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class Body(BaseModel):
    """Base class for requests. Values are not converted to other types, and unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Message(Body):
    """A chat message."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of)]


#: Messages of a chat. Only the first invalid one is reported.
Chat = Annotated[list[Message], Field(min_length=1, fail_fast=True)]
#: A question is a string or a chat. The tags are removed from the names of invalid fields.
Question = Annotated[
    Annotated[str, Tag("[text]")] | Annotated[Chat, Tag("[chat]")],
    Discriminator(lambda value: "[chat]" if isinstance(value, list) else "[text]"),
]


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(Body):
    """Body of ``/v1/chat/completions``. Omitted settings default to those used to generate the training data.

    The fields `top_k`, `backoff` and `entropy` are not part of OpenAI's format. A `top_k` of 0 or -1 keeps all tokens.

    Attributes:
        backoff: Whether to shift the confidence for a novel question. See `Confidences`.
        entropy: Whether to add an `entropy` field to each choice. It contains the next-token entropy in nats for each
            token of the text, before temperature, top-p and top-k.
    """

    model: str
    messages: Chat
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]] | None, BeforeValidator(_listed)
    ] = Field(None, max_length=MAX_STOPS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    backoff: bool = True
    entropy: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_effect(cls, given: Any) -> Any:
        """Drop unsupported options if their values have no effect."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in NO_EFFECT or not _is_neutral(name, value)}

    @model_validator(mode="after")
    def _consistent(self) -> "ChatRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options` requires `stream` to be true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("`max_tokens` and `max_completion_tokens` differ, so set only one of them")
        if self.messages[-1].role != "user":
            raise ValueError("the last entry of `messages` must be from the user")
        return self

    @property
    def token_limit(self) -> int | None:
        """Maximum number of tokens in the answer, or None if the request has no limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class ScoreRequest(Body):
    """Body of ``/v1/score``."""

    model: str | None = None
    questions: list[Question] = Field(min_length=1, max_length=MAX_QUESTIONS)
    answers: list[str] | None = Field(None, fail_fast=True)
    backoff: bool = True
    abstain_below: float | None = Field(None, ge=0, le=1)


def _is_neutral(name: str, value: Any) -> bool:
    """Return whether this value of an unsupported option has no effect."""
    is_bool = isinstance(value, bool)
    return value is None or any(
        value == neutral and isinstance(neutral, bool) == is_bool for neutral in NO_EFFECT[name]
    )


def parse(kind: type[Request], content: bytes) -> Request:
    """Parse the body of a request.

    Raises:
        RequestError: If the body is not JSON, or if a field is unknown, unsupported, missing or invalid.
    """
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    path = [part for part in problem["loc"] if part not in ("[text]", "[chat]")]
    param = one_line("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:], 100) or None
    raise RequestError(400, _message(kind, problem, path, param), param, _code(problem))


def _code(problem: Mapping[str, Any]) -> str:
    known = {"json_invalid": "invalid_json", "extra_forbidden": "unsupported_parameter", "missing": "missing_parameter"}
    return known.get(problem["type"], "invalid_value")


def _message(kind: type[Body], problem: Mapping[str, Any], path: Sequence[Any], param: str | None) -> str:
    match problem["type"]:
        case "json_invalid":
            return f"Expected the body to be JSON, but it is not: {one_line(problem['ctx']['error'], 200)}."
        case "missing":
            return f"Expected the `{param}` field, but it is missing."
        case "extra_forbidden" if len(path) == 1 and path[0] in NO_EFFECT and kind is ChatRequest:
            return f"The value {_short(problem['input'])} is not supported for the `{param}` option. Remove the option."
        case "extra_forbidden":
            return f"The `{param}` field is unknown.{nearest(str(path[-1]), kind.model_fields)} Rename or remove it."
    reason = problem["msg"].removeprefix("Value error, ")
    reason = one_line(reason[:1].upper() + reason[1:], 200)
    if param is None:
        return f"Expected a valid request. {reason}." if problem["type"] == "value_error" else NOT_AN_OBJECT
    return f"Expected a valid `{param}`, but got {_short(problem['input'])}. {reason}."


def _short(value: Any) -> str:
    return one_line(shown(value), 120)


def number(value: float) -> float | None:
    """Round a float32 number to seven significant digits, or return None for NaN."""
    return None if math.isnan(value) else float(f"{value:.7g}")


def to_json(content: Any) -> bytes:
    """Encode the body of a response. Unpaired surrogates are replaced."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
