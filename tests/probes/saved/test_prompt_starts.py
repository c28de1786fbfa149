"""Tests of the tokens before the question, which an attached probe reads only once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from extract.signals.model_parts import decoder_of
from extract.signals.shared_prompt import can_share
from probes.saved.confidence import ConfidentModel
from tests.helpers.saved_probes import linear_probe
from tests.helpers.tiny import tiny_model

QUESTIONS = ["Why?", "What is this?", "Who", "Where is it, then?"]
EXAMPLES = [("Is 2 + 2 = 4?", "Yes."), ("Is 2 + 3 = 4?", "No.")]


def attached(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[ConfidentModel, list[int]]:
    """Attach a probe with worked examples. Also returns a list to which each pass appends its number of tokens."""
    prompt = {"template": "Q: {question} A:", "system": None, "chat": True, "examples": EXAMPLES}
    confident = linear_probe(model, tokenizer, prompt=prompt).attach(model, tokenizer)
    seen: list[int] = []
    decoder = decoder_of(model)
    monkeypatch.setattr(
        decoder, "forward", lambda *a, f=decoder.forward, **k: (seen.append(k["input_ids"].numel()), f(*a, **k))[1]
    )
    return confident, seen


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "phi3", "mistral", "gemma3"])
def test_worked_examples_are_read_once_for_all_calls_and_do_not_change_confidences(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    confident, seen = attached(model, tokenizer, monkeypatch)
    together = confident.score(QUESTIONS).confidence
    alone = torch.cat([confident.score(question).confidence for question in QUESTIONS])
    prompts = confident._encode(QUESTIONS, None)
    start = confident.starts.of(prompts)
    assert (start is not None) == can_share(model)
    if start is not None:
        n, (first, batch, *singly) = len(start.tokens), seen
        assert n == first > 80
        assert batch == len(prompts) * (max(map(len, prompts)) - n)
        assert singly == [len(prompt) - n for prompt in prompts]
        confident.starts._caches.clear()
    whole = torch.cat([confident.score(question).confidence for question in QUESTIONS])
    assert seen[-len(prompts) :] == [len(prompt) for prompt in prompts]
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-5)


def test_chats_with_the_same_turns_are_read_from_the_first_different_token(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    confident, seen = attached(model, tokenizer, monkeypatch)
    turns = [{"role": "user", "content": "Remember this. " * 10}, {"role": "assistant", "content": "I do. " * 10}]
    chats = [[*turns, {"role": "user", "content": question}] for question in QUESTIONS]
    together = confident.score(chats).confidence
    n_tokens = sum(map(len, confident._encode(chats, None)))
    assert sum(seen) < n_tokens / 2
    alone = torch.cat([confident.score([chat]).confidence for chat in chats])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_a_detached_probe_frees_the_caches(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    confident, _ = attached(model, tokenizer, monkeypatch)
    confident.score(QUESTIONS)
    assert "starts" in vars(confident)
    confident.detach()
    assert "starts" not in vars(confident)
