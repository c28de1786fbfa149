"""Reading a server's reply: the choices in its JSON, in the several forms that servers have, or what is broken in it."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeVar

from extract.sampling.server.protocol import Choice, Reply, Request
from extract.text import one_line

#: What servers add to a model's name: a revision, the usual tag, or a date.
_VERSION = re.compile(r"(@[^/]*|:latest|-\d{4}-\d{2}-\d{2}|-\d{8})$")
_Number = TypeVar("_Number", int, float)
#: More characters of a server's words than this are not looked at.
#: Types of the parts that some servers divide an answer into.
_TEXT_PARTS = ("text", "output_text")
_REASONING_PARTS = ("thinking", "reasoning", "reasoning_text")

#: What servers call the ends of an answer, and what they are here. A tool that nobody offered is called by a text.
_ENDS: dict[str, Literal["stop", "length", "content_filter"]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}


class BrokenReply(ValueError):
    """A reply that is no whole answer: worth asking again. Its text says what is wrong with it."""


def read_reply(body: bytes, request: Request) -> Reply:
    """Read a reply's JSON.

    Args:
        body: The reply as it came.
        request: What was asked. Its stop texts are cut off where the server left them.

    Raises:
        BrokenReply: It is no JSON, or holds no whole answer.
    """
    text = body.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenReply(f"a reply that is no whole JSON: {one_line(text, 300)}") from None
    choices = content.get("choices") if isinstance(content, dict) else None
    if not isinstance(choices, list) or not choices:
        raise BrokenReply(f"a reply without choices: {one_line(server_words(content) or text, 300)}")
    whole, problem = _whole(choices, request.stop)
    if not whole:
        raise problem
    usage = _dict(content.get("usage"))
    model = content.get("model")
    return Reply(
        model=model if isinstance(model, str) else None,
        choices=whole,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        n_left_out=len(choices) - len(whole),
    )


def _whole(given: list[Any], stop: tuple[str, ...]) -> tuple[list[Choice], BrokenReply]:
    """The whole answers, by index where the server tells one and only the first of each, and what is wrong with others."""
    choices, problem = list[tuple[int, Choice]](), BrokenReply("no whole answer")
    for place, one in enumerate(map(_dict, given)):
        index = _count(one.get("index"))
        try:
            choices.append((place if index is None else index, _choice(one, stop)))
        except BrokenReply as broken:
            problem = broken
    of_index = dict(reversed(choices))
    return [of_index[index] for index in sorted(of_index)], problem


def _choice(choice: dict[str, Any], stop: tuple[str, ...]) -> Choice:
    end = choice.get("finish_reason")
    finish_reason = _ENDS.get(end) if isinstance(end, str) else None
    if finish_reason is None:
        raise BrokenReply(f"an answer that ended for the reason {_shown(end)}")
    message = choice.get("message", choice)
    if not isinstance(message, dict) or not {"message", "text"} & choice.keys():
        raise BrokenReply(f"an answer without a text: {_shown(choice)}")
    text, thought = _texts(message.get("content") if "message" in choice else choice["text"])
    reasoning = message.get("reasoning_content") or message.get("reasoning") or thought
    cuts = [text.index(end) for end in stop if end in text]
    return Choice(
        text=valid_text(text[: min(cuts)] if cuts else text),
        reasoning=valid_text(reasoning) if isinstance(reasoning, str) and reasoning else None,
        finish_reason="stop" if cuts else finish_reason,
        logprobs=None if cuts else _logprobs(_dict(choice.get("logprobs"))),
        token_ids=None if cuts else _numbers(choice.get("token_ids"), int),
        cut=bool(cuts),
    )


def _texts(content: Any) -> tuple[str, str]:
    """The answer in a choice's content and the reasoning in it: a text, null for none, or parts with a type each.

    Raises:
        BrokenReply: It is something else.
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
            reasoning += thought if isinstance(thought, str) else _texts(thought)[0]
        else:
            raise BrokenReply(f"an answer that is no text: {_shown(content)}")
    return text, reasoning


def _logprobs(given: dict[str, Any]) -> list[float] | None:
    """Of a chat's choice ``content[].logprob``, of a completion's ``token_logprobs[]``."""
    content = given.get("content")
    if isinstance(content, list):
        return _numbers([_dict(token).get("logprob") for token in content], float)
    return _numbers(given.get("token_logprobs"), float)


def _numbers(given: Any, kind: type[_Number]) -> list[_Number] | None:
    try:
        return [kind(value) for value in given] if isinstance(given, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _dict(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _count(given: Any) -> int | None:
    return given if type(given) is int and 0 <= given < 2**31 else None


def names_listed(body: bytes) -> set[str]:
    """Names of models in a server's list of them; none where it is no list.

    >>> names_listed(b'{"data": [{"id": "a"}, {"id": "b"}]}') == {"a", "b"}
    True
    """
    try:
        listed = _dict(json.loads(body)).get("data")
    except (ValueError, RecursionError):
        return set()
    names = [_dict(model).get("id") for model in listed] if isinstance(listed, list) else []
    return {name for name in names if isinstance(name, str)}


def valid_text(text: str) -> str:
    r"""The text with U+FFFD for halves of surrogate pairs, which no file can hold.

    >>> valid_text("a\ud83db")
    'a�b'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def server_words(content: Any) -> str | None:
    """What a server says went wrong, of the several forms that servers have."""
    error = _dict(content).get("error") or _dict(content).get("detail") or _dict(content).get("message")
    words = _dict(error).get("message", error)
    return words if words is None or isinstance(words, str) else _shown(words)


def _shown(value: Any) -> str:
    """A value out of a reply, cut at its end alone, so that a key in it is known by its beginning."""
    try:
        return one_line(repr(value), 300)
    except RecursionError:
        return "…"


def same_model(asked: str, says: str) -> bool:
    """Whether a reply's name of the model means the one asked for: it may add a path, a version, a date or a tag.

    >>> same_model("gpt-4o", "gpt-4o-2024-08-06"), same_model("SmolLM2", "HuggingFaceTB/SmolLM2@main")
    (True, True)
    >>> same_model("gpt-4o", "gpt-4o-mini"), same_model("Qwen3-8B", "Qwen3-8B-FP8")
    (False, False)
    """
    a, b = asked.lower().rstrip("/"), says.lower().rstrip("/")
    bare_a, bare_b = _VERSION.sub("", a), _VERSION.sub("", b)
    versions_agree = a == bare_a or b == bare_b or a.endswith(b.removeprefix(bare_b))
    paths_agree = f"/{bare_a}".endswith(f"/{bare_b}") or f"/{bare_b}".endswith(f"/{bare_a}")
    return versions_agree and paths_agree
