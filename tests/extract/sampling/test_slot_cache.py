"""Tests of the cache with one slot per answer, and of replayed passes. Those on CUDA devices are skipped without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from extract.policy import Decoding
from extract.sampling.local.cache import SHORTEST_PREFIX, AnswerCache
from extract.sampling.local.replay import Replay
from extract.sampling.local.slot_cache import SlotCache, fits_slots
from extract.sampling.local.token_sampler import Sample, TokenSampler
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
PREFIX = "Examples that every prompt begins with, as a set of few-shot prompts has. "
WORDS = ["Say", "Say a longer thing", "What?", "A", "Something of another length altogether", "Why not"]


def drawn(
    use_slots: bool, model: Any, tokenizer: Any, before: str, max_new_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> list[Sample]:
    monkeypatch.setattr("extract.sampling.local.answer_batch.fits_slots", lambda *_: use_slots)
    prompts = [tokenizer(before + word)["input_ids"] for word in WORDS]
    sampler = TokenSampler(model, tokenizer, Decoding(max_new_tokens=max_new_tokens), max_rows=7)
    by_temperature = sampler.sample_grid(WORDS, prompts, range(4), [0.0, 1.5])
    return [answer for answers in by_temperature.values() for answer in answers]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("before", ["", PREFIX], ids=["alone", "after a shared prefix"])
@pytest.mark.parametrize(("family", "max_new_tokens"), [("llama", 40), ("llama", 150), ("gpt2", 40), ("phi3", 40)])
def test_answers_do_not_depend_on_the_kind_of_cache(
    device: str, before: str, family: str, max_new_tokens: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(PREFIX) > SHORTEST_PREFIX
    model = tiny_model(family, seed=2).to(device)
    answers, others = (
        drawn(use_slots, model, tokenizer, before, max_new_tokens, monkeypatch) for use_slots in (True, False)
    )
    lengths = [len(answer.token_ids) for answer in answers]
    assert len(set(lengths)) > 1  # answers end and join at different times
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in others]
    for answer, other in zip(answers, others, strict=True):
        assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_models_that_are_not_on_one_cuda_device_get_no_slots(model: Any) -> None:
    read = AnswerCache(model, torch.ones(1, 3, dtype=torch.int64))
    assert not fits_slots(model, read, 4, 16)


class Counted:
    """Forward pass that returns the number of tokens in each slot, and counts its calls."""

    def __init__(self, cache: SlotCache, reads_value: bool) -> None:
        self.cache, self.reads_value, self.n_calls = cache, reads_value, 0

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        self.n_calls += 1
        if self.reads_value:
            ids.sum().item()  # makes the CPU wait, so it can't be captured
        return (self.cache.bias[:, 0, 0] == 0).sum(-1, keepdim=True) + ids + positions


def filled_cache(model: Any, device: str) -> SlotCache:
    read = AnswerCache(model, torch.tensor([[0, 1, 1], [1, 1, 1]], device=device))
    for layer in read.layers:
        layer.update(*(torch.ones(2, 2, 3, 8, device=device) for _ in range(2)))
    cache = SlotCache(read, n_slots=3)
    assert cache.join(read, [0, 1]) == [2, 1]
    return cache


@pytest.mark.parametrize(
    ("device", "reads_value", "n_calls"),
    [
        ("cpu", False, 4),
        pytest.param("cuda", False, 2, marks=needs_cuda),  # a warm-up and the captured pass
        pytest.param("cuda", True, 6, marks=needs_cuda),
    ],
)
def test_a_pass_is_replayed_with_new_inputs_if_it_can_be_captured(
    device: str, reads_value: bool, n_calls: int, model: Any
) -> None:
    cache = filled_cache(model, device)
    run = Counted(cache, reads_value)
    replay = Replay(run, cache)
    for step in range(4):
        cache.before_pass()
        ids = torch.tensor([[10], [20], [30]], device=device) + step
        logits = replay(ids, torch.zeros_like(ids))
        n_tokens = torch.tensor([[1], [4 + step], [3 + step]], device=device)
        assert torch.equal(logits, ids + n_tokens)
    assert run.n_calls == n_calls


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
