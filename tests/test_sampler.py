"""The local sampler, on tiny random models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import byte_tokenizer, tiny_model

from extract.policy import Decoding
from extract.sampling.local import LocalSampler

PROMPTS = ["Say", "Say a longer thing", "What?", "A", "Something of another length altogether", "Say a longer thinG"]


def encoded(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in PROMPTS]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "mistral", "gemma2", "phi3"])
def test_greedy_answers_equal_those_of_generate(family: str, tokenizer: Any) -> None:
    model = tiny_model(family)
    sampler = LocalSampler(model, tokenizer, Decoding(temperature=0, max_new_tokens=12))
    answers = sampler.sample([str(i) for i in range(len(PROMPTS))], encoded(tokenizer), range(2))
    for i, ids in enumerate(encoded(tokenizer)):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
        )
        for answer in answers[2 * i : 2 * i + 2]:
            assert answer.token_ids == expected[0, len(ids) :].tolist()


def test_logprobs_equal_a_teacher_forced_pass(model: Any, tokenizer: Any) -> None:
    sampler = LocalSampler(model, tokenizer, Decoding(temperature=1.0, max_new_tokens=20))
    prompts = encoded(tokenizer)
    for answer in sampler.sample([str(i) for i in range(len(PROMPTS))], prompts, range(5)):
        prompt = prompts[int(answer.question_id)]
        logits = model(torch.tensor([prompt + answer.token_ids])).logits[0].log_softmax(-1)
        expected = [float(logits[len(prompt) + t - 1, token]) for t, token in enumerate(answer.token_ids)]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(model: Any, tokenizer: Any) -> None:
    decoding = Decoding(temperature=1.0, max_new_tokens=20)
    ids, prompts = [str(i) for i in range(len(PROMPTS))], encoded(tokenizer)
    together = LocalSampler(model, tokenizer, decoding).sample(ids, prompts, range(6))
    alone = LocalSampler(model, tokenizer, decoding, max_rows=1).sample(ids[3:4], prompts[3:4], range(4, 6))
    assert [a.token_ids for a in alone] == [a.token_ids for a in together if a.question_id == "3" and a.sample >= 4]


def test_samples_differ_and_seeds_differ(model: Any, tokenizer: Any) -> None:
    def texts(seed: int) -> list[str]:
        sampler = LocalSampler(model, tokenizer, Decoding(temperature=1.0, seed=seed))
        return [a.text for a in sampler.sample(["a"], [encoded(tokenizer)[0]], range(8))]

    assert len(set(texts(0))) > 4
    assert texts(0) == texts(0)
    assert texts(0) != texts(1)


def test_an_answer_ends_at_the_end_token_or_at_the_limit(tokenizer: Any) -> None:
    sampler = LocalSampler(tiny_model(seed=1), tokenizer, Decoding(temperature=1.5, max_new_tokens=40))
    answers = sampler.sample(["a", "b"], encoded(tokenizer)[:2], range(60))
    for answer in answers:
        assert (answer.finish_reason == "stop") == (answer.token_ids[-1] == 0)
        assert 0 not in answer.token_ids[:-1]
        assert answer.finish_reason == "stop" or len(answer.token_ids) == 40
        assert len(answer.logprobs) == len(answer.token_ids)
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}


def test_a_stop_text_ends_and_cuts_the_answer(model: Any, tokenizer: Any) -> None:
    plain = LocalSampler(model, tokenizer, Decoding(temperature=1.0)).sample(["a"], [encoded(tokenizer)[0]], range(30))
    stop = next(a.text[3] for a in plain if len(a.text) > 6 and a.text[3] not in a.text[:3] and a.text[3].isascii())
    stopped = LocalSampler(model, tokenizer, Decoding(temperature=1.0, stop=(stop,))).sample(
        ["a"], [encoded(tokenizer)[0]], range(30)
    )
    for before, after in zip(plain, stopped, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert len(after.token_ids) <= len(before.token_ids)
    assert any(len(a.token_ids) < len(b.token_ids) for a, b in zip(stopped, plain, strict=True))


def test_progress_counts_every_answer_and_token(model: Any, tokenizer: Any) -> None:
    seen: list[tuple[int, int]] = []
    sampler = LocalSampler(model, byte_tokenizer(), Decoding(temperature=1.0), max_rows=8)
    answers = sampler.sample(["a", "b", "c"], encoded(tokenizer)[:3], range(4), lambda a, t: seen.append((a, t)))
    assert sum(a for a, _ in seen) == len(answers)
    assert sum(t for _, t in seen) == sum(len(a.token_ids) for a in answers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1}, "`policy.temperature` to be at least 0"),
        ({"top_p": 0}, "`policy.top_p` to be above 0"),
        ({"top_k": -1}, "`policy.top_k`"),
        ({"max_new_tokens": 0}, "`policy.max_new_tokens` to be at least 1"),
        ({"stop": [""]}, "`policy.stop`"),
    ],
)
def test_impossible_policies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding(**changes)
