"""Tests of the local sampler on tiny random models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from extract.errors import InputError
from extract.policy import Decoding
from extract.sampling.local.attention import _FUSED_QUERIES, attend_to, merge
from extract.sampling.local.batching import common_prefix
from extract.sampling.local.shared_cache import SharedCache
from extract.sampling.local.token_sampler import TokenSampler
from tests.helpers.planted import read_hidden
from tests.helpers.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

PROMPTS = ["Say", "Say a longer thing", "What?", "A", "Something of another length altogether", "Say a longer thinG"]


EXAMPLES = "Examples that every prompt begins with, as a set of few-shot prompts has. "
FAMILIES = ["llama", "gpt2", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "doge"]


def encoded(tokenizer: Any, before: str = "") -> list[list[int]]:
    return [tokenizer(before + text)["input_ids"] for text in PROMPTS]


@pytest.mark.parametrize("before", ["", EXAMPLES], ids=["alone", "after a shared prefix"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in FAMILIES), ("mistral", {"sliding_window": 20}), ("gemma3", {"sliding_window": 20})],
)
def test_greedy_answers_equal_those_of_generate(
    family: str, changes: dict[str, Any], before: str, tokenizer: Any
) -> None:
    model = tiny_model(family, num_hidden_layers=2, **changes)
    sampler = TokenSampler(model, tokenizer, Decoding(temperature=0, max_new_tokens=10))
    prompts = encoded(tokenizer, before)[1::2]
    answers = sampler.sample([str(i) for i in range(len(prompts))], prompts, range(2))
    for i, ids in enumerate(prompts):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=10,
            do_sample=False,
        )
        for answer in answers[2 * i : 2 * i + 2]:
            assert answer.token_ids == expected[0, len(ids) :].tolist()
    assert model.config._attn_implementation != "shared_prompt"


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_shared_with_standard_attention(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = []
    join = SharedCache.join
    monkeypatch.setattr(SharedCache, "join", lambda *arguments: (joined.append(True), join(*arguments)))
    TokenSampler(tiny_model(family), tokenizer, Decoding(max_new_tokens=2)).sample(
        ["a"], encoded(tokenizer)[:1], range(2)
    )
    assert bool(joined) == (family not in ("mistral", "gemma2", "gemma3", "doge"))  # windows, soft-capping, biases


@pytest.mark.parametrize("n_queries", [4, _FUSED_QUERIES])  # matrix products, and the fused kernel
def test_attention_to_parts_is_merged_to_attention_to_all(n_queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, 3, n, 8, generator=generator) for n in (n_queries, 30, 30))
    bias = torch.zeros(2, 1, 1, 30)
    bias[:, :, :, 3:7] = -torch.inf
    parts = [
        attend_to(0.7 * queries, keys[:, :, a:b], values[:, :, a:b], bias[..., a:b])
        for a, b in ((0, 3), (3, 12), (12, 13), (13, 30))
    ]
    scores = (queries.double() @ keys.double().mT) * 0.7 + bias.double()
    torch.testing.assert_close(merge(parts).double(), scores.softmax(-1) @ values.double(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([[1] * 20 + [2], [1] * 20 + [3, 4]], 16),
        ([[1] * 16, [1] * 16], 0),  # one token of each is left, so there are fewer than 16
        ([[1] * 40, [1] * 35 + [2]], 32),
        ([[1] * 100], 96),
        ([[1] * 15 + [2], [1] * 15 + [3]], 0),
    ],
)
def test_a_common_prefix_has_a_multiple_of_16_tokens_and_leaves_one(prompts: list[list[int]], shared: int) -> None:
    assert common_prefix(prompts) == prompts[0][:shared]


def test_a_prefix_is_processed_once_for_all_blocks(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        model, "forward", lambda *a, f=model.forward, **k: (seen.append(k["input_ids"].shape), f(*a, **k))[1]
    )
    sampler = TokenSampler(model, tokenizer, Decoding(max_new_tokens=1))
    prompts = encoded(tokenizer, EXAMPLES)
    for i in range(3):
        sampler.sample(["a", "b"], prompts[2 * i : 2 * i + 2], range(2))
    assert [shape for shape in seen if shape[0] == 1] == [(1, 64)]
    assert max(shape[1] for shape in seen if shape[0] > 1) < 64


@pytest.mark.parametrize(
    ("before", "n_tokens"),
    [(EXAMPLES, 64), (EXAMPLES[:50], 48)],
    ids=["separate attention", "stored with each prompt"],
)
def test_a_shared_prefix_does_not_change_logprobs(
    before: str, n_tokens: int, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, ids = encoded(tokenizer, before), [str(i) for i in range(len(PROMPTS))]
    assert len(common_prefix(prompts)) == n_tokens
    sampler = TokenSampler(model, tokenizer, Decoding(temperature=1.0, max_new_tokens=30))
    shared = sampler.sample(ids, prompts, range(4))
    monkeypatch.setattr("extract.sampling.local.token_sampler.common_prefix", lambda prompts: [])
    for a, b in zip(shared, sampler.sample(ids, prompts, range(4)), strict=True):
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_logprobs_equal_a_teacher_forced_pass(model: Any, tokenizer: Any) -> None:
    sampler = TokenSampler(model, tokenizer, Decoding(temperature=1.0, max_new_tokens=20))
    prompts = encoded(tokenizer)
    for answer in sampler.sample([str(i) for i in range(len(PROMPTS))], prompts, range(2)):
        prompt = prompts[int(answer.question_id)]
        logits = model(torch.tensor([prompt + answer.token_ids])).logits[0].log_softmax(-1)
        expected = [float(logits[len(prompt) + t - 1, token]) for t, token in enumerate(answer.token_ids)]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(model: Any, tokenizer: Any) -> None:
    decoding = Decoding(temperature=1.0, max_new_tokens=20)
    ids, prompts = [str(i) for i in range(len(PROMPTS))], encoded(tokenizer)
    together = TokenSampler(model, tokenizer, decoding).sample(ids, prompts, range(6))
    alone = TokenSampler(model, tokenizer, decoding, max_rows=1).sample(ids[3:4], prompts[3:4], range(4, 6))
    assert [a.token_ids for a in alone] == [a.token_ids for a in together if a.question_id == "3" and a.sample >= 4]


def test_samples_differ_and_seeds_differ(model: Any, tokenizer: Any) -> None:
    def texts(seed: int) -> list[str]:
        sampler = TokenSampler(model, tokenizer, Decoding(temperature=1.0, max_new_tokens=20, seed=seed))
        return [a.text for a in sampler.sample(["a"], [encoded(tokenizer)[0]], range(8))]

    assert len(set(texts(0))) > 4
    assert texts(0) == texts(0)
    assert texts(0) != texts(1)


def test_an_answer_ends_at_the_end_token_or_at_the_limit(tokenizer: Any) -> None:
    sampler = TokenSampler(tiny_model(seed=1), tokenizer, Decoding(temperature=1.5, max_new_tokens=40))
    answers = sampler.sample(["a", "b"], encoded(tokenizer)[:2], range(60))
    for answer in answers:
        assert (answer.finish_reason == "stop") == (answer.token_ids[-1] == 0)
        assert 0 not in answer.token_ids[:-1]
        assert answer.finish_reason == "stop" or len(answer.token_ids) == 40
        assert len(answer.logprobs) == len(answer.token_ids)
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}


def test_a_stop_string_ends_and_truncates_the_answer(model: Any, tokenizer: Any) -> None:
    decoding, prompts = Decoding(temperature=1.0, max_new_tokens=20), [encoded(tokenizer)[0]]
    plain = TokenSampler(model, tokenizer, decoding).sample(["a"], prompts, range(30))
    stop = next(a.text[3] for a in plain if len(a.text) > 6 and a.text[3] not in a.text[:3] and a.text[3].isascii())
    stopped = TokenSampler(model, tokenizer, replace(decoding, stop=(stop,))).sample(["a"], prompts, range(30))
    for before, after in zip(plain, stopped, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert len(after.token_ids) <= len(before.token_ids)
    assert any(len(a.token_ids) < len(b.token_ids) for a, b in zip(stopped, plain, strict=True))


def test_progress_counts_every_answer_and_token(model: Any, tokenizer: Any) -> None:
    seen: list[tuple[int, int]] = []
    sampler = TokenSampler(model, byte_tokenizer(), Decoding(temperature=1.0, max_new_tokens=20), max_rows=8)
    answers = sampler.sample(["a", "b", "c"], encoded(tokenizer)[:3], range(4), lambda a, t: seen.append((a, t)))
    assert sum(a for a, _ in seen) == len(answers)
    assert sum(t for _, t in seen) == sum(len(a.token_ids) for a in answers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1}, "`policy.temperature` to be 0 or a finite number of at least 1e-6"),
        ({"temperature": 1e-38}, "`policy.temperature`"),
        ({"temperature": float("inf")}, "`policy.temperature`"),
        ({"temperature": float("nan")}, "`policy.temperature`"),
        ({"top_p": 0}, "`policy.top_p` to be above 0"),
        ({"top_k": -1}, "`policy.top_k`"),
        ({"max_new_tokens": 0}, "`policy.max_new_tokens` to be at least 1"),
        ({"stop": [""]}, "`policy.stop`"),
    ],
)
def test_impossible_policies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding(**changes)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([5, 300, 7], "token ids from 0 to 257, but prompt 1 contains 300"),
        ([5, -1, 7], "token ids from 0 to 257, but prompt 1 contains -1"),
        ([5] * 500, "at most 512 tokens, the limit of 'tiny-llama', but prompt 1 has 500"),
    ],
)
def test_prompts_that_the_model_cannot_read_are_refused(
    prompt: list[int], message: str, model: Any, tokenizer: Any
) -> None:
    sampler = TokenSampler(model, tokenizer, Decoding(max_new_tokens=20))
    with pytest.raises(InputError, match=message):
        sampler.sample(["a", "b"], [[1, 2], prompt], range(2))


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("GPTNeo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}),
        ("Mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}),
        ("DeepseekV3", {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
                        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                        "first_k_dense_replace": 1, "moe_intermediate_size": 16}),
    ],
)  # fmt: skip
def test_models_with_special_attention_give_the_tokens_of_generate(
    family: str, sizes: dict[str, Any], tokenizer: Any
) -> None:
    import transformers

    torch.manual_seed(0)
    plain = {
        "vocab_size": 258,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = getattr(transformers, f"{family}Config")(**plain, **sizes, eos_token_id=0, pad_token_id=1, bos_token_id=0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    prompts = encoded(tokenizer, EXAMPLES)[::2]
    answers = TokenSampler(model, tokenizer, Decoding(temperature=0, max_new_tokens=8)).sample(
        [str(i) for i in range(len(prompts))], prompts, range(2)
    )
    for answer in answers:
        ids = prompts[int(answer.question_id)]
        out = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=8, do_sample=False
        )
        assert answer.token_ids == out[0, len(ids) :].tolist()


def test_a_model_can_be_used_during_sampling(tokenizer: Any) -> None:
    model, prompts = tiny_model(), encoded(tokenizer, EXAMPLES)
    decoding, ids = Decoding(temperature=1.0, max_new_tokens=10), [str(i) for i in range(len(PROMPTS))]
    alone = TokenSampler(model, tokenizer, decoding).sample(ids, prompts, range(3))
    states = read_hidden(model, prompts)
    seen: list[Any] = []

    def use(answers: int, tokens: int) -> None:
        if len(seen) < 3:
            seen.append(read_hidden(model, prompts))
            seen.append(TokenSampler(model, tokenizer, decoding).sample(ids, prompts, range(3)))

    assert TokenSampler(model, tokenizer, decoding).sample(ids, prompts, range(3), use) == alone
    assert torch.equal(seen[0], states)
    assert seen[1] == alone
    assert model.config._attn_implementation == "sdpa"


def test_two_threads_can_sample_from_one_model(tokenizer: Any) -> None:
    model, prompts = tiny_model(), encoded(tokenizer, EXAMPLES)
    alone = {
        n: TokenSampler(model, tokenizer, Decoding(max_new_tokens=n)).sample(list("abcdef"), prompts, range(2))
        for n in (3, 30)
    }
    with ThreadPoolExecutor(2) as pool:
        work = {
            n: pool.submit(
                TokenSampler(model, tokenizer, Decoding(max_new_tokens=n)).sample, list("abcdef"), prompts, range(2)
            )
            for n in (30, 3)
        }
    assert {n: future.result() for n, future in work.items()} == {30: alone[30], 3: alone[3]}
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logits_that_are_nan_are_refused(temperature: float, tokenizer: Any) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    sampler = TokenSampler(model, tokenizer, Decoding(temperature=temperature))
    with pytest.raises(InputError, match="Expected finite logits, but the model returned NaN in float32"):
        sampler.sample(["a"], [[1, 2]], range(3))


@pytest.mark.parametrize("family", ["FalconH1", "Mamba"])
def test_models_with_states_other_than_keys_and_values_are_refused(family: str, tokenizer: Any) -> None:
    import transformers

    config = getattr(transformers, f"{family}Config")(vocab_size=258, hidden_size=32, num_hidden_layers=2)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with pytest.raises(InputError, match=f"plain key/value cache, but {family}ForCausalLM"):
        TokenSampler(model, tokenizer, Decoding()).sample(["a"], [[1, 2]], range(2))
