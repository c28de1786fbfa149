"""Tests of attention signals read during SDPA, compared with eager attention. The pass itself must not change."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from extract.errors import InputError
from extract.signals import attention_scores
from extract.signals.attention_reader import AttentionReader
from extract.signals.attention_scores import HIDDEN, head_entropies
from extract.signals.base import Answer, TokenSpans
from extract.signals.reader import Reader
from extract.signals.reading import read_answers, read_questions
from tests.helpers.attention_by_hand import (
    ANSWERS,
    FAMILIES,
    assert_rows,
    eager,
    entropies_by_hand,
    family_model,
    macs_by_hand,
    read_rows,
)
from tests.helpers.live import LiveBytes
from tests.helpers.tiny import tiny_model

ALL = ("attention_entropy", "rollout", "rollout_max", "macs")
WANTS = ("attention_entropy", "attention_blocks", "attention_macs", "mixing")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_entropies_and_macs_equal_eager_attention_in_any_batch(family: str) -> None:
    model = family_model(family)
    by_hand = eager(model)
    for signal, of_answer in (("attention_entropy", entropies_by_hand), ("macs", macs_by_hand)):
        expected = [of_answer(by_hand, answer) for answer in ANSWERS]
        for options in ({}, {"batch_tokens": 1}):
            assert_rows(read_rows(model, ANSWERS, signal, **options), expected, atol=1e-5)


def test_the_sinks_of_gpt_oss_are_left_out_of_its_weights() -> None:
    config = transformers.GptOssConfig(vocab_size=258, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=4, pad_token_id=1, max_position_embeddings=64)  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).eval().requires_grad_(False)
    for block in model.model.layers:
        block.self_attn.sinks.fill_(3.0)
    model.name_or_path = "tiny-gpt-oss"
    expected = [entropies_by_hand(model, answer) for answer in ANSWERS]
    assert_rows(read_rows(model, ANSWERS, "attention_entropy", batch_tokens=1), expected, atol=1e-5)


def test_a_question_has_the_values_at_the_start_of_its_answer() -> None:
    model = tiny_model()
    prompts = [answer.prompt for answer in ANSWERS]
    found = read_questions(model, prompts, ["attention_entropy"])["attention_entropy"]
    rows = read_rows(model, ANSWERS, "attention_entropy")
    assert found.keys() == rows[0].keys()
    for key, values in found.items():
        np.testing.assert_allclose(values, [row[key][0] for row in rows], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 200, 4000])
def test_the_memory_budget_does_not_change_values(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    expected = [read_rows(model, ANSWERS, name) for name in ALL]
    monkeypatch.setattr(attention_scores, "CACHED_SCORES", budget)
    for name, rows in zip(ALL, expected, strict=True):
        assert_rows(read_rows(model, ANSWERS, name), rows, atol=1e-6)


@pytest.mark.real_model
def test_signals_of_the_embedded_model_equal_eager_attention(embedded: tuple[Any, Any]) -> None:
    model, tokenizer = embedded
    ids = tokenizer("The capital of Peru is Lima, and that of Chile is Santiago. The capital of")["input_ids"]
    answer = Answer(tuple(ids[:7]), tuple(ids[7:]))
    by_hand = eager(model)
    for signal, of_answer in (("attention_entropy", entropies_by_hand), ("macs", macs_by_hand)):
        assert_rows(read_rows(model, [answer], signal), [of_answer(by_hand, answer)], atol=1e-5)


def test_entropies_are_exact_if_all_attention_is_on_the_first_token() -> None:
    of_head = torch.tensor([200.0, 1.0, 1.0, 2.0, HIDDEN]).repeat(1, 1, 1, 1)
    whole, sink_free = head_entropies(of_head, torch.tensor([[4]]))
    p = np.exp([1.0, 1.0, 2.0]) / np.exp([1.0, 1.0, 2.0]).sum()
    assert float(whole) == 0
    assert float(sink_free) == pytest.approx(-(p * np.log(p)).sum() / np.log(3))
    alone = head_entropies(torch.tensor([5.0, HIDDEN]).repeat(1, 1, 1, 1), torch.tensor([[1]]))
    assert list(map(float, alone)) == [0, 0]
    alike = head_entropies(torch.zeros(1, 1, 1, 7), torch.tensor([[7]]))
    assert list(map(float, alike)) == pytest.approx([1, 1])
    unseen = head_entropies(torch.tensor([HIDDEN, 1.0, 1.0]).repeat(1, 1, 1, 1), torch.tensor([[2]]))
    assert list(map(float, unseen)) == pytest.approx([1, 1])


# Dependence on the inputs


def test_a_changed_head_affects_only_its_own_and_later_layers() -> None:
    model = tiny_model()
    base = read_rows(model, ANSWERS, "attention_entropy")
    model.model.layers[1].self_attn.q_proj.weight[:8] *= 3  # the first head
    moved = read_rows(model, ANSWERS, "attention_entropy")
    for before, after in zip(base, moved, strict=True):
        assert np.array_equal(before["1/normalised"], after["1/normalised"])
        for layer in (2, 3):
            if before["1/normalised"].any():  # otherwise, only one key was visible
                assert not np.allclose(before[f"{layer}/normalised"], after[f"{layer}/normalised"])


def test_the_output_of_a_head_does_not_affect_the_attention_of_its_layer() -> None:
    model = tiny_model()
    base = read_rows(model, ANSWERS[:1], "attention_entropy")[0]
    model.model.layers[1].self_attn.o_proj.weight[:, :8] *= 3
    moved = read_rows(model, ANSWERS[:1], "attention_entropy")[0]
    for key in base:
        assert np.array_equal(base[key], moved[key]) == (key[0] != "3")


def test_a_changed_token_affects_only_later_tokens() -> None:
    model = tiny_model()
    base = Answer((5, 6, 7), (40, 41, 42, 43))
    other = Answer((5, 6, 7), (40, 99, 42, 43))
    for name in ("attention_entropy", "macs"):
        first, second = (read_rows(model, [answer], name)[0] for answer in (base, other))
        for key in first:
            if name == "attention_entropy":  # y_2 is read after it was drawn
                np.testing.assert_allclose(first[key][:2], second[key][:2], rtol=1e-5)
                assert not np.allclose(first[key][2:], second[key][2:])
            else:
                assert not np.allclose(first[key], second[key])


def test_nan_in_one_answer_does_not_affect_the_rest_of_the_batch() -> None:
    model = tiny_model()
    model.model.embed_tokens.weight[99] = torch.nan
    answers = [Answer((5, 6), (40, 99, 41)), Answer((7, 8), (40, 42, 41))]
    for name in ALL:
        with_nan, alone = read_rows(model, answers, name), read_rows(model, answers[1:], name)
        assert_rows(with_nan[1:], alone, atol=1e-6)
        assert all(np.isnan(values).all() for key, values in with_nan[0].items() if "emit" not in key and key[0] != "1")


# The pass itself


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("masked", [False, True])
def test_the_reader_does_not_change_any_bit_of_the_logits(family: str, masked: bool) -> None:
    model = family_model(family)
    ids, mask = torch.arange(2, 26).view(2, 12), torch.ones(2, 12, dtype=torch.int64)
    mask[0, 11:] = 0
    options: dict[str, Any] = {"attention_mask": mask} if masked else {}
    with torch.inference_mode():
        plain = model(ids, **options).logits
        with AttentionReader(model, WANTS) as reader:
            untouched = model(ids, **options).logits
            reader.start(TokenSpans([5, 6], [4, 5]))
            read = model(ids, **options).logits
            assert len(reader.finish().layers) == 3
            after = model(ids, **options).logits
    for logits in (untouched, read, after):
        assert torch.equal(plain, logits)


def n_hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_attention_and_hooks_are_restored_even_after_an_error(family: str) -> None:
    model = tiny_model(family)
    before = model.config._attn_implementation, n_hooks(model)
    with AttentionReader(model, WANTS):
        assert (model.config._attn_implementation, n_hooks(model)) != before
    assert (model.config._attn_implementation, n_hooks(model)) == before
    with pytest.raises(ZeroDivisionError), Reader(model, WANTS):
        raise ZeroDivisionError
    assert (model.config._attn_implementation, n_hooks(model)) == before
    model.model.layers[1].post_attention_layernorm = torch.nn.Identity()
    del model.model.layers[1].post_attention_layernorm
    with pytest.raises(InputError, match="to add their attention output"):
        AttentionReader(model, WANTS).__enter__()
    assert (model.config._attn_implementation, n_hooks(model)) == before


def test_a_reader_reads_only_its_own_model() -> None:
    model, other = tiny_model(), tiny_model("qwen2")
    ids = torch.arange(5, 12)[None]
    with torch.inference_mode(), AttentionReader(model, ["attention_entropy"]) as reader:
        reader.start(TokenSpans([3], [3]))
        with AttentionReader(other, ["attention_entropy"]):
            other(ids)
        model(ids)
        assert len(reader.finish().layers) == 3


def test_only_requested_values_are_kept() -> None:
    model = tiny_model()
    kept = {
        "attention_entropy": {"normalised", "sink_free", "smallest_head"},
        "attention_blocks": {"mean", "sums"},
        "attention_macs": set(),
    }
    for want, names in kept.items():
        with torch.inference_mode(), AttentionReader(model, [want]) as reader:
            reader.start(TokenSpans([3], [3]))
            model(torch.arange(5, 12)[None])
            taken = reader.finish()
        assert [set(layer) for layer in taken.layers] == [names] * 3
        assert set(taken.floors) == ({1, 20} if want == "attention_macs" else set())
        assert taken.dots == []


@pytest.mark.slow
def test_heads_are_not_kept_and_only_few_exist_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, answer = tiny_model(), Answer(tuple(range(2, 130)), tuple(range(130, 258)))
    monkeypatch.setattr(attention_scores, "CACHED_SCORES", 1 << 12)
    with torch.inference_mode(), LiveBytes() as of_reading, Reader(model, ["attention_blocks", "mixing"]) as reader:
        kept = reader.answers([answer])
    assert len(kept.attention.layers) == 3
    blocks = 3 * 129 * 129 * 4
    assert blocks < of_reading.now < 2 * blocks  # also the last hidden state, and fields that are made once
    by_hand = eager(model)
    with torch.inference_mode(), LiveBytes() as of_eager:
        by_hand(torch.tensor([answer.prompt + answer.content]), output_attentions=True, logits_to_keep=1)
    assert of_eager.peak > 3 * 4 * 256 * 256 * 4
    assert of_reading.peak < of_eager.peak / 4  # a model of 4 heads


def test_values_after_an_answer_are_0() -> None:
    with torch.inference_mode(), Reader(tiny_model(), WANTS) as reader:
        attention = reader.answers(ANSWERS).attention
    for row, answer in enumerate(ANSWERS):
        places = len(answer.content) + 1
        kept = [*attention.layers, *(dots._asdict() for dots in attention.dots)]
        for name, values in (item for one in kept for item in one.items()):
            assert not values[row, places:].any(), name
            assert values[row, :places].any(), name
        for layer in attention.layers:
            assert not layer["mean"][row, :, places:].any()
            assert not layer["mean"][row].triu(1).any()


# Unsupported models


@pytest.mark.parametrize(
    ("family", "want", "reason"),
    [
        ("GPTJ", "attention_entropy", "GPTJForCausalLM has 'eager' attention, which can't be replaced"),
        ("Bloom", "attention_entropy", "BloomForCausalLM has 'eager' attention"),
        ("Falcon", "attention_entropy", "FalconForCausalLM has 'sdpa' attention"),
        ("GPTNeoX", "mixing", "those of GPTNeoXForCausalLM don't. Leave out rollout and rollout_max"),
        ("Phi", "mixing", "those of PhiForCausalLM don't"),
        ("Granite", "mixing", "those of GraniteForCausalLM don't"),
    ],
)
def test_models_with_unsupported_attention_are_refused(family: str, want: str, reason: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 258, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}  # fmt: skip
    if family == "GPTJ":
        sizes |= {"rotary_dim": 4}
    if family in ("GPTNeoX", "Phi", "Granite"):
        sizes |= {"intermediate_size": 48}
    if family == "Granite":
        sizes |= {"residual_multiplier": 0.5}
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes)).eval()
    before = model.config._attn_implementation, n_hooks(model)
    with pytest.raises(InputError, match=re.escape(reason)) as caught, Reader(model, [want]) as reader:
        reader.answers(ANSWERS[:1])
    assert "\n" not in str(caught.value)
    assert (model.config._attn_implementation, n_hooks(model)) == before


def test_a_layer_without_attention_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    block = model.model.layers[1].self_attn
    monkeypatch.setattr(block, "forward", lambda hidden_states, **options: (hidden_states, None))
    with pytest.raises(
        InputError, match="of its 3 layers, but LlamaForCausalLM called this function 2 times, in 2 layers"
    ):
        read_answers(model, ANSWERS, ["attention_entropy"])


def test_attention_that_is_not_sdpa_or_eager_is_refused() -> None:
    model = tiny_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(InputError, match="has 'flash_attention_2' attention"), AttentionReader(model, WANTS):
        pass
