"""Wire protocol of OpenAI-compatible servers: request bodies and replies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from extract.text import one_line, valid_text

#: Types of the parts into which some servers split an answer.
_TEXT_PARTS = ("text", "output_text")
_REASONING_PARTS = ("thinking", "reasoning", "reasoning_text")
#: Dict from a server's finish reasons to the stored finish reasons. Tool calls count as "stop", because no tools are
#: offered.
FINISH_REASONS: dict[str, Literal["stop", "length", "content_filter"]] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls", "function_call"), "stop"),
    **dict.fromkeys(("length", "max_tokens"), "length"),
    "content_filter": "content_filter",
}
_LARGEST_LOGPROB = 1e-3  # allows for rounding errors of float32 logits in the hundreds
_LARGEST_FLOAT32 = 3e38


@dataclass(frozen=True)
class Request:
    """Request for one or more answers to a prompt. See `Decoding` for temperature, top-p and stop strings.

    Attributes:
        prompt: Plain text for /completions, or a list of ``{"role", "content"}`` messages for /chat/completions.
        n: Number of answers.
        top_k: Number of most likely tokens to sample from. If 0, there is no limit. The field is then omitted, because
            some servers do not support it.
        max_tokens: Maximum number of tokens per answer.
        seed: Seed for sampling. If None, no seed is sent.
        extra: Additional fields of the request body. A field whose value is None is removed.
    """

    prompt: str | list[dict[str, str]]
    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Path of the API endpoint."""
        return "/completions" if isinstance(self.prompt, str) else "/chat/completions"

    def body(self, model: str) -> dict[str, Any]:
        """Return the JSON body of the request, without fields that have no effect."""
        chat = not isinstance(self.prompt, str)
        body = {
            "model": model,
            "messages" if chat else "prompt": self.prompt,
            "n": self.n if self.n > 1 else None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k or None,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop) or None,
            "seed": self.seed,
            "logprobs": (True if chat else 1) if self.logprobs else None,
        }
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}


@dataclass(frozen=True)
class Choice:
    """One answer in a reply. Fields that the server does not return are None.

    Attributes:
        text: Answer as valid Unicode text. Empty if the server returned no text.
        reasoning: Reasoning before the answer, if the server returns it separately.
        logprobs: Log-probability of each token in nats.
        cut: Whether the client truncated the text at a stop string. If so, the server's token count does not match the
            text.
    """

    text: str
    reasoning: str | None
    finish_reason: Literal["stop", "length", "content_filter"]
    logprobs: list[float] | None
    token_ids: list[int] | None
    cut: bool = False

    def lacks_logprobs(self, n_tokens: int | None) -> bool:
        """Whether the number of log-probabilities does not match the token count.

        A difference of 1 is allowed, because the token count may exclude the end-of-sequence token.
        """
        if self.logprobs is None or n_tokens is None or self.reasoning:
            return False
        return abs(len(self.logprobs) - n_tokens) > 1


@dataclass(frozen=True)
class Reply:
    """Parsed reply. It has at least one answer, but can have fewer than requested.

    Fields that the server does not return are None.

    Attributes:
        choices: Answers, ordered by the server's index.
        n_left_out: Number of dropped answers, which were incomplete or had a duplicate index.
    """

    model: str | None
    choices: list[Choice]
    prompt_tokens: int | None
    completion_tokens: int | None
    n_left_out: int = 0

    @property
    def tokens_of_only_choice(self) -> int | None:
        """Server's token count for the only answer in the reply.

        None if there are several answers, if answers were dropped, or if the client truncated the answer.
        """
        alone = len(self.choices) == 1 and not self.n_left_out and not self.choices[0].cut
        return self.completion_tokens if alone else None

    def rows(self, question_id: str, samples: Sequence[int]) -> list[dict[str, Any]]:
        """Convert the answers to rows of the samples table, with the given sample indices."""
        return [
            {
                "question_id": question_id,
                "sample": sample,
                "text": choice.text,
                "reasoning": choice.reasoning,
                **_token_columns(choice, self.tokens_of_only_choice),
                "finish_reason": choice.finish_reason,
                "prompt_tokens": self.prompt_tokens or None,
            }
            for sample, choice in zip(samples, self.choices, strict=False)
        ]


def _token_columns(choice: Choice, n_tokens: int | None) -> dict[str, Any]:
    """Return the token columns for an answer. Impossible values become null."""
    ids, logprobs = choice.token_ids, choice.logprobs
    if choice.lacks_logprobs(n_tokens) or not all(-_LARGEST_FLOAT32 <= p <= _LARGEST_LOGPROB for p in logprobs or ()):
        logprobs = None
    if ids is not None and (any(_count(token) is None for token in ids) or len(ids) != len(logprobs or ids)):
        ids = None
    if n_tokens is None:
        n_tokens = next((len(values) for values in (ids, logprobs) if values is not None), None)
    if choice.text:  # a non-empty text has at least one token
        ids, logprobs, n_tokens = ids or None, logprobs or None, n_tokens or None
    return {"token_ids": ids, "logprobs": logprobs, "n_tokens": n_tokens}


class BrokenReply(ValueError):
    """Raised if a reply contains no complete answer. The request is retried."""


def read_reply(body: bytes, request: Request) -> Reply:
    """Parse the JSON body of a reply. Answers are truncated before the first stop string."""
    text = body.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenReply(f"a reply that is not valid JSON: {one_line(text, 300)}") from None
    given = content.get("choices") if isinstance(content, dict) else None
    if not isinstance(given, list) or not given:
        raise BrokenReply(f"a reply without choices: {one_line(server_words(content) or text, 300)}")
    choices, problem = dict[int, Choice](), BrokenReply("no complete answer")
    for position, choice in enumerate(map(_dict, given)):
        index = _count(choice.get("index"))
        try:
            choices.setdefault(position if index is None else index, _read_choice(choice, request.stop))
        except BrokenReply as broken:
            problem = broken
    if not choices:
        raise problem
    usage, model = _dict(content.get("usage")), content.get("model")
    return Reply(
        model=model if isinstance(model, str) else None,
        choices=[choices[index] for index in sorted(choices)],
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        n_left_out=len(given) - len(choices),
    )


def _read_choice(choice: dict[str, Any], stop: tuple[str, ...]) -> Choice:
    end = choice.get("finish_reason")
    finish_reason = FINISH_REASONS.get(end) if isinstance(end, str) else None
    if finish_reason is None:
        raise BrokenReply(f"an answer with the unknown finish reason {_repr(end)}")
    message = choice.get("message", choice)
    if not isinstance(message, dict) or not {"message", "text"} & choice.keys():
        raise BrokenReply(f"an answer without text: {_repr(choice)}")
    text, thought = split_content(message.get("content") if "message" in choice else choice["text"])
    reasoning = message.get("reasoning_content") or message.get("reasoning") or thought
    reasoning = valid_text(reasoning) if isinstance(reasoning, str) and reasoning else None
    if cuts := [text.index(end) for end in stop if end in text]:
        return Choice(valid_text(text[: min(cuts)]), reasoning, "stop", None, None, cut=True)
    given = _dict(choice.get("logprobs"))
    content, logprobs = given.get("content"), given.get("token_logprobs")  # for chats and for completions
    if isinstance(content, list):
        logprobs = [_dict(token).get("logprob") for token in content]
    token_ids = _numbers(choice.get("token_ids"), int)
    return Choice(valid_text(text), reasoning, finish_reason, _numbers(logprobs, float), token_ids)


def split_content(content: Any) -> tuple[str, str]:
    """Split content into answer and reasoning. The content is a string, null or a list of typed parts.

    Raises `BrokenReply` if a part is neither text nor reasoning.
    """
    if content is None or isinstance(content, str):
        return content or "", ""
    text = reasoning = ""
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            text += part
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            text += part["text"]
        elif kind in _REASONING_PARTS:
            thought = part.get("thinking") or part.get("reasoning") or part.get("text") or ""
            reasoning += thought if isinstance(thought, str) else split_content(thought)[0]
        else:
            raise BrokenReply(f"an answer that is not text: {_repr(content)}")
    return text, reasoning


def _numbers(given: Any, kind: type) -> list[Any] | None:
    try:
        return [kind(value) for value in given] if isinstance(given, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _dict(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _count(given: Any) -> int | None:
    """Return `given` if it is a count that fits in an int32, and None otherwise."""
    return given if type(given) is int and 0 <= given < 2**31 else None


def server_words(content: Any) -> str | None:
    """Return the error message in a parsed reply, or None."""
    error = _dict(content).get("error") or _dict(content).get("detail") or _dict(content).get("message")
    words = _dict(error).get("message", error)
    return words if words is None or isinstance(words, str) else _repr(words)


def _repr(value: Any) -> str:
    return one_line(repr(value), 300)
