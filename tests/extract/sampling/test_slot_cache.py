"""Tests of the cache with one slot per answer, and of replayed passes. Those on CUDA devices are skipped without one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.policy import Decoding
from extract.sampling.local.cache import SHORTEST_PREFIX, AnswerCache
from extract.sampling.local.replay import Replay, uncapturable
from extract.sampling.local.slot_cache import SlotCache, fits_slots
from extract.sampling.local.token_sampler import Sample, TokenSampler
from tests.helpers.devices import needs_cuda
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow

DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
LONG = "Examples that every prompt begins with, as a set of few-shot prompts has. "
SHORT = "The start of a chat prompt: "
WORDS = ["Say", "What?", "A", "Something of another length altogether"]


@pytest.fixture
def use_slots(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that sets whether samplers use slots."""
    name = "extract.sampling.local.answer_batch.fits_slots"
    return lambda used: monkeypatch.setattr(name, lambda *_: used)


def drawn(sampler: TokenSampler, before: str, tokenizer: Any) -> list[Sample]:
    """Draw answers in two calls for the same block of prompts."""
    prompts = [tokenizer(before + word)["input_ids"] for word in WORDS]
    answers = list[Sample]()
    for samples in (range(1), range(1, 3)):
        grid = sampler.sample_grid(WORDS, prompts, samples, [0.0, 1.5], block=prompts)
        answers += [answer for of_temperature in grid.values() for answer in of_temperature]
    return answers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("family", "before"),
    [("llama", ""), ("llama", SHORT), ("llama", LONG), ("gpt2", SHORT), ("phi3", LONG)],
    ids=["llama alone", "llama after a short prefix", "llama after a long prefix", "gpt2", "phi3"],
)
def test_answers_do_not_depend_on_the_kind_of_cache(
    device: str,
    family: str,
    before: str,
    tokenizer: Any,
    use_slots: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(SHORT) < SHORTEST_PREFIX < len(LONG)
    monkeypatch.setattr("extract.sampling.local.slot_cache._COLUMNS", 8)  # so that buffers are replaced several times
    model, answers = tiny_model(family, seed=2, num_hidden_layers=2).to(device), list[list[Sample]]()
    decoding = Decoding(max_new_tokens=24, stop=("Q",))
    for used in (True, False):
        use_slots(used)
        answers.append(drawn(TokenSampler(model, tokenizer, decoding, max_rows=5), before, tokenizer))
    assert len({len(answer.token_ids) for answer in answers[0]}) > 1  # answers end and join at different times
    for answer, other in zip(*answers, strict=True):
        assert (answer.token_ids, answer.text) == (other.token_ids, other.text)
        assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_the_memory_is_freed_at_the_end_of_a_call(
    model: Any, tokenizer: Any, use_slots: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    caches, join = [], SlotCache.join

    def noting(self: SlotCache, *arguments: Any) -> list[int]:
        caches.append(weakref.ref(self))
        return join(self, *arguments)

    monkeypatch.setattr(SlotCache, "join", noting)
    use_slots(True)
    sampler = TokenSampler(model, tokenizer, Decoding(max_new_tokens=4))
    gc.disable()  # the garbage collector does not know how much GPU memory is in use
    try:
        sampler.sample(["a"], [[5, 6, 7]], range(3))
        assert caches
        assert all(cache() is None for cache in caches)
    finally:
        gc.enable()


def test_models_that_are_not_on_one_cuda_device_get_no_slots(model: Any) -> None:
    read = AnswerCache(model, torch.ones(1, 3, dtype=torch.int64))
    assert not fits_slots(model, read, n_slots=1, most_tokens=4)


@needs_cuda
def test_slots_must_fit_into_the_free_memory() -> None:
    model = tiny_model().to("cuda")
    read = AnswerCache(model, torch.ones(1, 3, dtype=torch.int64, device="cuda"))
    for layer in read.layers:
        layer.update(*(torch.ones(1, 2, 3, 8, device="cuda") for _ in range(2)))
    assert fits_slots(model, read, n_slots=10, most_tokens=100)
    assert not fits_slots(model, read, n_slots=10**6, most_tokens=10**6)


class Counted:
    """Model whose logits are sums of the token id, the position and the number of tokens. It counts its passes."""

    def __init__(self, reads_value: bool) -> None:
        self.reads_value, self.n_calls = reads_value, 0

    def __call__(self, input_ids: Tensor, position_ids: Tensor, past_key_values: SlotCache, **_: Any) -> Any:
        self.n_calls += 1
        if self.reads_value:
            input_ids.sum().item()  # makes the CPU wait, so the pass can't be captured
        n_tokens = (past_key_values.bias[:, 0, 0] == 0).sum(-1, keepdim=True)
        return SimpleNamespace(logits=(n_tokens + input_ids + position_ids)[:, None])


def filled_cache(model: Any, device: str) -> SlotCache:
    read = AnswerCache(model, torch.tensor([[0, 1, 1], [1, 1, 1]], device=device))
    for layer in read.layers:
        layer.update(*(torch.ones(2, 2, 3, 8, device=device) for _ in range(2)))
    cache = SlotCache(read, n_slots=3, most_tokens=100)
    assert cache.join(read, [0, 1]) == [2, 1]
    return cache


@pytest.mark.parametrize(
    ("device", "reads_value", "n_calls"),
    [
        ("cpu", False, 4),
        pytest.param("cuda", False, 3, marks=needs_cuda),  # a warm-up, a check, and the captured pass
        pytest.param("cuda", True, 6, marks=needs_cuda),  # a warm-up, a check, and 4 passes
    ],
)
def test_a_pass_is_replayed_with_new_inputs_if_it_can_be_captured(
    device: str, reads_value: bool, n_calls: int, model: Any
) -> None:
    cache, counted = filled_cache(model, device), Counted(reads_value)
    replay = Replay(counted, cache)
    for step in range(4):
        cache.before_pass()
        ids = torch.tensor([[10], [20], [30]], device=device) + step
        logits = replay(ids, torch.zeros_like(ids))
        n_tokens = torch.tensor([[1], [4 + step], [3 + step]], device=device)
        assert torch.equal(logits, ids + n_tokens)
    assert counted.n_calls == n_calls
    assert (counted in uncapturable) == reads_value


def test_a_freed_slot_is_used_again_without_its_old_tokens(model: Any) -> None:
    cache = filled_cache(model, "cpu")
    for _ in range(70):  # longer than the first buffers
        cache.before_pass()
    cache.free([2])
    cache.before_pass()
    assert (cache.bias[:, 0, 0] == 0).sum(-1).tolist() == [1, 3 + 71, 1]
    read = AnswerCache(model, torch.ones(1, 2, dtype=torch.int64))
    for layer in read.layers:
        layer.update(*(torch.full((1, 2, 2, 8), 5.0) for _ in range(2)))
    assert cache.join(read, [0]) == [2]
    cache.before_pass()
    visible = cache.bias[2, 0, 0] == 0
    assert visible.nonzero()[:, 0].tolist() == [0, 1, 2]
    for layer in cache.layers:
        for buffer in layer.buffers:
            assert bool((buffer[2, :, :2] == 5).all())
            assert bool((buffer[1, :, :3] == 1).all())
