"""Tests of the cache whose rows join and leave: keys, values, masks and positions after random operations."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from extract import InputError
from extract.sampling.local.row_cache import RowCache, can_merge
from tests.helpers.tiny import tiny_model

States = list[tuple[Tensor, Tensor]]  # of a row: keys and values [head, token, d_head] of each layer


def random_states(n_layers: int, n_tokens: int) -> States:
    return [(torch.randn(2, n_tokens, 8), torch.randn(2, n_tokens, 4)) for _ in range(n_layers)]


def padded(rows: list[States], layer: int, part: int) -> Tensor:
    """Stack the rows' keys or values with padding on the right that is not finite."""
    longest = max(row[layer][part].shape[1] for row in rows)
    pad = torch.nn.functional.pad
    return torch.stack([pad(s := row[layer][part], (0, 0, 0, longest - s.shape[1]), value=torch.nan) for row in rows])


@pytest.mark.parametrize("seed", range(6))
def test_rows_keep_their_tokens_while_others_join_and_leave(seed: int, model: Any) -> None:
    torch.manual_seed(seed)
    draws, cache, rows = random.Random(seed), RowCache(model), list[States]()
    n_layers = len(cache.layers)
    for _ in range(60):
        if draws.random() < 0.3 and len(rows) < 9:
            read = RowCache.for_prompts(model)
            new = [random_states(n_layers, draws.choice([1, 3, 9, 40, 150])) for _ in range(draws.randint(1, 4))]
            for i in range(n_layers):
                read.update(padded(new, i, 0), padded(new, i, 1), i)
            kept = draws.sample(range(len(new)), draws.randint(1, len(new)))
            cache.join(read, [row[0][0].shape[1] for row in new], kept)
            rows += [new[i] for i in kept]
        if draws.random() < 0.2 and rows:
            rows = [rows[i] for i in cache.drop(draws.sample(range(len(rows)), draws.randint(0, len(rows))))]
        if not rows:
            assert cache.lengths == []
            continue
        mask, positions = cache.before_pass()
        lengths = [row[0][0].shape[1] for row in rows]
        assert cache.lengths == positions[:, 0].tolist() == lengths
        assert cache.get_mask_sizes(1, 0) == (max(lengths) + 1, 0) == (mask.shape[1], 0)
        assert mask.tolist() == [[0] * (max(lengths) - n) + [1] * (n + 1) for n in lengths]
        added = [random_states(n_layers, 1) for _ in rows]
        rows = [
            [tuple(map(torch.cat, zip(old, new, strict=True), (1, 1))) for old, new in zip(row, one, strict=True)]  # type: ignore[misc]
            for row, one in zip(rows, added, strict=True)
        ]
        for i in range(n_layers):
            found = cache.update(padded(added, i, 0), padded(added, i, 1), i)
            for part, states in enumerate(found):
                assert states.shape[:3] == (len(rows), 2, max(lengths) + 1)
                for row, of_row in zip(rows, states, strict=True):
                    n = row[i][part].shape[1]
                    assert torch.equal(of_row[:, -n:], row[i][part])
                    assert not of_row[:, :-n].any()  # padding stays finite
        cache.after_pass()


def test_an_empty_cache_frees_its_memory(model: Any) -> None:
    cache, read = RowCache(model), RowCache.for_prompts(model)
    for i in range(len(cache.layers)):
        read.update(torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8), i)
    cache.join(read, [3], [0])
    assert cache.layers[0].buffers
    cache.drop([0])
    assert cache.layers[0].buffers == []
    assert cache.get_seq_length() == 0


def test_a_model_that_caches_no_keys_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="caches the keys and values"):
        RowCache(model).join(RowCache.for_prompts(model), [3], [0])


def test_caches_can_be_merged_unless_attention_is_chunked() -> None:
    assert all(can_merge(tiny_model(family)) for family in ("llama", "gemma3", "gpt2"))
    chunked = tiny_model("llama")
    chunked.config.layer_types = ["chunked_attention", "full_attention", "full_attention"]
    chunked.config.attention_chunk_size = 8
    assert not can_merge(chunked)
