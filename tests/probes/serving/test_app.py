"""Tests of the server over HTTP: answers, scores, verification, bad requests, limits, cancelled requests and its end."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import torch

from probes.saved.confidence import ConfidentModel
from probes.serving.access import MAX_BODY
from probes.serving.chat import MAX_TOKENS, Defaults
from probes.serving.engine import Engine, Settings
from probes.serving.protocol import ChatRequest, Message
from tests.helpers.chromium import CHROMIUM, chromium
from tests.helpers.probe_server import served, wait_until
from tests.helpers.tiny import byte_tokenizer, tiny_model
from tests.probes.saved.test_streaming import hooks_of, make_any_probe

QUESTIONS = [f"What is {'long ' * (i % 4)}question {i} about?" for i in range(24)]
KEY = "a-secret-key"
pytestmark = pytest.mark.slow


class Server:
    """Servers with the tiny model, one for each kind of probe, and the expected confidences."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self.model, self.tokenizer = stack, tiny_model(), byte_tokenizer()
        self._started: dict[str, tuple[str, ConfidentModel, Engine]] = {}

    def start(self, kind: str) -> tuple[str, ConfidentModel, Engine]:
        """Return the address, the attached probe and the engine of a server, which is started on first use."""
        if kind not in self._started:
            probe = make_any_probe(kind.removeprefix("plain_"), self.model, self.tokenizer, stop=[])
            probe.config["prompt"]["chat"] = not kind.startswith("plain_")
            engine = Engine(probe, self.model, self.tokenizer, max_batch_size=8, max_queue=64)
            self._stack.callback(engine.close)
            url = self._stack.enter_context(served(engine, probe))
            self._started[kind] = url, probe.attach(self.model, self.tokenizer), engine
        return self._started[kind]

    def client(self, kind: str = "last_prompt") -> openai.OpenAI:
        url, _, _ = self.start(kind)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)
        self._stack.callback(client.close)
        return client

    def http(self, kind: str = "last_prompt") -> httpx.Client:
        url, _, _ = self.start(kind)
        return self._stack.enter_context(httpx.Client(base_url=url, timeout=20))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(stack)


@contextmanager
def paused(model: Any) -> Iterator[threading.Event]:
    """Let the model wait before each pass, and yield an event that is set when the model waits."""
    waits, goes_on = threading.Event(), threading.Event()

    def before(*_: Any) -> None:
        waits.set()
        assert goes_on.wait(20)

    handle = model.model.register_forward_pre_hook(before)  # the decoder, which runs in every pass
    try:
        yield waits
    finally:
        goes_on.set()
        handle.remove()


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def chat(content: str = "Why?", **options: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": user(content), **options}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a response, whose message must be one line."""
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert re.fullmatch(r"[^\n]{10,600}", error["message"])
    return error


# Answers


@pytest.mark.parametrize("kind", ["last_prompt", "plain_last_prompt"])
def test_concurrent_clients_get_the_confidences_of_score(kind: str, server: Server) -> None:
    client, (_, attached, _) = server.client(kind), server.start(kind)
    expected = attached.score(QUESTIONS)

    def ask(question: str) -> tuple[float, float, bool]:
        done = client.chat.completions.create(**chat(question, max_tokens=3, temperature=0))
        (choice,) = done.choices
        assert choice.finish_reason in ("stop", "length")
        assert choice.message.role == "assistant"
        assert done.usage is not None
        assert done.usage.prompt_tokens == len(attached._encode(question, None)[0])
        extra: Any = choice.model_extra
        return extra["confidence"], extra["novelty"], extra["is_novel"]

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, QUESTIONS))
    for i, values in enumerate(zip(*found, strict=True)):
        assert list(values) == pytest.approx(expected[i].tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer"])
def test_streams_have_the_steps_of_the_library(kind: str, server: Server) -> None:
    client, (_, attached, _) = server.client(kind), server.start(kind)
    steps = list(attached.stream("Why?", max_new_tokens=6, do_sample=False))
    chunks = list(
        client.chat.completions.create(
            **chat(max_tokens=6, temperature=0, stream=True, stream_options={"include_usage": True})
        )
    )
    *parts, last, usage = chunks
    assert [part.choices[0].delta.content for part in parts] == [step.piece for step in steps]
    assert parts[0].choices[0].delta.role == "assistant"
    found: list[Any] = [part.choices[0].model_extra for part in (*parts, last)]
    for values, step in zip(found, [*steps, steps[-1]], strict=True):
        assert values["confidence"] == (
            None if step.n_tokens == 1 and kind == "mean_answer" else pytest.approx(step.confidence, abs=1e-4)
        )
        assert values["is_novel"] is step.is_novel
    assert last.choices[0].finish_reason in ("stop", "length")
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == steps[-1].n_tokens
    whole = client.chat.completions.create(**chat(max_tokens=6, temperature=0))
    extra: Any = whole.choices[0].model_extra
    assert whole.choices[0].message.content == steps[-1].text
    assert extra["confidence"] == pytest.approx(steps[-1].confidence, abs=1e-4)


def test_entropies_are_sent_if_they_are_requested(server: Server) -> None:
    client, body = server.client("mean_answer"), chat(max_tokens=8, temperature=0)
    whole, without = (client.chat.completions.create(**body, extra_body={"entropy": e}) for e in (True, False))
    found: Any = whole.choices[0].model_extra
    assert whole.usage is not None
    assert len(found["entropy"]) == whole.usage.completion_tokens
    assert all(value >= 0 for value in found["entropy"])
    assert "entropy" not in (without.choices[0].model_extra or {})
    parts = client.chat.completions.create(**body, stream=True, extra_body={"entropy": True})
    streamed: list[Any] = [part.choices[0].model_extra for part in parts]
    assert [value for part in streamed for value in part["entropy"]] == pytest.approx(found["entropy"], abs=1e-5)
    assert streamed[-1]["entropy"] == []


def test_unknown_settings_of_the_training_data(server: Server) -> None:
    _, attached, _ = server.start("last_prompt")
    probe, request = attached.probe, ChatRequest(model="tiny", messages=[Message(role="user", content="Why?")])
    names = ("temperature", "top_p", "top_k", "max_new_tokens")
    before = probe.config.get("decoding")
    try:
        for decoding, expected in (
            (dict.fromkeys(names), Settings(MAX_TOKENS)),
            ({}, Settings(MAX_TOKENS)),
            (dict(zip(names, (0.5, 0.9, 7, 3), strict=True)), Settings(3, 0.5, 0.9, top_k=7)),
        ):
            probe.config["decoding"] = decoding
            assert Defaults.of(probe).settings(request) == expected
            assert Defaults.of(probe).settings(request.model_copy(update={"top_k": -1})).top_k == 0
    finally:
        probe.config["decoding"] = before


def test_settings_that_are_not_given_are_those_of_the_training_data(server: Server) -> None:
    client = server.client("mean_answer")  # 9 tokens at the temperature 0.7
    answers = [client.chat.completions.create(**chat(seed=seed)) for seed in (1, 1, 2)]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1] != texts[2]
    assert all(answer.usage is not None and answer.usage.completion_tokens <= 9 for answer in answers)


def test_chats_are_used_unchanged_but_a_single_message_is_a_question(server: Server) -> None:
    http, (_, attached, _) = server.http(), server.start("last_prompt")
    chats = [user("Why?"), [{"role": "system", "content": "Be brief."}, *user("Why?")]]
    rows = http.post("/v1/score", json={"questions": ["Why?", *chats]}).json()["data"]
    expected = [float(attached.score(prompt).confidence) for prompt in ("Why?", "Why?", chats[1])]
    assert [row["confidence"] for row in rows] == pytest.approx(expected, abs=1e-4)
    response = http.post("/v1/chat/completions", json={"model": "tiny", "messages": chats[1], "max_tokens": 2})
    assert response.json()["choices"][0]["confidence"] == pytest.approx(expected[2], abs=1e-4)


@pytest.mark.parametrize("extra", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
def test_a_probe_with_a_plain_prompt_refuses_other_chats(extra: dict[str, str], server: Server) -> None:
    response = server.http("plain_last_prompt").post(
        "/v1/chat/completions", json=chat() | {"messages": [extra, *user("Why?")]}
    )
    assert (response.status_code, error_of(response)["param"]) == (400, "messages")
    assert "plain prompt" in response.text


# Scores and verification


def test_scores_of_answers(server: Server) -> None:
    http, (_, attached, _) = server.http("mean_answer"), server.start("mean_answer")
    answers = [f"Answer {i}" * (i % 3) for i in range(len(QUESTIONS))]
    body = {"questions": QUESTIONS, "answers": answers, "abstain_below": 0.5, "model": "tiny"}
    response = http.post("/v1/score", json=body).json()
    expected = attached.score(QUESTIONS, answers)
    assert [row["index"] for row in response["data"]] == list(range(len(QUESTIONS)))
    for row, confidence, answer in zip(response["data"], expected.confidence.tolist(), answers, strict=True):
        assert row["confidence"] == (pytest.approx(confidence, abs=1e-4) if answer else None)
        assert row["abstain"] is (not answer or confidence < 0.5)


def test_raw_confidences_are_not_backed_off(server: Server) -> None:
    http, (_, attached, _) = server.http(), server.start("last_prompt")
    novelty = attached.probe.novelty
    assert novelty is not None
    quantiles = novelty.quantiles.clone()
    novelty.quantiles.copy_(torch.linspace(0, 1e-3, 101))  # every question is novel
    try:
        for backoff in (True, False):
            body = {"questions": ["Why?"], "backoff": backoff}
            (row,) = http.post("/v1/score", json=body).json()["data"]
            assert row["is_novel"]
            assert row["confidence"] == pytest.approx(
                float(attached.score("Why?", backoff=backoff).confidence), abs=1e-4
            )
            done = http.post("/v1/chat/completions", json=chat(backoff=backoff, max_tokens=1)).json()
            assert done["choices"][0]["confidence"] == row["confidence"]
    finally:
        novelty.quantiles.copy_(quantiles)


def test_verification(server: Server) -> None:
    for kind in ("last_prompt", "mean_answer"):
        _, attached, _ = server.start(kind)
        body = {"question": "Why?", "answer": "So.", "context": "It rains.", "threshold": 0.4}
        found = server.http(kind).post("/verify", json=body).json()
        expected = attached.score("It rains.\nWhy?", ["So."] if kind == "mean_answer" else None)
        assert found["confidence"] == pytest.approx(float(expected.confidence), abs=1e-4)
        assert found["should_escalate"] is (found["confidence"] < 0.4)
        assert found["answer_was_read"] is (kind == "mean_answer")


# Bad requests


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/chat/completions", b"{", 400, "invalid_json"),
        ("/v1/chat/completions", b"[" * 10**6, 400, "invalid_json"),
        ("/v1/chat/completions", chat(model="other"), 404, "model_not_found"),
        ("/v1/chat/completions", chat(n=2), 400, "unsupported_parameter"),
        ("/v1/chat/completions", chat("x" * 600), 400, "invalid_value"),
        ("/v1/chat/completions", chat("x" * 30_000, stream=True), 400, "invalid_value"),
        ("/v1/chat/completions", chat(" "), 400, "invalid_value"),
        ("/v1/score", {"questions": ["Why?", ""]}, 400, "invalid_value"),
        ("/v1/score", {"questions": ["Why?"], "answers": ["So."]}, 400, "invalid_value"),
        ("/v1/score", {"questions": ["Why?"], "model": "other"}, 404, "model_not_found"),
        ("/verify", {"question": "Why?"}, 400, "missing_parameter"),
        ("/verify", {"question": " ", "answer": "So."}, 400, "invalid_value"),
        ("/nothing", {}, 404, None),
        ("/health", {}, 405, None),
    ],
)
def test_bad_requests_are_refused(path: str, body: Any, status: int, code: str | None, server: Server) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = server.http().post(path, content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, error_of(response)["code"]) == (status, code)


def test_very_low_settings_are_greedy(server: Server) -> None:
    http, given = server.http(), chat(max_tokens=4, seed=1)
    found = [
        http.post("/v1/chat/completions", json=given | settings).json()["choices"][0]["message"]
        for settings in ({"temperature": 0}, {"temperature": 1e-40}, {"temperature": 1, "top_p": 1e-46})
    ]
    assert found[0] == found[1] == found[2]


def test_messages_that_the_chat_template_refuses(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ raise_exception('Roles must alternate') }}" + str(server.tokenizer.chat_template)
    http = server.http()
    monkeypatch.setattr(server.tokenizer, "chat_template", template)
    for path, body in {"/v1/chat/completions": chat(), "/v1/score": {"questions": [user("Why?")]}}.items():
        response = http.post(path, json=body)
        assert (response.status_code, error_of(response)["code"]) == (400, "invalid_value")
        assert "Roles must alternate" in response.text


def test_long_answers_are_refused_without_delaying_other_requests(server: Server) -> None:
    response = server.http("mean_answer").post("/v1/score", json={"questions": ["Why?"], "answers": ["a" * 10**5]})
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_value")


def test_answers_are_required_by_probes_that_read_them(server: Server) -> None:
    http = server.http("mean_answer")
    for answers in (None, ["So."] * 2):
        response = http.post("/v1/score", json={"questions": ["Why?"], "answers": answers})
        assert (response.status_code, error_of(response)["param"]) == (400, "answers")


def test_the_served_model_is_listed(server: Server) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "confidence-probes"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("other/model")


def test_large_bodies_are_refused_before_they_are_read(server: Server) -> None:
    url, _, engine = server.start("last_prompt")
    before = engine.counts()["n_requests"]
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
        connection.sendall(head.encode())  # without a body
        assert b" 413 " in connection.recv(2**12)
    http, kind = server.http(), {"Content-Type": "application/json"}
    response = http.post("/v1/score", content=b'"' + b"a" * 10_000_000, headers=kind)
    assert (response.status_code, error_of(response)["code"]) == (413, "too_large")
    response = http.post("/v1/score", content=iter([b"a" * 2**18] * 40), headers=kind)  # without a length
    assert response.status_code == 413
    assert http.post("/v1/score", json={"questions": ["Why?"]}).status_code == 200
    assert engine.counts()["n_requests"] == before + 1


def test_a_body_must_be_declared_as_json(server: Server) -> None:
    response = server.http().post("/v1/score", content=b'{"questions": ["Why?"]}')  # as forms of other sites can
    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("LOCALHOST", 200), ("rebound.example", 403), ("127.0.0.1.example.org:80", 403), ("", 403), ("[::1].x", 403)],
)  # fmt: skip
def test_other_host_names_are_refused(host: str, status: int, server: Server) -> None:
    assert server.http().get("/health", headers={"Host": host}).status_code == status


# Keys, the queue, cancelled requests, failures


def test_keys(server: Server) -> None:
    _, attached, engine = server.start("last_prompt")
    with (
        served(engine, attached.probe, api_key=KEY, check_host=False, closes=False) as url,
        httpx.Client(base_url=url) as http,
    ):
        for value in (
            None,
            "",
            KEY,
            "Bearer",
            f"Bearer {KEY}x",
            f"Bearer {KEY[:-1]}",
            "Bearer ü",
            f"Basic {KEY}",
            "Basic eA==",
            "Basic eDp5",
        ):
            headers = {} if value is None else {"Authorization": value.encode()}
            for path in ("/v1/models", "/metrics", "/v1/models/tiny", "/nothing"):
                response = http.get(path, headers=headers)
                assert (response.status_code, error_of(response)["code"]) == (401, "invalid_api_key")
                assert KEY not in response.text
            assert http.post("/v1/score", content=b"a" * 10**6, headers=headers).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        assert httpx.get(f"{url.replace('//', f'//router:{KEY}@')}/v1/models").status_code == 200
        assert [http.get(path, headers={"Host": "example.org"}).status_code for path in ("/", "/health")] == [200, 200]
        assert 'type="password"' in http.get("/").text
        assert KEY not in http.get("/").text


def test_a_full_queue(server: Server) -> None:
    _, attached, _ = server.start("last_prompt")
    engine = Engine(attached.probe, server.model, server.tokenizer, max_batch_size=1, max_queue=1)
    with (
        served(engine, attached.probe) as url,
        httpx.Client(base_url=url, timeout=20) as http,
        ThreadPoolExecutor(2) as pool,
    ):
        with paused(server.model) as waits:
            first = pool.submit(http.post, "/v1/chat/completions", json=chat(max_tokens=2))
            assert waits.wait(10)
            second = pool.submit(http.post, "/v1/score", json={"questions": ["Why?"]})
            wait_until(lambda: engine.counts()["queued"] == 1)
            for path, body in {
                "/v1/score": {"questions": ["Why?"]},
                "/v1/chat/completions": chat(stream=True),
                "/verify": {"question": "Why?", "answer": "So."},
            }.items():
                refused = http.post(path, json=body)
                assert (refused.status_code, error_of(refused)["type"]) == (429, "rate_limit_error")
                assert int(refused.headers["Retry-After"]) >= 1
            assert "confidence_probes_rejected_total 3\n" in http.get("/metrics").text
        assert [first.result().status_code, second.result().status_code] == [200, 200]
        assert http.post("/v1/score", json={"questions": ["Why?"]}).status_code == 200


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_disconnects_cancels_its_answer(is_streamed: bool, server: Server) -> None:
    url, _, engine = server.start("last_prompt")
    http = server.http()
    before = hooks_of(server.model), engine.counts()["n_tokens"]
    body = chat(max_tokens=480, temperature=1, stop=["\0\0\0"], stream=is_streamed)
    for _ in range(2):
        with httpx.Client(base_url=url, timeout=20) as other, ThreadPoolExecutor(1) as pool:
            if is_streamed:
                with other.stream("POST", "/v1/chat/completions", json=body) as response:
                    next(response.iter_lines())
            else:
                with paused(server.model) as waits:
                    place = urlsplit(url)
                    with socket.create_connection((place.hostname, place.port)) as connection:
                        content = json.dumps(body)
                        connection.sendall(
                            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode()
                        )
                        assert waits.wait(10)
                    pool.submit(time.sleep, 0.2).result()  # the server notices that the connection was closed
        wait_until(lambda: engine.counts()["running"] == 0)
    assert http.post("/v1/score", json={"questions": ["Why?"]}).status_code == 200
    assert hooks_of(server.model) == before[0]
    assert engine.counts()["n_tokens"] - before[1] < 480


def test_a_failure_of_the_model_does_not_end_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    http = server.http()

    def raise_error(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory: a secret")

    with monkeypatch.context() as patch:
        patch.setattr(server.model.model, "forward", raise_error)
        for path, body in {"/v1/score": {"questions": ["Why?"]}, "/v1/chat/completions": chat()}.items():
            response = http.post(path, json=body)
            assert (response.status_code, error_of(response)["type"]) == (500, "server_error")
            assert "secret" not in response.text
        streamed = http.post("/v1/chat/completions", json=chat(stream=True))
        *_, error, done = streamed.text.strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "internal_error"
        assert done == "data: [DONE]"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"{what} failed: RuntimeError: out of memory: a secret"
        for what in ("Scoring 1 rows", "Reading 1 prompts", "Reading 1 prompts")
    ]
    assert all(record.exc_info is None for record in caplog.records)
    assert http.post("/v1/score", json={"questions": ["Why?"]}).status_code == 200


def test_the_end_of_the_server_ends_running_answers(server: Server) -> None:
    _, attached, _ = server.start("last_prompt")
    engine, threads = Engine(attached.probe, server.model, server.tokenizer, max_batch_size=2), threading.active_count()
    with ThreadPoolExecutor(3) as pool, ExitStack() as clients, ExitStack() as running:
        url = running.enter_context(served(engine, attached.probe))
        http = clients.enter_context(httpx.Client(base_url=url, timeout=20))
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)
        clients.callback(client.close)
        stream = client.chat.completions.create(**chat(max_tokens=480, temperature=1, stream=True))
        next(stream)
        with paused(server.model) as waits:
            assert waits.wait(10)
            plain = pool.submit(http.post, "/v1/chat/completions", json=chat(max_tokens=480))
            score = pool.submit(http.post, "/v1/score", json={"questions": ["Why?"]})
            wait_until(lambda: engine.counts()["n_requests"] == 3)
            ended = pool.submit(running.pop_all().close)
            wait_until(lambda: engine._is_closed)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        for response in (plain.result(), score.result()):
            assert (response.status_code, error_of(response)["code"]) == (503, "shutting_down")
        ended.result(10)
    assert threading.active_count() <= threads


def test_requests_are_refused_while_the_server_ends(server: Server) -> None:
    from starlette.testclient import TestClient

    from probes.serving.app import create_app

    _, attached, engine = server.start("last_prompt")
    app = create_app(engine, attached.probe, "tiny", check_host=False)
    app.state.closing = True
    http = TestClient(app)
    assert http.get("/health").json() == {"status": "closing", "model": "tiny"}
    assert [http.get(path).status_code for path in ("/health", "/v1/models", "/")] == [503, 503, 503]
    failed = SimpleNamespace(is_closed=True, counts=engine.counts)
    assert TestClient(create_app(failed, attached.probe, "tiny", check_host=False)).get("/health").status_code == 503  # type: ignore[arg-type]


# Metrics and the page


def test_metrics_are_in_the_format_of_prometheus(server: Server) -> None:
    http = server.http()
    http.post("/v1/score", json={"questions": ["Why?"]})
    http.get("/wp-admin/" + "x" * 99)
    lines = http.get("/metrics").text.splitlines()
    assert all(
        re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [-+.\de]+', line) for line in lines
    )
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
    score = 'endpoint="/v1/score"'
    assert values[f'confidence_probes_requests_total{{{score},status="200"}}'] >= 1
    assert values['confidence_probes_requests_total{endpoint="other",status="404"}'] >= 1
    name = "confidence_probes_request_duration_seconds"
    buckets = [value for key, value in values.items() if key.startswith(f"{name}_bucket{{{score}")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == values[f"{name}_count{{{score}}}"]
    assert values["confidence_probes_forward_passes_total"] >= 1


def test_the_page_allows_only_its_own_script(server: Server) -> None:
    _, attached, engine = server.start("last_prompt")
    with served(engine, attached.probe, name="</script><script>alert(1)</script>", closes=False) as url:
        first, second = (httpx.get(url) for _ in range(2))
    nonces = [re.findall(r'nonce="([^"]+)"', page.text) for page in (first, second)]
    assert len(nonces[0]) == 2
    assert len({*nonces[0], *nonces[1]}) == 2  # another one in each response
    assert f"script-src 'nonce-{nonces[0][0]}'" in first.headers["Content-Security-Policy"]
    assert "<script>alert" not in first.text
    assert "http" not in re.sub(r"\{.*?\}", "", first.text.split("<script")[0])  # no external resources


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_shows_an_answer_with_its_confidence(server: Server, tmp_path: Path) -> None:
    _, attached, engine = server.start("mean_answer")
    name = "<b>tiny</b>"
    with (
        served(engine, attached.probe, name=name, api_key=KEY, closes=False) as url,
        chromium(tmp_path / "profile") as page,
    ):
        page.open(url)
        ask = "byId('key').value = {}; byId('question').value = '<b>Why</b>\\nso?'; byId('form').requestSubmit()"
        for key in ("wrong", KEY):
            page.evaluate(ask.format(json.dumps(key)))
            page.wait("!byId('ask').disabled")
        text, refused = page.evaluate("[...document.querySelectorAll('article')].map(card => card.innerText)")
        assert "Authorization" in refused
        assert text.startswith("<b>Why</b>↵\nso?")
        confidence, novelty = page.evaluate(
            "[...document.querySelectorAll('article output')].slice(0, 2).map(x => x.textContent)"
        )
        assert 0 <= float(confidence) <= 1
        assert 0 <= float(novelty) <= 1
        entropies = page.evaluate(
            "[...document.querySelectorAll('article .t')].map(x => +x.style.getPropertyValue('--nats'))"
        )
        assert len(entropies) >= 2
        top = float(page.evaluate("byId('answers').style.getPropertyValue('--top')"))
        assert max(0.5, *entropies) <= top
        assert page.evaluate("byId('legend').innerText").split("nats")[0].split() == ["0", f"{top / 2:g}", f"{top:g}"]
        end = page.evaluate("document.querySelector('.curve .last').getAttribute('d')")
        assert 1 - float(end.removesuffix("h0").split()[1]) == pytest.approx(float(confidence), abs=1e-3)
        assert (
            page.evaluate("document.querySelectorAll('article b').length + document.querySelectorAll('h1 b').length")
            == 0
        )
        assert [message for message in page.messages if "401" not in message] == []
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
