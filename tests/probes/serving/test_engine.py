"""Tests of the server's engine: equality with the attached model, batches that change, and the end of requests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from extract import InputError
from extract.sampling.local.row_cache import can_merge
from probes.saved.artefact import ConfidenceProbe
from probes.saved.confidence import ConfidentModel
from probes.saved.streaming import Step
from probes.serving.engine import Engine, EngineClosed, Job, QueueFull, Settings
from tests.helpers.tiny import tiny_model
from tests.probes.saved.test_streaming import hooks_of, make_any_probe

QUESTIONS = [
    "Why?",
    "What is this long question about, and who has asked it?",
    "Who",
    "Is 2 + 2 = 4?",
    "Name a river, a mountain, a lake and a town in a country of your choice. " * 2,
    "A",
    "Where is it?",
]
WAIT = 60
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "qwen2": {},
    "mistral": {"sliding_window": 20},
    "gemma2": {"sliding_window": 16},
    "gemma3": {"sliding_window": 16},
}


@dataclass
class Client:
    """Collects the steps and the result of an answer."""

    steps: list[Step] = field(default_factory=list)
    result: Future[Any] = field(default_factory=Future)
    job: Job | None = None

    def start(self, engine: Engine, prompt: list[int], settings: Settings, backoff: bool = True) -> Client:
        self.job = engine.generate(prompt, settings, self.steps.append, self.result.set_result, backoff)
        return self


@pytest.fixture
def start(model: Any, tokenizer: Any) -> Iterator[Callable[..., Engine]]:
    """Return a function that starts an engine, and check that nothing remains after it is closed."""
    hooks, threads, engines = hooks_of(model), threading.active_count(), list[Engine]()

    def start(probe: ConfidenceProbe, hf_model: Any = None, **options: Any) -> Engine:
        engines.append(Engine(probe, hf_model or model, tokenizer, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
        assert not engine._batch.rows
        assert engine.counts()["queued"] == engine.counts()["running"] == 0
    assert (hooks_of(model), threading.active_count()) == (hooks, threads)


def assert_same(steps: list[Step], expected: list[Step]) -> None:
    assert [(s.text, s.piece, s.n_read, s.n_tokens, s.is_novel) for s in steps] == [
        (s.text, s.piece, s.n_read, s.n_tokens, s.is_novel) for s in expected
    ]
    for name in ("confidence", "novelty"):
        values, known = ([getattr(step, name) for step in each] for each in (steps, expected))
        assert values == pytest.approx(known, abs=1e-4, nan_ok=True)


def streamed(model: ConfidentModel, prompt: list[int], settings: Settings, backoff: bool = True) -> list[Step]:
    stop = [*model._stop, *settings.stop]
    options = {"stop_strings": stop, "tokenizer": model.tokenizer} if stop else {}
    ids = torch.tensor([prompt])
    return list(model.stream(ids, backoff, max_new_tokens=settings.max_tokens, do_sample=False, **options))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer", "attention"])
def test_scores_equal_those_of_the_attached_model(
    kind: str, start: Callable[..., Engine], model: Any, tokenizer: Any
) -> None:
    probe = make_any_probe(kind, model, tokenizer, stop=[])
    attached, engine = probe.attach(model, tokenizer), start(probe, max_batch_size=4)
    answers = [f"answer {i}" * (i % 3) for i in range(len(QUESTIONS))] if probe.reads_answers else None
    prompts = [engine.encode(question) for question in QUESTIONS]
    for backoff in (True, False):
        futures = [
            engine.score([prompt], None if answers is None else [answers[i]], backoff)
            for i, prompt in enumerate(prompts)
        ]
        whole = engine.score(prompts, answers, backoff).result(WAIT)
        expected = attached.score(QUESTIONS, answers, backoff=backoff)
        for name, values in expected._asdict().items():
            torch.testing.assert_close(getattr(whole, name), values, rtol=0, atol=1e-5, equal_nan=True)
            single = torch.cat([getattr(future.result(WAIT), name) for future in futures])
            torch.testing.assert_close(single, values, rtol=0, atol=1e-5, equal_nan=True)
    assert engine.counts()["n_requests"] == 2 * (len(QUESTIONS) + 1)
    assert engine.counts()["n_rows"] == 4 * len(QUESTIONS)
    assert engine.counts()["n_passes"] < 4 * len(QUESTIONS)  # requests shared passes


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer"])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_that_join_and_leave_at_any_time_equal_streams(
    family: str, kind: str, start: Callable[..., Engine], tokenizer: Any
) -> None:
    hf_model = tiny_model(family, **FAMILIES[family])
    assert can_merge(hf_model)
    probe = make_any_probe(kind, hf_model, tokenizer, stop=[])
    attached, engine, draws = (
        probe.attach(hf_model, tokenizer),
        start(probe, hf_model, max_batch_size=5),
        random.Random(0),
    )
    prompts = [engine.encode(question) for question in QUESTIONS]
    requests = [
        (prompt, Settings(draws.choice([1, 2, 7, 25, 90]), stop=("e",) if draws.random() < 0.3 else ()))
        for prompt in prompts * 3
    ]
    expected = [streamed(attached, *request) for request in requests]
    clients, cancelled = [], set()
    for i, request in enumerate(requests):
        clients.append(Client().start(engine, *request))
        time.sleep(draws.choice([0, 0, 0.005, 0.02]))
        if i and draws.random() < 0.2:
            job = clients[i - 1].job
            assert job is not None
            job.cancel()
            cancelled.add(i - 1)
    for i, (client, steps) in enumerate(zip(clients, expected, strict=True)):
        result = client.result.result(WAIT)
        if result == "cancelled":
            assert i in cancelled
            assert_same(client.steps, steps[: len(client.steps)])
        else:
            assert_same(client.steps, steps)
            assert result == ("length" if len(steps) - 1 == requests[i][1].max_tokens else "stop")


@pytest.mark.parametrize("kind", ["last_prompt", "first_answer", "last_answer", "attention", "rolling"])
def test_all_kinds_of_probes_equal_streams(kind: str, start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    probe = make_any_probe(kind, model, tokenizer, stop=["z"])
    attached, engine = probe.attach(model, tokenizer), start(probe)
    prompts = [engine.encode(question) for question in QUESTIONS]
    settings = [Settings(3 + 5 * i, stop=("a", "\u00e9") if i % 2 else ()) for i in range(len(prompts))]
    clients = [
        Client().start(engine, prompt, each, backoff=i % 3 > 0)
        for i, (prompt, each) in enumerate(zip(prompts, settings, strict=True))
    ]
    for i, client in enumerate(clients):
        assert client.result.result(WAIT) in ("stop", "length")
        assert_same(client.steps, streamed(attached, prompts[i], settings[i], i % 3 > 0))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_a_seeded_answer_does_not_depend_on_the_batch(
    temperature: float, start: Callable[..., Engine], model: Any, tokenizer: Any
) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    prompt, settings = engine.encode(QUESTIONS[1]), Settings(20, temperature, top_p=0.9, seed=7)
    alone = Client().start(engine, prompt, settings)
    alone.result.result(WAIT)
    others = [Client().start(engine, engine.encode(q), Settings(30, 1.0, seed=i)) for i, q in enumerate(QUESTIONS)]
    together, different = (
        Client().start(engine, prompt, settings),
        Client().start(engine, prompt, Settings(20, 2.0, seed=8)),
    )
    for client in (*others, together, different):
        assert client.result.result(WAIT) in ("stop", "length")
    assert [step.text for step in together.steps] == [step.text for step in alone.steps]
    assert different.steps[-1].text != alone.steps[-1].text
