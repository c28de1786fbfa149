"""Tests of streaming: the text and the confidence of each step, interruptions, and invalid arguments."""

from __future__ import annotations

import gc
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from extract import InputError
from extract.models.loading import model_identity
from extract.prompts import PromptTemplate
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.head import MLPHead
from probes.saved.heads import OF_TOKENS
from probes.saved.novelty import Novelty
from probes.saved.prefixes import PrefixCalibrator
from probes.saved.streamed_text import StreamedText, until
from tests.helpers.tiny import tiny_model
from tests.probes.saved.test_sequence_confidence import make_probe

QUESTION = "What is this long question about?"
PREFIXES = [Platt(0.1, 0.4), Platt(0.3, -0.6), Platt(0.5, 0.1)]
LENGTHS = [2, 3, 5, 8]


def make_vector_probe(position: str, model: Any, tokenizer: Any, layers: list[int]) -> ConfidenceProbe:
    """Return an MLP probe, whose score of a mean is not the mean of the scores."""
    torch.manual_seed(3)
    head = MLPHead(32 * len(layers), hidden=4)
    for name, values in head.state_dict().items():
        values.uniform_(5, 10) if name == "scale" else values.normal_()
    target = "capability" if position == "last_prompt" else "response"
    own = {"signal": "hidden", "position": position, "layers": layers, "target": target, "d_model": len(head.mean)}
    config = {**make_probe("attention", model, tokenizer).config, **own}
    return ConfidenceProbe(head, Platt(0.7, -0.2), config)


def make_any_probe(kind: str, model: Any, tokenizer: Any, stop: list[str], prefixes: bool = True) -> ConfidenceProbe:
    if kind in OF_TOKENS:
        probe = make_probe(kind, model, tokenizer)
    else:
        probe = make_vector_probe(kind, model, tokenizer, [1, 3])
    probe.config["decoding"]["stop"] = stop
    if prefixes and probe.reads_answers:
        probe.prefixes = PrefixCalibrator(PREFIXES, LENGTHS)
    probe.novelty = Novelty(len(probe.head.mean), 2)
    probe.novelty.directions.copy_(torch.linalg.qr(torch.randn(len(probe.head.mean), 2)).Q.T)
    probe.novelty.quantiles.copy_(torch.linspace(0, 9, 101))
    for values in (probe.novelty.variances, probe.novelty.rest, probe.novelty.full):
        values.fill_(12)
    return probe


def drawn(model: Any, tokenizer: Any, **options: Any) -> tuple[list[int], list[int]]:
    """Return the token ids of the prompt and of the answer, from transformers alone."""
    prompt = PromptTemplate("Q: {question} A:").encode(tokenizer, QUESTION)
    torch.manual_seed(0)
    out = model.generate(torch.tensor([prompt]), **options)[0].tolist()
    return prompt, out[len(prompt) :]


def hooks_of(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture(autouse=True)
def nothing_remains(model: Any) -> Iterator[None]:
    """Check after each test that there are no new hooks and threads. transformers also has hooks of its own."""
    before = hooks_of(model), threading.active_count()
    yield
    assert (hooks_of(model), threading.active_count()) == before


def logits_of(model: Any, act: Callable[[], Any]) -> tuple[list[Tensor], Any]:
    logits: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, args, output: logits.append(output.logits[:, -1].clone()))
    try:
        return logits, act()
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"do_sample": False}) for kind in ("first_answer", "last_answer", *OF_TOKENS)),
        *(
            (kind, options)
            for kind in ("last_prompt", "mean_answer", "attention")
            for options in (
                {"do_sample": True, "temperature": 0.9},
                {"do_sample": False, "use_cache": False},
                {"do_sample": False, "prefill_chunk_size": 7},
            )
        ),
    ],
)
def test_each_step_has_the_confidence_of_the_tokens_that_were_read(
    kind: str, options: dict[str, Any], model: Any, tokenizer: Any
) -> None:
    probe = make_any_probe(kind, model, tokenizer, stop=[])
    attached, options = probe.attach(model, tokenizer), {"max_new_tokens": 6, "eos_token_id": None, **options}
    plain_logits, (prompt, tokens) = logits_of(model, lambda: drawn(model, tokenizer, **options))
    torch.manual_seed(0)
    logits, steps = logits_of(model, lambda: list(attached.stream(QUESTION, **options)))
    assert len(logits) == len(plain_logits)  # no additional pass
    assert all(map(torch.equal, logits, plain_logits))
    assert [step.n_tokens for step in steps] == [1, 2, 3, 4, 5, 6, 6]
    assert steps[-1].text == "".join(step.piece for step in steps) == tokenizer.decode(tokens)
    if kind == "last_prompt":
        expected = attached.score(QUESTION).confidence
        assert {step.n_read for step in steps} == {0}
        assert [step.confidence for step in steps] == pytest.approx([float(expected)] * 7, abs=1e-6)
        return
    assert [step.n_read for step in steps] == [0, 1, 2, 3, 4, 5, 5]
    assert steps[0].confidence != steps[0].confidence  # NaN: no token has been read
    for step in steps[1:]:
        expected = attached._read([prompt], [tokens[: step.n_read]], True)
        assert step.novelty == pytest.approx(float(expected.novelty), abs=1e-5)
        score = (torch.logit(expected.confidence.double()) + 0.2) / 0.7  # inverse of the calibrator of whole answers
        seen = [n for n in LENGTHS if n >= step.n_read]
        fraction = 1.0 if step is steps[-1] else sum(step.n_read / n for n in seen) / len(seen)
        assert step.confidence == pytest.approx(float(interpolated(score, fraction)), abs=1e-5)


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer", "attention"])
def test_the_cpu_waits_for_the_device_only_to_receive_tokens(kind: str, model: Any, tokenizer: Any) -> None:
    attached = make_any_probe(kind, model, tokenizer, stop=[]).attach(model, tokenizer)
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    ids = torch.tensor([[5, 6]])

    def n_waits(run: Callable[[], object]) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run()
        waits = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
        return sum(event.count for event in profile.key_averages() if event.key in waits)

    streamed = n_waits(lambda: list(attached.stream(ids[0].tolist(), **options)))
    plain = n_waits(lambda: model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options))
    assert plain > 0
    assert streamed - plain == 3  # the tokens, which are on the CPU


@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer", "attention"])
def test_the_confidences_of_novel_steps_are_backed_off(kind: str, model: Any, tokenizer: Any) -> None:
    probe = make_any_probe(kind, model, tokenizer, stop=[])
    assert probe.novelty is not None
    for name, value in {"quantiles": 0.0, "full": 1e-6, "weight": 1.0, "base_rate": 0.95}.items():
        getattr(probe.novelty, name).fill_(value)
    attached, options = probe.attach(model, tokenizer), {"max_new_tokens": 3, "do_sample": False}
    steps, raw = (list(attached.stream(QUESTION, backoff, **options))[1:] for backoff in (True, False))
    assert [step.confidence for step in steps] == pytest.approx([0.95] * len(steps))
    assert all(step.is_novel for step in (*steps, *raw))
    assert all(abs(step.confidence - 0.95) > 1e-3 for step in raw)


def interpolated(score: Tensor, fraction: float) -> Tensor:
    """Interpolate between the confidences of PREFIXES and of the calibrator of whole answers."""
    lines = [(0.25, 0.1, 0.4), (0.5, 0.3, -0.6), (0.75, 0.5, 0.1), (1.0, 0.7, -0.2)]
    confidences = [torch.sigmoid(slope * score + intercept) for _, slope, intercept in lines]
    for (low, *_), (high, *_), a, b in zip(lines, lines[1:], confidences, confidences[1:], strict=False):
        if low <= fraction <= high:
            return (a * (high - fraction) + b * (fraction - low)) / (high - low)
    return confidences[0]


@pytest.mark.parametrize("ending", ["end token", "stop string"])
@pytest.mark.parametrize("kind", ["last_prompt", "mean_answer", "last_answer", "attention", "rolling"])
def test_the_last_step_equals_generate(kind: str, ending: str, model: Any, tokenizer: Any) -> None:
    options = {"max_new_tokens": 8, "do_sample": False}
    stop = []
    if ending == "end token":
        options["forced_eos_token_id"] = 0
    else:
        text = tokenizer.decode(drawn(model, tokenizer, **options)[1])
        stop = [text[4:6]]
    attached = make_any_probe(kind, model, tokenizer, stop).attach(model, tokenizer)
    *steps, last = attached.stream(QUESTION, **options)
    whole = attached.generate(QUESTION, **options)
    assert last.text == whole.text[0]
    assert all(last.text.startswith(step.text) for step in steps)
    assert last.confidence == pytest.approx(float(whole.confidence), abs=1e-6)
    assert last.n_read == (0 if kind == "last_prompt" else last.n_tokens)
    assert len(steps) >= last.n_tokens


@pytest.mark.parametrize("n_steps", [0, 1, 3])
def test_a_closed_stream_stops_the_model(n_steps: int, model: Any, tokenizer: Any) -> None:
    attached = make_any_probe("attention", model, tokenizer, []).attach(model, tokenizer)
    before = list(attached.stream(QUESTION, max_new_tokens=5, do_sample=False))

    def few() -> None:
        steps = attached.stream(QUESTION, max_new_tokens=40, do_sample=False, eos_token_id=None)
        for _ in range(n_steps):
            next(steps)
        del steps
        gc.collect()

    logits, _ = logits_of(model, few)
    assert len(logits) == n_steps
    after = list(attached.stream(QUESTION, max_new_tokens=5, do_sample=False))
    assert str(after) == str(before)  # NaN equals NaN


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_the_model_runs_ends_the_stream(model: Any, tokenizer: Any) -> None:
    attached = make_any_probe("mean_answer", model, tokenizer, []).attach(model, tokenizer)
    main = threading.main_thread().ident
    assert main is not None
    calls = []

    def act(*_: object) -> None:
        calls.append(threading.get_ident() == main)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    handle = model.register_forward_hook(act)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(attached.stream(QUESTION, max_new_tokens=200, eos_token_id=None, do_sample=False))
    finally:
        handle.remove()
    assert all(calls)
    assert len(calls) < 100
    assert len(attached.generate(QUESTION, max_new_tokens=2)) == 1


def test_an_exception_in_generate_is_raised_in_the_caller(model: Any, tokenizer: Any) -> None:
    attached = make_any_probe("attention", model, tokenizer, []).attach(model, tokenizer)

    def fail(ids: Tensor, scores: Tensor) -> Tensor:
        if ids.shape[1] > 40:
            raise ZeroDivisionError("the third token")
        return scores

    steps = attached.stream("?", max_new_tokens=30, logits_processor=[fail], eos_token_id=None)
    with pytest.raises(ZeroDivisionError, match="the third token"):
        list(steps)
    with pytest.raises(ValueError, match="not used by the model"):
        next(attached.stream("?", unknown_option=3))


@pytest.mark.parametrize("kinds", [("attention", "mean_answer"), ("last_prompt", "attention"), ("rolling", "rolling")])
def test_interleaved_streams_of_one_model_do_not_affect_each_other(
    kinds: tuple[str, str], model: Any, tokenizer: Any
) -> None:
    attached = [make_any_probe(kind, model, tokenizer, []).attach(model, tokenizer) for kind in kinds]
    questions, options = (QUESTION, "Who?"), {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    alone = [[*one.stream(question, **options)] for one, question in zip(attached, questions, strict=True)]
    first, second = (one.stream(question, **options) for one, question in zip(attached, questions, strict=True))
    together = []
    for pair in zip(first, second, strict=True):
        together.append(pair)
        attached[0].generate("Why?", max_new_tokens=2)  # a third use of the model between two steps
    for i in range(2):
        assert str([pair[i] for pair in together]) == str(alone[i])


@pytest.mark.parametrize(
    ("question", "options", "message"),
    [
        (["Why?", "Who?"], {}, "`question` to be a single question, but got 2"),
        ([], {}, "at least one question, but it is empty"),
        ("", {}, "Expected `prompt` to"),
        ("x" * 600, {}, "at most 512 tokens, .* but prompt 0 has 6"),
        ("Why?", {"num_beams": 2}, "or sampling, but got beam search with `num_return_sequences` 1"),
        ("Why?", {"do_sample": True, "num_return_sequences": 2}, "but got sample with `num_return_sequences` 2"),
        ("Why?", {"prompt_lookup_num_tokens": 2}, "but got assisted generation"),
    ],
)
def test_invalid_arguments_are_refused_at_once(
    question: Any, options: dict[str, Any], message: str, model: Any, tokenizer: Any
) -> None:
    attached = make_any_probe("attention", model, tokenizer, []).attach(model, tokenizer)
    with pytest.raises(InputError, match=message) as caught:
        attached.stream(question, **options)
    assert "\n" not in str(caught.value)


def test_a_probe_of_pooled_token_signals_names_the_alternative(model: Any, tokenizer: Any) -> None:
    probe = make_any_probe("mean_answer", model, tokenizer, [])
    pooled = {"keys": ["tokens/3/entropy"], "pooling": ["mean"], "weights": None}
    attached = ConfidenceProbe(probe.head, probe.calibrator, probe.config | {"pooled": pooled}).attach(model, tokenizer)
    with pytest.raises(InputError, match=r"token signals pooled over complete answers\. Use `generate`"):
        attached.stream("Why?")


def test_a_probe_of_the_question_and_its_first_token_signals_reads_the_prompt_once_more(
    model: Any, tokenizer: Any
) -> None:
    torch.manual_seed(3)
    head = MLPHead(33, hidden=4)
    for values in (head.weight_in, head.weight):
        values.normal_(std=0.1)
    pooled = {"keys": ["tokens/3/entropy"], "pooling": [], "weights": None}
    config = make_vector_probe("last_prompt", model, tokenizer, [2]).config
    probe = ConfidenceProbe(head, Platt(1.0, 0.0), config | {"d_model": 33, "pooled": pooled})
    attached = probe.attach(model, tokenizer)
    logits, steps = logits_of(model, lambda: list(attached.stream(QUESTION, max_new_tokens=3, eos_token_id=None)))
    expected = float(attached.score(QUESTION).confidence)
    assert [step.confidence for step in steps] == pytest.approx([expected] * 4, abs=1e-6)
    assert len(logits) >= 3


@pytest.mark.parametrize(("prefixes", "n_warnings"), [(True, 0), (False, 1)])
def test_missing_prefix_calibrators_give_one_warning(
    prefixes: bool, n_warnings: int, model: Any, tokenizer: Any
) -> None:
    attached = make_any_probe("attention", model, tokenizer, [], prefixes).attach(model, tokenizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = list(attached.stream("Why?", max_new_tokens=3, eos_token_id=None, do_sample=False))
    messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert sum("calibrated only on complete answers" in message for message in messages) == n_warnings
    assert not prefixes or caught == []
    assert all(warning.filename == __file__ for warning in caught)
    assert 0 < steps[-1].confidence < 1


def test_models_of_another_thread_do_not_reach_the_stream(model: Any, tokenizer: Any) -> None:
    attached = make_any_probe("mean_answer", model, tokenizer, []).attach(model, tokenizer)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    alone = [*attached.stream(QUESTION, **options)]
    steps = []
    for step in attached.stream(QUESTION, **options):
        steps.append(step)
        model(torch.tensor([[5, 6, 7]]))
    assert str(steps) == str(alone)


@pytest.mark.parametrize("stop", [[], ["\n\n"], ["after", "lin"], ["k 😀\n"]], ids=str)
def test_text_is_shown_only_when_it_is_certain(stop: list[str], tokenizer: Any) -> None:
    text = "naïve – ok 😀\n\nafter the line"
    streamed, shown = StreamedText(tokenizer, stop), [""]
    for token in tokenizer(text)["input_ids"]:
        piece = streamed.add(token)
        assert streamed.shown == shown[-1] + piece
        shown.append(streamed.shown)
        if streamed.ended:
            break
    assert streamed.shown == until(stop, text)
    assert streamed.ended == bool(stop)
    assert all(until(stop, text).startswith(part) for part in shown)
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in shown)


def test_bytes_that_are_no_character_are_shown_as_in_the_whole_text(tokenizer: Any) -> None:
    streamed, tokens = StreamedText(tokenizer, []), [200, 35, 210, 40, 41]
    pieces = [streamed.add(token) for token in tokens]
    assert "".join(pieces) == streamed.shown == tokenizer.decode(tokens)


def test_a_long_stop_string_takes_no_longer_than_the_text(tokenizer: Any) -> None:
    streamed = StreamedText(tokenizer, ["a" * 10**7])
    assert "".join(streamed.add(token) for token in tokenizer("b" * 50 + "a")["input_ids"]) == "b" * 50
    assert streamed.add(tokenizer("b")["input_ids"][0]) == "ab"


def test_two_models_stream_at_the_same_time(model: Any, tokenizer: Any) -> None:
    other = tiny_model(seed=1)
    assert model_identity(other, tokenizer) != model_identity(model, tokenizer)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    attached = [make_any_probe("attention", one, tokenizer, []).attach(one, tokenizer) for one in (model, other)]
    alone = [str([*one.stream(QUESTION, **options)]) for one in attached]
    pairs = list(zip(*(one.stream(QUESTION, **options) for one in attached), strict=True))
    assert [str(list(steps)) for steps in zip(*pairs, strict=True)] == alone
