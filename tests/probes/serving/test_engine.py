"""Tests of the server's engine: equality with the attached model, batches that change, and the end of requests."""

from __future__ import annotations

import copy
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
from probes.serving.jobs import AnswerStep
from probes.serving.rows import Row
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
    "mistral": {"sliding_window": 14},
    "gemma2": {"sliding_window": 12},
    "gemma3": {"sliding_window": 12},
}


@dataclass
class Client:
    """Collects the steps and the result of an answer."""

    steps: list[AnswerStep] = field(default_factory=list)
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


def assert_same(steps: Sequence[Step], expected: Sequence[Step]) -> None:
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


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "last_prompt"), *((family, "mean_answer") for family in FAMILIES)]
)
def test_answers_that_join_and_leave_at_any_time_equal_streams(
    family: str, kind: str, start: Callable[..., Engine], tokenizer: Any
) -> None:
    hf_model = tiny_model(family, **FAMILIES[family])
    assert can_merge(hf_model)
    probe = make_any_probe(kind, hf_model, tokenizer, stop=[])
    attached, engine, draws = (
        probe.attach(hf_model, tokenizer),
        start(probe, hf_model, max_batch_size=4),
        random.Random(0),
    )
    prompts = [engine.encode(question) for question in (*QUESTIONS, *QUESTIONS[:3])]
    requests = [
        (prompt, Settings(draws.choice([1, 2, 7, 16]), stop=("e",) if draws.random() < 0.3 else ()))
        for prompt in prompts
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
    assert engine.counts()["n_passes"] < 0.7 * engine.counts()["n_rows"]


def hybrid_model() -> Any:
    """Return a tiny model that caches more than keys and values."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    sizes = {name: getattr(tiny_model().config, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    layers = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_key_value_heads": 2}
    torch.manual_seed(0)
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    hf_model = Lfm2ForCausalLM(Lfm2Config(**sizes, **layers, **tokens, intermediate_size=48)).eval()
    for parameter in hf_model.requires_grad_(False).parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    hf_model.name_or_path = "tiny-lfm2"
    return hf_model


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer"])
def test_answers_of_a_model_whose_caches_cannot_be_merged_equal_streams(
    kind: str, start: Callable[..., Engine], tokenizer: Any
) -> None:
    hf_model = hybrid_model()
    assert not can_merge(hf_model)
    probe = make_any_probe(kind, hf_model, tokenizer, stop=[])
    attached, engine = probe.attach(hf_model, tokenizer), start(probe, hf_model, max_batch_size=4)
    prompts = [engine.encode(f"{question} {i}") for i in range(3) for question in QUESTIONS[:2]]
    requests = [(prompt, Settings(3 + 2 * i)) for i, prompt in enumerate(prompts)]
    with Paused(hf_model) as paused:
        clients = [Client().start(engine, *request) for request in requests]
        assert paused.waiting.wait(WAIT)
    for client, request in zip(clients, requests, strict=True):
        assert client.result.result(WAIT) in ("length", "stop")
        assert_same(client.steps, streamed(attached, *request))
    assert engine.counts()["n_passes"] < engine.counts()["n_rows"]  # prompts of equal length were generated together


@pytest.mark.parametrize("kind", ["last_prompt", "first_answer", "last_answer", "attention", "rolling"])
def test_all_kinds_of_probes_equal_streams(kind: str, start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    probe = make_any_probe(kind, model, tokenizer, stop=["z"])
    attached, engine = probe.attach(model, tokenizer), start(probe)
    prompts = [engine.encode(question) for question in QUESTIONS]
    settings = [Settings(2 + 2 * i, stop=("a", "\u00e9") if i % 2 else ()) for i in range(len(prompts))]
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


def test_entropies_equal_those_in_double_precision(
    start: Callable[..., Engine], model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[Job, Row] = {}
    add = Row.add

    def recorded(row: Row, *args: Any) -> str | None:
        rows[row.job] = row
        return add(row, *args)

    monkeypatch.setattr(Row, "add", recorded)
    engine = start(make_any_probe("mean_answer", model, tokenizer, stop=["zz"]), max_batch_size=4)
    prompts = [engine.encode(question) for question in QUESTIONS]
    clients = [
        Client().start(engine, prompt, Settings(2 + 4 * i, i % 2, 0.9, i, ("e",), top_k=50 * (i % 3), entropy=i != 3))
        for i, prompt in enumerate(prompts)
    ]
    exact = copy.deepcopy(model).double()
    for i, (client, prompt) in enumerate(zip(clients, prompts, strict=True)):
        assert client.result.result(WAIT) in ("length", "stop")
        if i == 3:
            assert {step.entropies for step in client.steps} == {None}
            continue
        *steps, last = client.steps
        assert all(bool(step.entropies) == bool(step.piece) for step in steps)
        found = [value for step in client.steps for value in step.entropies or ()]
        assert last.n_tokens <= len(found) <= len(rows[client.job].drawn)  # type: ignore[index]
        with torch.inference_mode():
            logits = exact(torch.tensor([prompt + rows[client.job].drawn])).logits[0]  # type: ignore[index]
        for k, value in enumerate(found):
            weights = [math.exp(logit) for logit in logits[len(prompt) - 1 + k].tolist()]
            shares = [weight / sum(weights) for weight in weights]
            assert value == pytest.approx(-sum(p * math.log(p) for p in shares), abs=1e-5)


def test_top_k_of_one_is_greedy(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    prompt = engine.encode("Why?")
    settings = Settings(20), Settings(20, temperature=2.0, top_k=1), Settings(20, temperature=2.0, seed=1)
    clients = [Client().start(engine, prompt, each) for each in settings]
    for client in clients:
        assert client.result.result(WAIT) in ("length", "stop")
    greedy, first, drawn = (client.steps[-1].text for client in clients)
    assert greedy == first != drawn


def test_the_context_ends_an_answer(start: Callable[..., Engine], tokenizer: Any) -> None:
    hf_model = tiny_model(max_position_embeddings=64, eos_token_id=None)
    hf_model.generation_config.eos_token_id = 257
    engine = start(make_any_probe("mean_answer", hf_model, tokenizer, stop=[]), hf_model)
    prompt = [5] * 60
    client = Client().start(engine, prompt, Settings(100))
    assert client.result.result(WAIT) == "length"
    assert client.steps[-1].n_tokens == 4
    with pytest.raises(InputError, match="at most 64 tokens"):
        engine.generate([5] * 64, Settings(1), print, print)
    with pytest.raises(InputError, match="at most 64 tokens"):
        engine.score([[5] * 63], ["ab"])
    with pytest.raises(InputError, match="at most 64 tokens"):
        engine.encode("long " * 20)


def test_invalid_requests_are_refused(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    with pytest.raises(InputError, match="Expected no `answers`"):
        engine.score([[5]], ["a"])
    for prompts in ([], [[]], [[999]]):
        with pytest.raises(InputError, match="Expected"):
            engine.score(prompts, None)
    for prompt in ([], [-1]):
        with pytest.raises(InputError, match="Expected"):
            engine.generate(prompt, Settings(1), print, print)
    for options in (
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"stop": ("",)},
    ):
        with pytest.raises(InputError, match=next(iter(options))):
            Settings(**{"max_tokens": 1, **options})
    with pytest.raises(InputError, match="empty"):
        engine.encode(" ")
    assert engine.counts()["n_requests"] == 0
    reads_answers = start(make_any_probe("attention", model, tokenizer, stop=[]))
    for answers in (None, ["a", "b"]):
        with pytest.raises(InputError, match="one answer per question"):
            reads_answers.score([[5]], answers)


def test_a_probe_of_another_model_is_refused(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    with pytest.raises(InputError, match="the probe"):
        start(make_any_probe("last_prompt", model, tokenizer, stop=[]), tiny_model(seed=1))


class Paused:
    """Pauses a model before each pass until it is released."""

    def __init__(self, model: Any) -> None:
        self._model, self._forward = model, model.forward
        self.passes, self.waiting = threading.Semaphore(0), threading.Event()

    def __enter__(self) -> Paused:
        def forward(*args: Any, **options: Any) -> Any:
            self.waiting.set()
            assert self.passes.acquire(timeout=WAIT)
            return self._forward(*args, **options)

        self._model.forward = forward
        return self

    def __exit__(self, *_: object) -> None:
        del self._model.__dict__["forward"]
        self.passes.release(10_000)


def test_a_full_queue_refuses_requests(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]), max_batch_size=2, max_queue=3)
    prompt = engine.encode("Why?")
    with Paused(model) as paused:
        first = Client().start(engine, prompt, Settings(2))
        assert paused.waiting.wait(WAIT)
        waiting = [Client().start(engine, prompt, Settings(2)) for _ in range(2)]
        scores = engine.score([prompt], None)
        for _ in range(2):
            with pytest.raises(QueueFull, match="3 requests"):
                engine.score([prompt], None)
            with pytest.raises(QueueFull, match="3 requests"):
                engine.generate(prompt, Settings(2), print, print)
        counts = engine.counts()
    assert (counts["queued"], counts["running"], counts["n_requests"], counts["n_rejected"]) == (3, 1, 4, 4)
    assert [client.result.result(WAIT) for client in (first, *waiting)] == ["length"] * 3
    assert len(scores.result(WAIT).confidence) == 1
    assert len(engine.score([prompt], None).result(WAIT).confidence) == 1


def test_cancelled_answers_leave_at_the_next_step(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("attention", model, tokenizer, stop=[]), max_batch_size=2)
    prompts, settings = [engine.encode(question) for question in QUESTIONS[:3]], Settings(30)
    with Paused(model) as paused:
        clients = [Client().start(engine, prompt, settings) for prompt in prompts]
        assert paused.waiting.wait(WAIT)
        paused.passes.release(4)
        until(lambda: len(clients[0].steps) >= 3)
        for client in (clients[0], clients[2]):  # a running and a waiting answer
            assert client.job is not None
            client.job.cancel()
            client.job.cancel()
        paused.passes.release(3)
        assert [clients[i].result.result(WAIT) for i in (0, 2)] == ["cancelled"] * 2
        assert len(clients[0].steps) <= 5
        assert clients[2].steps == []
    assert clients[1].result.result(WAIT) in ("length", "stop")
    assert clients[0].job is not None
    clients[0].job.cancel()  # has ended


def test_a_cancelled_score_is_not_computed(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    with Paused(model) as paused:
        client = Client().start(engine, [5, 6], Settings(1))
        assert paused.waiting.wait(WAIT)
        assert engine.score([[5]], None).cancel()
    client.result.result(WAIT)
    until(lambda: engine.counts()["queued"] == 0)
    assert engine.counts()["n_rows"] == 1


def test_a_score_that_is_cancelled_while_it_runs_leaves(
    start: Callable[..., Engine], model: Any, tokenizer: Any
) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]), max_batch_size=2)
    with Paused(model.model) as paused:  # scores need no logits
        future = engine.score([[5]] * 100, None)
        assert paused.waiting.wait(WAIT)
        assert future.cancel()
    assert len(engine.score([[5]], None).result(WAIT).confidence) == 1
    until(lambda: engine.counts()["running"] == 0)
    until(lambda: engine.counts()["n_rows"] == 3)


def test_an_engine_whose_thread_fails_is_closed(
    start: Callable[..., Engine], model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    monkeypatch.setattr(engine._batch, "fitting", lambda _: 1 / 0)
    assert not engine.is_closed
    assert isinstance(Client().start(engine, [5], Settings(1)).result.result(WAIT), EngineClosed)
    assert engine.is_closed


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer"])
def test_closing_ends_all_requests(kind: str, start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe(kind, model, tokenizer, stop=[]), max_batch_size=2)
    prompts = [engine.encode(question) for question in QUESTIONS]
    with Paused(model) as paused:
        clients = [Client().start(engine, prompt, Settings(300)) for prompt in prompts]
        assert paused.waiting.wait(WAIT)
        paused.passes.release(2)
        until(lambda: bool(clients[0].steps))
        future = engine.score(prompts, ["a"] * len(prompts) if kind == "mean_answer" else None)
        closing = threading.Thread(target=engine.close)
        closing.start()
        until(lambda: engine._is_closed)
        paused.passes.release(1)
        closing.join(WAIT)
    for result in [*(client.result.result(WAIT) for client in clients), future.exception(WAIT)]:
        assert isinstance(result, EngineClosed)
    engine.close()
    with pytest.raises(EngineClosed):
        engine.score(prompts, ["a"] * len(prompts) if kind == "mean_answer" else None)
    with pytest.raises(EngineClosed):
        engine.generate(prompts[0], Settings(1), print, print)


class Broken:
    """Makes the passes of a model that read a certain token fail, or return NaN for the rows with this token."""

    def __init__(self, model: Any, token: int, error: Exception | None = None) -> None:
        self._model, self._token, self._error, self._forward = model, token, error, model.forward

    def __enter__(self) -> None:
        def forward(*args: Any, **options: Any) -> Any:
            rows = (options["input_ids"] == self._token).any(1)
            if self._error is not None and bool(rows.any()):
                raise self._error
            output = self._forward(*args, **options)
            for layer in options["past_key_values"].layers:
                for states in (layer.keys, layer.values):
                    states[rows] = torch.nan
            output.logits[rows] = torch.nan
            return output

        self._model.forward = forward

    def __exit__(self, *_: object) -> None:
        del self._model.__dict__["forward"]


@pytest.mark.parametrize("error", [ValueError("broken"), torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_failed_pass_ends_only_its_own_requests(
    error: Exception, start: Callable[..., Engine], model: Any, tokenizer: Any
) -> None:
    probe = make_any_probe("mean_answer", model, tokenizer, stop=[])
    engine, attached = start(probe, max_batch_size=3), probe.attach(model, tokenizer)
    prompt, settings = engine.encode(QUESTIONS[0]), Settings(9)
    expected = streamed(attached, prompt, settings)
    with Broken(model, 200, error):
        running = Client().start(engine, prompt, settings)
        until(lambda: bool(running.steps))
        broken = Client().start(engine, [40, 200], settings)
        assert broken.result.result(WAIT) is error
        assert error.__traceback__ is None
        assert running.result.result(WAIT) in ("length", "stop")
    assert broken.steps == []
    assert_same(running.steps, expected)
    after = Client().start(engine, prompt, settings)
    assert after.result.result(WAIT) in ("length", "stop")
    assert_same(after.steps, expected)


def test_a_failed_step_ends_all_answers_of_the_batch(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    prompts = [engine.encode(question) for question in QUESTIONS]
    with Paused(model) as paused:
        clients = [Client().start(engine, prompts[0], Settings(50))]
        assert paused.waiting.wait(WAIT)
        clients += [Client().start(engine, prompt, Settings(50)) for prompt in prompts[1:]]
        paused.passes.release(2)  # the first answer has two tokens, and the others join in the next pass
        until(lambda: len(clients[0].steps) == 2)
        engine._batch._cache.before_pass = lambda: 1 / 0
    assert [type(client.result.result(WAIT)) for client in clients] == [ZeroDivisionError] * len(prompts)
    again = Client().start(engine, engine.encode("Why?"), Settings(2))
    assert again.result.result(WAIT) == "length"


def test_nan_of_a_row_does_not_reach_the_other_rows(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    probe = make_any_probe("mean_answer", model, tokenizer, stop=[])
    engine, attached = start(probe, max_batch_size=3), probe.attach(model, tokenizer)
    long, short, settings = engine.encode(QUESTIONS[4]), engine.encode(QUESTIONS[0]), Settings(30)
    expected = [streamed(attached, prompt, settings) for prompt in (long, short)]
    with Broken(model, 200):
        clients = [Client().start(engine, long, settings)]
        for _ in range(3):
            broken = Client().start(engine, [200] * 90, settings)
            assert isinstance(broken.result.result(WAIT), InputError)
            clients.append(Client().start(engine, short, settings))
        for client in clients:
            assert client.result.result(WAIT) in ("length", "stop")
    for client, steps in zip(clients, [expected[0], *expected[1:] * 3], strict=True):
        assert_same(client.steps, steps)


def test_failing_callbacks_end_only_their_own_answer(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]))
    prompt, failed = engine.encode("Why?"), Future[Any]()

    def fail(_: object) -> None:
        raise RuntimeError("the loop is closed")

    other = Client().start(engine, prompt, Settings(5))
    engine.generate(prompt, Settings(5), fail, failed.set_result)
    engine.generate(prompt, Settings(5), fail, fail)
    engine.generate(prompt, Settings(5), lambda step: None, fail)
    assert isinstance(failed.result(WAIT), RuntimeError)
    assert other.result.result(WAIT) == "length"
    assert Client().start(engine, prompt, Settings(5)).result.result(WAIT) == "length"


def test_scores_and_answers_do_not_wait_for_the_end_of_each_other(
    start: Callable[..., Engine], model: Any, tokenizer: Any
) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]), max_batch_size=2)
    prompts = [engine.encode(question) for question in QUESTIONS]
    order: list[str] = []
    with Paused(model) as paused:
        answer = Client().start(engine, prompts[0], Settings(12))
        assert paused.waiting.wait(WAIT)
        many, few = engine.score(prompts * 6, None), engine.score(prompts[:1], None)
        for name, future in {"many": many, "few": few, "answer": answer.result}.items():
            future.add_done_callback(lambda _, name=name: order.append(name))
    assert len(many.result(WAIT).confidence) == 42
    assert order == ["few", "answer", "many"]


def test_the_prompt_template_is_read_once(
    start: Callable[..., Engine], model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.saved.prompt_starts._MIN_TOKENS", 4)
    probe = make_any_probe("mean_answer", model, tokenizer, stop=[])
    probe.config["prompt"]["template"] = "Answer in a few words, please. {question}"
    engine, attached = start(probe), probe.attach(model, tokenizer)
    prompts = [engine.encode(question) for question in QUESTIONS]
    prompts += [engine.encode([{"role": "user", "content": question}]) for question in QUESTIONS]
    prompts += [[9, 8, 7], prompts[0][:12]]
    text, chat, other = prompts[:1], prompts[7:8], prompts[-2:-1]
    starts = engine._model.starts
    of_text, of_chat, of_both = (len(starts.of(rows).tokens) for rows in (text, chat, text + chat))
    assert of_text > of_chat == of_both >= 4
    assert starts.of(other) is starts.of(text + other) is None
    attached.starts._caches.clear()  # it reads whole prompts
    settings, answers = Settings(3), ["an answer"] * len(prompts)
    with Paused(model) as paused:  # the first prompt is read alone, and the others in one pass
        clients = [Client().start(engine, prompt, settings) for prompt in prompts]
        assert paused.waiting.wait(WAIT)
    for client, prompt in zip(clients, prompts, strict=True):
        assert client.result.result(WAIT) in ("length", "stop")
        assert_same(client.steps, streamed(attached, prompt, settings))
    for rows in (prompts, prompts[:7], prompts[:1], prompts[7:14]):
        found = engine.score(rows, answers[: len(rows)]).result(WAIT)
        expected = attached._read(rows, attached._encode_answers(answers[: len(rows)], len(rows)), True)
        torch.testing.assert_close(found.confidence, expected.confidence, rtol=0, atol=1e-5)


def test_requests_from_many_threads(start: Callable[..., Engine], model: Any, tokenizer: Any) -> None:
    engine = start(make_any_probe("last_prompt", model, tokenizer, stop=[]), max_batch_size=8, max_queue=1000)
    expected = engine.score([engine.encode(question) for question in QUESTIONS], None).result(WAIT).confidence
    problems: list[object] = []

    def client(seed: int) -> None:
        draws = random.Random(seed)
        for _ in range(5):
            i = draws.randrange(len(QUESTIONS))
            if draws.random() < 0.5:
                found = float(engine.score([engine.encode(QUESTIONS[i])], None).result(WAIT).confidence)
            else:
                one = Client().start(engine, engine.encode(QUESTIONS[i]), Settings(draws.randint(1, 9)))
                if one.result.result(WAIT) not in ("length", "stop"):
                    problems.append(one.result)
                found = one.steps[-1].confidence
            if abs(found - float(expected[i])) > 1e-5:
                problems.append((i, found))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert problems == []
    until(lambda: engine.counts()["running"] == 0)
    assert engine.counts()["n_requests"] == 1 + 16 * 5
