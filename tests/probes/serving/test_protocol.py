"""Tests of requests: supported options are parsed, all others are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from probes.serving.protocol import (
    MAX_QUESTIONS,
    NO_EFFECT,
    Body,
    ChatRequest,
    RequestError,
    ScoreRequest,
    number,
    parse,
    to_json,
)
from probes.serving.verify import VerifyRequest, verdict

MESSAGE = {"role": "user", "content": "Why?"}
CHAT = {"model": "tiny", "messages": [MESSAGE]}


def refused(kind: type[Body], content: Any) -> RequestError:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(RequestError) as caught:
        parse(kind, body)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    json.loads(to_json(caught.value.body()))
    return caught.value


def test_supported_options_are_parsed() -> None:
    options = {
        "max_completion_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 7,
        "stop": "\n",
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "someone",
        "backoff": False,
    }
    request = parse(ChatRequest, json.dumps({**CHAT, **options}).encode())
    assert (request.token_limit, request.temperature, request.top_p, request.seed) == (5, 0, 0.5, 7)
    assert (request.stop, request.stream, request.backoff) == (["\n"], True, False)
    assert request.stream_options is not None
    assert request.stream_options.include_usage
    plain = parse(ChatRequest, json.dumps({**CHAT, "max_tokens": 3, "stop": ["a", "b"]}).encode())
    assert (plain.token_limit, plain.stop, plain.backoff) == (3, ["a", "b"], True)


def test_text_parts_are_joined() -> None:
    content = [{"type": "text", "text": "Why "}, {"type": "text", "text": "so?"}]
    request = parse(ChatRequest, json.dumps({**CHAT, "messages": [{**MESSAGE, "content": content}]}).encode())
    assert request.messages[0].content == "Why so?"


UNSUPPORTED = {
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "logit_bias": {"5": 1},
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "functions": [{}],
    "modalities": ["audio"],
    "store": True,
}


@pytest.mark.parametrize("name", NO_EFFECT)
def test_unsupported_options_are_refused_by_name(name: str) -> None:
    error = refused(ChatRequest, {**CHAT, name: UNSUPPORTED.get(name, "x")})
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert f"`{name}`" in error.message


def test_unsupported_options_without_effect_are_accepted() -> None:
    for name, values in NO_EFFECT.items():
        for value in (None, *values):
            parse(ChatRequest, json.dumps({**CHAT, name: value}).encode())
    assert refused(ChatRequest, {**CHAT, "n": True}).param == "n"  # in Python, True equals 1
    assert refused(ChatRequest, {**CHAT, "logprobs": 0}).param == "logprobs"


@pytest.mark.parametrize(
    ("content", "param", "code", "words"),
    [
        (b"{", None, "invalid_json", "line 1"),
        (b"", None, "invalid_json", "JSON"),
        (b"\xff\xfe", None, "invalid_json", "JSON"),
        (b"[" * 500_000, None, "invalid_json", "recursion"),
        (b'{"model": "a\\ud800"}', None, "invalid_json", "JSON"),
        (b'{"model": "tiny", "messages": [], "temperature": NaN}', "messages", "invalid_value", "at least 1"),
        (b'{"model": "tiny", "messages": NaN}', "messages", "invalid_value", "array"),
        ([], None, "invalid_value", "JSON object"),
        ({"messages": [MESSAGE]}, "model", "missing_parameter", "missing"),
        ({**CHAT, "temprature": 1}, "temprature", "unsupported_parameter", "`temperature`"),
        ({**CHAT, "x\n\0" * 99: 1}, None, "unsupported_parameter", "unknown"),
        ({**CHAT, "temperature": "1"}, "temperature", "invalid_value", "number"),
        ({**CHAT, "temperature": 2.1}, "temperature", "invalid_value", "2"),
        ({**CHAT, "top_p": 0}, "top_p", "invalid_value", "greater than 0"),
        ({**CHAT, "top_k": -2}, "top_k", "invalid_value", "-1"),
        ({**CHAT, "entropy": 1}, "entropy", "invalid_value", "boolean"),
        ({**CHAT, "max_tokens": 0}, "max_tokens", "invalid_value", "1"),
        ({**CHAT, "max_tokens": True}, "max_tokens", "invalid_value", "integer"),
        ({**CHAT, "max_tokens": 3, "max_completion_tokens": 4}, None, "invalid_value", "`max_tokens`"),
        ({**CHAT, "seed": 10**300}, "seed", "invalid_value", "less than"),
        ({**CHAT, "stop": [""]}, "stop[0]", "invalid_value", "at least 1"),
        ({**CHAT, "stop": ["a"] * 17}, "stop", "invalid_value", "16"),
        ({**CHAT, "stop": "a" * 201}, "stop[0]", "invalid_value", "200"),
        ({**CHAT, "stream_options": {"include_usage": True}}, None, "invalid_value", "`stream`"),
        ({**CHAT, "messages": [{**MESSAGE, "role": "tool"}]}, "messages[0].role", "invalid_value", "tool"),
        ({**CHAT, "messages": [{**MESSAGE, "name": "x"}]}, "messages[0].name", "unsupported_parameter", "unknown"),
        ({**CHAT, "messages": [{**MESSAGE, "content": None}]}, "messages[0].content", "invalid_value", "string"),
        ({**CHAT, "messages": [{**MESSAGE, "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content", "invalid_value", "type text"),
        ({**CHAT, "messages": [{**MESSAGE, "role": "assistant"}]}, None, "invalid_value", "from the user"),
    ],
)  # fmt: skip
def test_invalid_chats_are_refused(content: Any, param: str | None, code: str, words: str) -> None:
    error = refused(ChatRequest, content)
    assert (error.status, error.code) == (400, code)
    assert param is None or error.param == param
    assert words in error.message


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": ["a"] * (MAX_QUESTIONS + 1)}, "questions"),
        ({"questions": ["a", 3]}, "questions[1]"),
        ({"questions": ["a", []]}, "questions[1]"),
        ({"questions": ["a", [{"role": "x", "content": "b"}]]}, "questions[1][0].role"),
        ({"questions": "a"}, "questions"),
        ({"questions": ["a"], "answers": [3]}, "answers[0]"),
        ({"questions": ["a"], "abstain_below": 1.5}, "abstain_below"),
        ({"questions": ["a"], "threshold": 0.5}, "threshold"),
    ],
)
def test_invalid_questions_are_refused(content: Any, param: str) -> None:
    assert refused(ScoreRequest, content).param == param


@pytest.mark.parametrize(
    ("kind", "body"),
    [(ChatRequest, {"model": "tiny", "messages": [0] * 99}), (ScoreRequest, {"questions": ["a"], "answers": [0] * 99})],
)
def test_only_the_first_of_many_errors_is_collected(kind: type[Body], body: Any) -> None:
    with pytest.raises(ValidationError) as caught:  # an error takes much more memory than the field in the body
        kind.model_validate(body)
    assert caught.value.error_count() == 1


def test_questions_are_texts_or_chats() -> None:
    request = parse(ScoreRequest, json.dumps({"questions": ["a", [MESSAGE]]}).encode())
    assert request.questions[0] == "a"
    assert request.questions[1][0].content == "Why?"  # type: ignore[union-attr]


def test_the_context_of_a_verification_precedes_the_question() -> None:
    given = {"question": "Why?", "answer": "So.", "context": "It rains."}
    request = parse(VerifyRequest, json.dumps(given).encode())
    assert (request.prompt, request.threshold) == ("It rains.\nWhy?", 0.7)
    assert parse(VerifyRequest, json.dumps({**given, "context": ""}).encode()).prompt == "Why?"
    assert refused(VerifyRequest, {**given, "answer": ""}).param == "answer"
    assert refused(VerifyRequest, {**given, "threshold": 1.1}).param == "threshold"
    assert refused(VerifyRequest, {**given, "samples": 5}).param == "samples"


@pytest.mark.parametrize(("confidence", "escalates"), [(0.69, True), (0.7, False), (0.71, False)])
def test_a_verdict_has_the_fields_of_the_router(confidence: float, escalates: bool) -> None:
    request = VerifyRequest(question="Why?", answer="So.")
    found = verdict(request, True, (confidence, 0.5, False))
    names = ("confidence", "should_escalate", "verified_count", "total_samples", "samples", "threshold")
    assert [found[name] for name in names] == [confidence, escalates, 0, 0, [], 0.7]


def test_numbers_are_json() -> None:
    assert [number(value) for value in (0.1 + 2e-9, float("nan"))] == [0.1, None]
    assert to_json({"a": "\ud800ü"}) == '{"a":"?ü"}'.encode()
