"""Tests of keyed uniform random numbers and inverse-CDF draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from extract.sampling.local.draws import draw, inverse_cdf, keyed_uniforms, question_key, truncate


def uniforms(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_keyed_uniforms_are_uniform_and_uncorrelated_over_every_axis() -> None:
    keys = np.array([question_key(0, f"q{i}") for i in range(40)], dtype=np.uint64)
    drawn = keyed_uniforms(np.repeat(keys, 50), np.tile(np.arange(50, dtype=np.uint64), 40), 20)
    assert drawn.shape == (2000, 20)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 0.001
    by_axis = drawn.reshape(40, 50, 20)
    for axis in range(3):
        a = np.delete(by_axis, -1, axis=axis).ravel()
        b = np.delete(by_axis, 0, axis=axis).ravel()
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(a))


def test_a_uniform_depends_only_on_its_key() -> None:
    key = np.array([question_key(0, "a"), question_key(0, "b")], dtype=np.uint64)
    both = keyed_uniforms(key, np.array([3, 4], dtype=np.uint64), 5)
    alone = keyed_uniforms(key[1:], np.array([4], dtype=np.uint64), 9)
    np.testing.assert_array_equal(both[1], alone[0, :5])
    assert question_key(0, "a") != question_key(1, "a")


@pytest.mark.parametrize("vocab", [1, 5, 128, 129, 1000])
def test_inverse_cdf_equals_a_float64_search(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits, u = torch.randn(300, vocab) * 3, uniforms(300, vocab)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(cumulative, u[:, None], right=True)[:, 0].clamp_max(vocab - 1)
    drawn = inverse_cdf(logits.exp(), u, torch.arange(len(u)))
    below = torch.where(drawn > 0, cumulative.gather(1, (drawn - 1).clamp_min(0)[:, None])[:, 0], 0.0)
    near = ((u - below).abs() < 1e-5) | ((u - cumulative.gather(1, drawn[:, None])[:, 0]).abs() < 1e-5)
    assert ((drawn == expected) | near).all()
    assert (drawn == expected).float().mean() > 0.99


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_a_token_of_probability_zero_is_never_drawn(u: float) -> None:
    weights = torch.zeros(1, 300)
    weights[0, [7, 200]] = 1.0
    assert int(inverse_cdf(weights, torch.tensor([u], dtype=torch.float64), torch.tensor([0]))) in (7, 200)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_first_tokens_follow_the_softmax(temperature: float, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(1, 400) * 2.5
    keys = np.full(5000, question_key(seed, "q"), dtype=np.uint64)
    u = torch.from_numpy(keyed_uniforms(keys, np.arange(5000, dtype=np.uint64), 1))[:, 0]
    tokens = draw(logits.expand(5000, -1), u, temperature).tokens
    expected = (logits[0].double() / temperature).softmax(-1) * 5000
    observed = torch.bincount(tokens, minlength=400).double()
    rare = expected < 5
    expected_bins = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    observed_bins = torch.cat([observed[~rare], observed[rare].sum(0, keepdim=True)])
    assert stats.chisquare(observed_bins, expected_bins * observed_bins.sum() / expected_bins.sum()).pvalue > 0.01


def test_temperature_zero_takes_the_most_likely_token() -> None:
    logits = torch.randn(20, 50)
    assert torch.equal(draw(logits, uniforms(20), 0.0).tokens, logits.argmax(-1))


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = torch.randn(20, 50)
    drawn = draw(logits, uniforms(20), 0.5, top_p=0.8, top_k=10)
    expected = logits.log_softmax(-1).gather(1, drawn.tokens[:, None])[:, 0]
    torch.testing.assert_close(drawn.logprobs, expected)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8, torch.tensor([0.0, 0.5, 1.5]).repeat(80)])
def test_several_answers_are_drawn_from_one_row(temperature: float | torch.Tensor) -> None:
    torch.manual_seed(0)
    logits, rows, u = torch.randn(90, 20_000) * 3, torch.randint(90, (240,)), uniforms(240)  # two chunks
    alone = draw(logits[rows], u, temperature, top_p=0.95, top_k=100)
    together = draw(logits, u, temperature, 0.95, 100, rows)
    assert torch.equal(together.tokens, alone.tokens)
    torch.testing.assert_close(together.logprobs, alone.logprobs)


def test_top_k_and_top_p_keep_the_right_tokens() -> None:
    probabilities = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]])
    logits = probabilities.log()
    assert truncate(logits, 1.0, 2).isfinite().sum() == 2
    assert truncate(logits, 0.5, 0).isfinite().sum() == 1
    assert truncate(logits, 0.51, 0).isfinite().sum() == 2
    assert truncate(logits, 0.999, 0).isfinite().sum() == 5
    assert torch.equal(truncate(logits, 1.0, 0), logits)


@pytest.mark.parametrize("temperature", [1e-5, 1e-38, 1e-40, 1e-300])
@pytest.mark.parametrize("top_p", [1.0, 1e-46])
def test_very_low_settings_draw_the_most_probable_token(temperature: float, top_p: float) -> None:
    torch.manual_seed(0)
    logits, u = torch.randn(50, 300) * 20, uniforms(50)
    assert torch.equal(draw(logits, u, temperature, top_p).tokens, logits.argmax(-1))
    assert torch.equal(draw(logits, u, torch.full((50,), temperature), top_p).tokens, logits.argmax(-1))
