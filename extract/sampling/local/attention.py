"""Attention from the newest token of each answer to its context, parts of which several answers share.

Attention to the common prefix of all prompts, to the rest of the prompt and to the answer is computed separately and
then merged exactly (Juravsky et al. 2024, "Hydragen", section 3).
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from extract.sampling.local.cache import AnswerCache
from extract.sampling.local.shared_cache import SharedCache

#: Name of `attend` in transformers' attention registry.
NAME = "shared_prompt"

#: Minimum number of queries for torch's fused kernel on CPUs. With fewer queries, matrix products are faster.
_FUSED_QUERIES = 32

_active: ContextVar[AnswerCache | SharedCache | None] = ContextVar("answer_cache", default=None)
_lock = threading.Lock()
_users: Counter[int] = Counter()  # number of samplers that use a model, by the model's id()


class Part(NamedTuple):
    """Unnormalised attention to a part of the tokens, in float32.

    Attributes:
        values: [..., query, d_head] sum of the value vectors, weighted by exp(score − top).
        top: [..., query, 1] offset of the scores: the largest score, or the logarithm of the sum of exp(score).
        total: [..., query, 1] sum of exp(score − top).
    """

    values: Tensor
    top: Tensor
    total: Tensor


def attend_to(queries: Tensor, keys: Tensor, values: Tensor, scaling: float, bias: Tensor | None = None) -> Part:
    """Compute unnormalised attention of queries [..., query, d_head] to keys and values [..., token, d_head].

    In `bias` [..., query, token] float32, −inf hides a token. Each query must see at least one token.
    """
    if queries.device.type == "cpu" and queries.shape[-2] >= _FUSED_QUERIES:
        mask = None if bias is None else bias.to(queries.dtype).expand(*bias.shape[:2], queries.shape[-2], -1)
        values, log_total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, attn_mask=mask, scale=scaling
        )
        return Part(values.float(), log_total[..., None], torch.ones_like(log_total)[..., None])
    scores = (queries * scaling @ keys.mT).float()
    if bias is not None:
        scores += bias
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    return Part((weights.to(values.dtype) @ values).float(), top, weights.sum(-1, keepdim=True))


def merge(parts: Sequence[Part]) -> Tensor:
    """Merge parts into normalised attention to all tokens, [..., query, d_head] float32."""
    top = torch.stack([part.top for part in parts]).amax(0)
    shares = [(part.top - top).exp_() for part in parts]
    values = sum(part.values * share for part, share in zip(parts, shares, strict=True))
    return torch.as_tensor(values / sum(part.total * share for part, share in zip(parts, shares, strict=True)))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers. Without a shared cache (see `using`), it calls SDPA.

    `query` is [row, head, token, d_head]. `key` and `value` are [row, key head, token, d_head], and contain only answer
    tokens if the cache is shared. The output is [row, token, head, d_head].
    """
    cache = _active.get()
    if not isinstance(cache, SharedCache):
        if cache is not None:
            cache.note_call(module.layer_idx, key, value, kwargs)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scaling, layer, slots = scaling or query.shape[-1] ** -0.5, cache.layers[module.layer_idx], cache.slots
    n_rows, n_heads, _, d_head = query.shape
    n_queries = n_heads // key.shape[1]
    queries = query.reshape(n_rows, key.shape[1], n_queries, d_head)  # [row, key head, queries of that head, d_head]
    of_groups = []
    for group, (keys, values) in zip(cache.groups, layer.answers, strict=True):
        used, bias = (slice(len(group.padding)), slice(None), slice(group.width)), group.bias
        bias = None if bias is None else bias[..., : group.width]
        of_groups.append(attend_to(queries[group.rows], keys[used], values[used], scaling, bias))
    parts = [Part(*map(torch.cat, zip(*of_groups, strict=True)))]
    # all rows of a question attend to its prompt together: [question, key head, slot · query, d_head]
    together = queries[slots.flatten()].unflatten(0, slots.shape).transpose(1, 2).flatten(2, 3)
    part = attend_to(together, layer.prompts[0], layer.prompts[1], scaling, cache.prompt_bias)
    parts.append(Part(*(t.unflatten(2, (-1, n_queries)).transpose(1, 2).flatten(0, 1)[cache.places] for t in part)))
    if layer.prefix is not None:
        together = queries.transpose(0, 1).flatten(1, 2)[None]  # [1, key head, row · query, d_head]
        part = attend_to(together, layer.prefix[0], layer.prefix[1], scaling)
        parts.append(Part(*(t[0].unflatten(1, (n_rows, -1)).transpose(0, 1) for t in part)))
    return merge(parts).flatten(1, 2).to(query.dtype)[:, None], None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def shared_attention(model: Any) -> Iterator[None]:
    """If the model uses SDPA, replace SDPA with `attend` inside the with block."""
    with _lock:
        shared = _users[id(model)] > 0 or model.config._attn_implementation == "sdpa"
        _users[id(model)] += shared
        if shared and _users[id(model)] == 1:
            model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        with _lock:
            _users[id(model)] -= shared
            if shared and not _users[id(model)]:
                model.set_attn_implementation("sdpa")


@contextmanager
def using(cache: AnswerCache | SharedCache) -> Iterator[None]:
    """Make `attend` use `cache` inside the with block. Passes in other threads still use SDPA."""
    token = _active.set(cache)
    try:
        yield
    finally:
        _active.reset(token)
