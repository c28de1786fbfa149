"""Tests of batches whose rows join, branch and leave: their tokens, the cache, and the number of rows read."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.models.loading import load_model
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.questions import load_questions
from extract.sampling.local.attention import attend, using
from extract.sampling.local.cache import AnswerCache
from extract.sampling.local.shared_cache import SharedCache
from extract.sampling.local.token_sampler import Sample, TokenSampler
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow

PREFIX = "Examples that every prompt begins with, as a set of few-shot prompts has. "
WORDS = [
    "Say",
    "Say a longer thing",
    "What?",
    "A",
    "Something of another length altogether",
    "Why not",
    "Go",
    "Stop it",
]


def assert_same(answers: list[Sample], others: list[Sample]) -> None:
    for a, b in zip(answers, others, strict=True):
        assert (a.question_id, a.sample, a.token_ids, a.text) == (b.question_id, b.sample, b.token_ids, b.text)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("before", ["", PREFIX], ids=["alone", "after a shared prefix"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_tokens_do_not_depend_on_which_answers_share_a_batch(
    family: str, before: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_WIDTH", "_FREE_COLUMNS"):  # so that short answers form several groups, and outgrow buffers
        monkeypatch.setattr(f"extract.sampling.local.shared_cache.{name}", 4)
    model, ids = tiny_model(family, seed=2, num_hidden_layers=2), [str(i) for i in range(5)]
    prompts = [tokenizer(before + word)["input_ids"] for word in WORDS[:5]]
    decoding = Decoding(temperature=1.2, max_new_tokens=20, stop=tuple("aeiou"))
    whole = TokenSampler(model, tokenizer, decoding).sample(ids, prompts, range(3))
    assert len({len(answer.token_ids) for answer in whole}) > 3
    for max_rows in (3, 7):
        assert_same(TokenSampler(model, tokenizer, decoding, max_rows).sample(ids, prompts, range(3)), whole)


def test_tokens_of_the_embedded_model_do_not_depend_on_refilling() -> None:
    model, tokenizer = load_model(dtype="float32")
    questions = load_questions("facts")[:3]
    prompts = [PromptTemplate("{question}").encode(tokenizer, question.text or "") for question in questions]
    # without top-p, a draw can hit the many tokens with probabilities as small as the rounding errors
    decoding = Decoding(temperature=0.7, top_p=0.95, max_new_tokens=6, stop=(" chemical", " math", " capital"))
    ids = [question.id for question in questions]
    whole = TokenSampler(model, tokenizer, decoding).sample(ids, prompts, range(2))
    assert len({len(answer.token_ids) for answer in whole}) > 1  # some rows join while others have tokens
    assert_same(TokenSampler(model, tokenizer, decoding, max_rows=3).sample(ids, prompts, range(2)), whole)


def rows_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list to which each further pass of a model adds the shape of its token ids."""
    shapes, forward = list[tuple[int, int]](), model.forward

    def counting(**given: Any) -> Any:
        shapes.append(tuple(given["input_ids"].shape))
        return forward(**given)

    monkeypatch.setattr(model, "forward", counting)
    return shapes


@pytest.fixture(scope="module")
def passes(tokenizer: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Draw 64 answers, 20 at a time.

    Returns:
        The shapes of the token ids of each pass, and for each step, the numbers of passes and of unfinished answers.
    """
    model, steps = tiny_model(seed=2, num_hidden_layers=1), list[tuple[int, int]]()
    prompts = [tokenizer(word)["input_ids"] for word in WORDS * 4]
    decoding = Decoding(temperature=1.2, max_new_tokens=40, stop=tuple("aeiou"))
    with pytest.MonkeyPatch.context() as patch:
        shapes = rows_read(model, patch)
        sampler = TokenSampler(model, tokenizer, decoding, max_rows=20)
        ids = [str(i) for i in range(len(prompts))]
        sampler.sample(ids, prompts, range(2), lambda ended, drawn: steps.append((len(shapes), drawn)))
    return shapes, steps


def test_a_batch_stays_full_until_all_questions_have_been_read(passes: Any) -> None:
    shapes, steps = passes
    last = max(i for i, (_, n_tokens) in enumerate(shapes) if n_tokens > 1)
    n_answers = [drawn for n_passes, drawn in steps if n_passes <= last]
    assert len(n_answers) > 60
    assert min(n_answers) > 0.8 * 20
    assert max(n_answers) == 20


def test_prompts_for_half_a_batch_are_read_in_one_pass(passes: Any) -> None:
    n_questions = [n_rows for n_rows, n_tokens in passes[0] if n_tokens > 1]
    assert sum(n_questions) == 4 * len(WORDS)
    assert all(5 <= each <= 10 for each in n_questions[:-1])
    assert len(n_questions) > 3


def distinct_starts(answers: list[Sample]) -> int:
    """Return the number of different token sequences that precede the tokens after the first."""
    return len({(a.question_id, *a.token_ids[:n]) for a in answers for n in range(1, len(a.token_ids))})


@pytest.mark.parametrize(("temperature", "share"), [(0.0, 0.05), (0.1, 0.8), (1.0, 1.0)])
def test_tokens_that_several_answers_begin_with_are_read_once(
    temperature: float, share: float, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = tiny_model(seed=2, num_hidden_layers=1), [str(i) for i in range(len(WORDS))]
    shapes = rows_read(model, monkeypatch)
    sampler = TokenSampler(model, tokenizer, Decoding(temperature=temperature, max_new_tokens=30))
    answers = sampler.sample(ids, [tokenizer(word)["input_ids"] for word in WORDS], range(20))
    n_read = sum(n_rows for n_rows, n_tokens in shapes if n_tokens == 1)
    # rows of answers that have ended are not removed at once
    assert distinct_starts(answers) <= n_read <= 1.1 * distinct_starts(answers)
    assert distinct_starts(answers) <= share * sum(len(answer.token_ids) - 1 for answer in answers)


def test_answers_at_all_temperatures_share_rows(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, grid = tiny_model(seed=2), [0.1, 0.15]
    sampler = TokenSampler(model, tokenizer, Decoding("0.1:0.15:0.05", max_new_tokens=30))
    shapes = rows_read(model, monkeypatch)
    drawn = sampler.sample_grid(["a"], [tokenizer("Say")["input_ids"]], range(6), grid)
    n_read = sum(n_rows for n_rows, n_tokens in shapes if n_tokens == 1)
    together = distinct_starts(drawn[0.1] + drawn[0.15])
    assert together <= n_read <= 1.1 * together
    assert together < 0.9 * (distinct_starts(drawn[0.1]) + distinct_starts(drawn[0.15]))


def random_prompts(
    model: Any, lengths: list[int], n_prefix: int
) -> tuple[AnswerCache, list[list[tuple[Tensor, Tensor]]]]:
    """Return a cache of padded prompts after a prefix, and the keys and values of each prompt [layer][key head, …]."""
    mask = torch.ones(1, n_prefix, dtype=torch.int64)
    prefix = AnswerCache(model, mask)
    generator = torch.Generator().manual_seed(5)  # the same prefix each time
    for i in range(len(prefix.layers)):
        prefix.update(*(torch.randn(1, 2, n_prefix, 8, generator=generator) for _ in range(2)), i)
    longest = max(lengths)
    mask = torch.tensor([[1] * n_prefix + [0] * (longest - n) + [1] * n for n in lengths])
    read = AnswerCache(model, mask, prefix)
    rows: list[list[tuple[Tensor, Tensor]]] = [[] for _ in lengths]
    for i, layer in enumerate(read.layers):
        new = torch.randn(2, len(lengths), 2, longest, 8)
        read.update(new[0], new[1], i)
        for row, n in zip(range(len(lengths)), lengths, strict=True):
            states = (torch.cat([layer.prefix[part][0], new[part][row, :, longest - n :]], 1) for part in (0, 1))
            rows[row].append(tuple(states))  # type: ignore[arg-type]
    return read, rows


@pytest.mark.parametrize("seed", range(4))
def test_attention_equals_a_float64_computation_while_rows_join_branch_and_leave(seed: int) -> None:
    torch.manual_seed(seed)
    draws, model = random.Random(seed), tiny_model(num_hidden_layers=2)
    cache: SharedCache | None = None
    rows: list[list[tuple[Tensor, Tensor]]] = []
    for _ in range(80):
        if cache is None or (draws.random() < 0.2 and len(rows) < 30):
            read, prompts = random_prompts(model, [draws.choice([1, 4, 9, 20]) for _ in range(draws.randint(1, 3))], 5)
            questions = draws.choices(range(len(prompts)), k=draws.randint(1, 9))
            cache = cache or SharedCache(read)
            cache.join(read, questions)
            rows += [list(prompts[i]) for i in questions]
        elif draws.random() < 0.6:
            weights = draws.choice([(8, 1, 1), (1, 8, 1), (1, 8, 0), (0, 8, 1)])  # leave, stay, branch
            counts = [draws.choices(range(3), weights)[0] for _ in rows]
            counts[draws.randrange(len(rows))] += 1
            order = cache.branch(counts)
            assert [order.count(row) for row in range(len(rows))] == counts
            rows = [list(rows[row]) for row in order]
        cache.before_pass()
        for i in range(len(cache.layers)):
            query, keys, values = torch.randn(len(rows), 4, 1, 8), *torch.randn(2, len(rows), 2, 1, 8)
            cache.update(keys, values, i)
            for row, k, v in zip(rows, keys, values, strict=True):
                row[i] = (torch.cat([row[i][0], k], 1), torch.cat([row[i][1], v], 1))
            with using(cache):
                found, _ = attend(SimpleNamespace(layer_idx=i), query, keys, values, None, scaling=0.5)
            expected = []
            for row, q in zip(rows, query.double(), strict=True):
                k, v = (states.double().repeat_interleave(2, 0) for states in row[i])  # two heads share a key head
                expected.append((q @ k.mT * 0.5).softmax(-1) @ v)
            torch.testing.assert_close(found.double(), torch.stack(expected).transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_answers_of_similar_length_are_padded_together() -> None:
    model = tiny_model()
    read, _ = random_prompts(model, [3], 2)
    cache = SharedCache(read)
    for n_steps in (100, 40, 5):
        cache.join(read, [0, 0])
        for _ in range(n_steps):
            cache.before_pass()
            for i in range(len(cache.layers)):
                n = cache.groups[-1].rows.stop
                cache.update(torch.zeros(n, 2, 1, 8), torch.zeros(n, 2, 1, 8), i)
    assert [(group.rows, group.width) for group in cache.groups] == [
        (slice(0, 2), 145),
        (slice(2, 4), 45),
        (slice(4, 6), 5),
    ]
    assert all(group.bias is None for group in cache.groups)


def test_buffers_follow_the_number_of_rows() -> None:
    model = tiny_model()
    read, _ = random_prompts(model, [3, 4], 2)
    cache = SharedCache(read)
    cache.join(read, [0, 1])
    for counts, n_slots in (([20, 20], 60), ([1] * 15 + [0] * 25, 60), ([1] * 14 + [0], 21), ([0] * 13 + [1], 1)):
        cache.branch(counts)
        assert cache.groups[0].n_slots == n_slots
        assert {len(buffer) for layer in cache.layers for pair in layer.answers for buffer in pair} == {n_slots}
