"""Attention from the newest token of each answer to its context. Several answers can share parts of their context.

Attention is computed separately over the common prefix of all prompts, the rest of each prompt, and each answer. The
results are then merged exactly (Juravsky et al. 2024, "Hydragen", section 3).
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
from extract.sampling.local.shared_cache import SharedCache, SharedLayer
from extract.sampling.local.slot_cache import SlotCache

#: Name of `attend` in transformers' attention registry.
NAME = "shared_prompt"

#: Minimum number of queries for torch's fused kernel on CPUs. With fewer queries, matrix products are faster.
_FUSED_QUERIES = 32

_active: ContextVar[AnswerCache | SharedCache | SlotCache | None] = ContextVar("answer_cache", default=None)
_lock = threading.Lock()
_users: Counter[int] = Counter()  # number of samplers that use a model, by the model's id()


class Part(NamedTuple):
    """Attention output over a subset of the tokens.

    Attributes:
        values: [..., query, d_head] float32 attention output, normalised over this subset.
        log_total: [..., query, 1] float32 logarithm of the sum of exp(score).
    """

    values: Tensor
    log_total: Tensor


def attend_to(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None) -> Part:
    """Compute attention of scaled queries [..., query, d_head] to keys and values [..., token, d_head].

    In `bias` [..., query, token] float32, −inf hides a token. Each query must see at least one token.
    """
    n_queries, d_head = queries.shape[-2:]
    if queries.device.type == "cpu" and n_queries >= _FUSED_QUERIES and d_head == values.shape[-1]:
        mask = None if bias is None else bias.to(queries.dtype).expand(*bias.shape[:2], n_queries, -1)
        values, log_total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, attn_mask=mask, scale=1.0
        )
        return Part(values.float(), log_total[..., None])
    scores = (queries @ keys.mT).float()
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1)
    # the largest weight is exp(largest score) / total
    log_total = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log_()
    return Part((weights.to(values.dtype) @ values).float(), log_total)


def merge(parts: Sequence[Part]) -> Tensor:
    """Merge attention outputs over disjoint token subsets into the output over all tokens.

    Returns [..., query, d_head] float32.
    """
    values, log_total = parts[0]
    for part in parts[1:]:
        values = values.lerp(part.values, (part.log_total - log_total).sigmoid_())
        log_total = torch.logaddexp(log_total, part.log_total)
    return values


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers. Without a `SharedCache` or a `SlotCache` (see `using`), it calls SDPA.

    `query` is [row, head, token, d_head]. `key` and `value` are [row, key-value head, token, d_head]. With either
    cache, they contain only the newest token. The output is [row, token, head, d_head].
    """
    cache = _active.get()
    if not isinstance(cache, SharedCache | SlotCache):
        if cache is not None:
            cache.note_call(module.layer_idx, key, value, attention_mask, kwargs)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    layer, (n_rows, n_heads, _, d_head), n_key_heads = cache.layers[module.layer_idx], query.shape, key.shape[1]
    # [row, key-value head, queries of that head, d_head]
    queries = (query * (scaling or d_head**-0.5)).reshape(n_rows, n_key_heads, n_heads // n_key_heads, d_head)
    if isinstance(cache, SlotCache):
        keys, values = layer.buffers
        parts = [attend_to(queries, keys, values, cache.bias)]
    else:
        parts = _attend_to_shared(queries, cache, layer)
    if layer.prefix is not None:
        together = queries.transpose(0, 1).flatten(1, 2)[None]  # [1, key-value head, row · query, d_head]
        part = attend_to(together, layer.prefix[0], layer.prefix[1])
        parts.append(Part(*(one[0].unflatten(1, (n_rows, -1)).transpose(0, 1) for one in part)))
    return merge(parts).flatten(1, 2).to(query.dtype)[:, None], None


def _attend_to_shared(queries: Tensor, cache: SharedCache, layer: SharedLayer) -> list[Part]:
    """Attend to the tokens after the common prefix in a `SharedCache`.

    Returns a `Part` for the answer tokens and a `Part` for the prompt tokens.
    """
    n_key_heads, of_groups = queries.shape[1], []
    for group, (keys, values) in zip(cache.groups, layer.answers, strict=True):
        used, bias = (slice(len(group.padding)), slice(None), slice(group.width)), group.bias
        bias = None if bias is None else bias[..., : group.width].to(queries.device)
        of_groups.append(attend_to(queries[group.rows], keys[used], values[used], bias))
    parts = [of_groups[0] if len(of_groups) == 1 else Part(*map(torch.cat, zip(*of_groups, strict=True)))]
    # all rows of a question attend to its prompt together: [question, key-value head, slot · query, d_head]
    slots, places = (index[n_key_heads].to(queries.device) for index in (cache.slots, cache.places))
    # index_select copies whole rows, and is several times faster than indexing
    together = queries.flatten(0, 1).index_select(0, slots)
    together = together.view(len(layer.prompts[0]), n_key_heads, -1, queries.shape[-1])
    part = attend_to(together, layer.prompts[0], layer.prompts[1], cache.prompt_bias.to(queries.device))
    of_slots = (one.reshape(len(slots), queries.shape[2], -1) for one in part)
    return [*parts, Part(*(one.index_select(0, places).view(*queries.shape[:3], -1) for one in of_slots))]


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
def using(cache: AnswerCache | SharedCache | SlotCache) -> Iterator[None]:
    """Make `attend` use `cache` inside the with block. Forward passes in other threads still use SDPA."""
    token = _active.set(cache)
    try:
        yield
    finally:
        _active.reset(token)
