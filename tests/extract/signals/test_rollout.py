"""Tests of rollout: comparison with products of whole matrices, identities, and the inputs that affect it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.signals.attention import FIELDS, MIXES, attention_shares, rows_largest, rows_summed
from extract.signals.attention_scores import column_field, element_field, normalisers
from extract.signals.base import Answer, Dots
from extract.signals.reader import Reader
from tests.helpers.attention_by_hand import (
    ANSWERS,
    FAMILIES,
    assert_rows,
    eager,
    family_model,
    read_rows,
    rollout_by_hand,
)
from tests.helpers.tiny import tiny_model


def both(model: Any, answers: list[Answer], **options: Any) -> list[dict[str, np.ndarray]]:
    rows = zip(*(read_rows(model, answers, name, **options) for name in ("rollout", "rollout_max")), strict=True)
    return [summed | largest for summed, largest in rows]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_rollout_equals_the_product_of_full_matrices_in_any_batch(family: str) -> None:
    model = family_model(family)
    by_hand = eager(model)
    expected = [rollout_by_hand(by_hand, answer) for answer in ANSWERS]
    assert len(expected[0]) == 108 + 36
    for options in ({}, {"batch_tokens": 1}):
        assert_rows(both(model, ANSWERS, **options), expected, atol=2e-6)


@pytest.mark.real_model
def test_rollout_of_the_embedded_model_equals_the_product_of_full_matrices(embedded: tuple[Any, Any]) -> None:
    model, tokenizer = embedded
    ids = tokenizer("The capital of Peru is Lima, and that of Chile")["input_ids"]
    answer = Answer(tuple(ids[:5]), tuple(ids[5:]))
    assert_rows(both(model, [answer]), [rollout_by_hand(eager(model), answer)], atol=1e-5)


def test_values_in_half_precision_are_close_to_eager_attention() -> None:
    model = tiny_model().to(torch.bfloat16)
    expected = rollout_by_hand(eager(model), ANSWERS[4])
    found = both(model, ANSWERS)[4]
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, atol=2e-2, err_msg=key)


# Identities


def layers_of(attention: Tensor, shares: Tensor) -> tuple[Any, ...]:
    """Return inputs for `rows_summed` for one answer, from attention [layer, T, T] and shares [layer, mix, T]."""
    T = attention.shape[1]
    place = torch.arange(T)[None]
    n_tokens = torch.tensor([T])
    column, element = column_field(place, n_tokens), element_field(place, place)
    blocks = [one[None] for one in attention]
    sums = [normalisers(block, column, element) for block in blocks]
    return blocks, sums, [share[None] for share in shares], place, n_tokens, torch.ones(1, T, dtype=torch.bool)


def random_attention(n_layers: int, T: int) -> Tensor:
    scores = torch.randn(n_layers, T, T, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)


@pytest.mark.parametrize("T", [2, 3, 9])
def test_rows_of_the_product_sum_to_one(T: int) -> None:
    shares = torch.rand(4, len(MIXES), T)
    summed = rows_summed(*layers_of(random_attention(4, T), shares))
    everything, newest = summed[..., 1, :].unbind(3)  # all T tokens
    torch.testing.assert_close(newest.sum(-1), torch.ones(1, len(FIELDS), len(MIXES)))
    torch.testing.assert_close(everything.sum(-1), torch.full((1, len(FIELDS), len(MIXES)), float(T)))
    without_last = summed[..., 0, 0, :]
    torch.testing.assert_close(without_last.sum(-1), torch.full((1, len(FIELDS), len(MIXES)), T - 1.0))
    assert not without_last[..., -1].any()


def test_tokens_that_attend_only_to_themselves_keep_all_influence() -> None:
    eye, shares = torch.eye(5).repeat(4, 1, 1), torch.rand(4, len(MIXES), 5)
    layers = layers_of(eye, shares)
    summed, largest = rows_summed(*layers), rows_largest(*layers)
    torch.testing.assert_close(summed[:, :, :, 0, 1], torch.ones(1, len(FIELDS), len(MIXES), 5))
    torch.testing.assert_close(largest[..., 1, :], torch.ones(1, len(FIELDS), len(MIXES), 5))
    assert torch.equal(summed[0, 0, 0, 1, 1], torch.tensor([0.0, 0, 0, 0, 1]))


def test_without_attention_only_the_residual_remains() -> None:
    layers = layers_of(random_attention(3, 6), torch.zeros(3, len(MIXES), 6))
    assert torch.equal(rows_largest(*layers)[..., 1, :], torch.ones(1, len(FIELDS), len(MIXES), 6))


def test_a_single_token_keeps_the_product_of_its_own_shares() -> None:
    model = tiny_model()
    answer = Answer((8, 9, 10, 11, 12), (50,))
    with torch.inference_mode(), Reader(model, ["attention_blocks", "mixing"]) as reader:
        read = reader.answers([answer])
    found = both(model, [answer])[0]
    own = [float(layer["mean"][0, 1, 1]) for layer in read.attention.layers]
    kept = np.prod([0.7 + 0.3 * one for one in own])
    for name in ("last", "max", "rf_mean"):
        assert found[f"3/share_70_none_{name}_token"] == pytest.approx([kept])
    assert found["3/share_70_none_mean_token"] == pytest.approx([kept / 6])


@pytest.mark.parametrize("size", [1, 2, 5, 128])
def test_blocks_of_any_size_give_the_same_maximum(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_of(random_attention(3, 11), torch.rand(3, len(MIXES), 11))
    expected = rows_largest(*layers)
    monkeypatch.setattr("extract.signals.attention.COLUMNS_AT_ONCE", size)
    torch.testing.assert_close(rows_largest(*layers), expected)


def test_shares_of_attention_are_between_0_and_1_and_the_residual_has_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    h, o = torch.randn(2, 50, 8, generator=generator), torch.randn(2, 50, 8, generator=generator)
    shares = attention_shares(Dots.of(h, o))
    assert tuple(shares) == MIXES
    for name, share in shares.items():
        assert ((share >= 0) & (share <= 1)).all(), name
    nothing = attention_shares(Dots(torch.ones(1), torch.zeros(1), torch.zeros(1)))
    assert [float(nothing[name]) for name in MIXES] == pytest.approx([0.5, 0.3, 0.1, 0, 0, 0])
    alike = attention_shares(Dots(torch.ones(1), torch.ones(1), torch.ones(1)))
    assert [float(alike[name]) for name in MIXES[3:]] == pytest.approx([0.5, 0.5, 0.5])
    against = attention_shares(Dots(torch.full((1,), 4.0), torch.ones(1), torch.full((1,), -2.0)))  # o = −h / 2
    assert [float(against[name]) for name in MIXES[3:]] == pytest.approx([1 / 3, 0, 0])


# Dependence on the inputs


def test_the_last_token_has_no_influence_before_it_was_drawn() -> None:
    model = tiny_model()
    base, other = (both(model, [Answer((5, 6, 7), (40, 41, last))])[0] for last in (42, 99))
    for key in base:
        assert np.allclose(base[key], other[key], rtol=1e-5) == key.endswith("emit"), key


def test_the_output_of_the_last_layer_affects_only_the_mixes_that_use_it() -> None:
    model = tiny_model()
    base = both(model, ANSWERS[:1])[0]
    model.model.layers[2].self_attn.o_proj.weight[:, :8] *= 3  # the first head
    moved = both(model, ANSWERS[:1])[0]
    for key in base:
        assert np.array_equal(base[key], moved[key]) == key.startswith("3/share"), key


def test_the_attention_of_a_head_affects_all_mixes() -> None:
    model = tiny_model()
    base = both(model, ANSWERS[:1])[0]
    model.model.layers[2].self_attn.q_proj.weight[:8] *= 3
    moved = both(model, ANSWERS[:1])[0]
    for key in base:
        assert not np.allclose(base[key], moved[key], rtol=1e-6), key
