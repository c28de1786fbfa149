"""Prompt prefixes that the model processes only once for several sequences."""

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import torch

from extract.sampling.local.batching import common_prefix
from extract.signals.model_parts import decoder_of

#: Minimum number of tokens that an additional pass over a prefix must save.
LEAST_SAVED = 256


class SharedPrompt:
    """Key/value cache of a prefix that several sequences share.

    It can be used only with models for which `can_share` returns True.
    """

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self._model, self.tokens = model, tuple[int, ...]()
        self._cache: Any = DynamicCache(config=model.config)

    @torch.inference_mode()
    def then(self, tokens: Sequence[int]) -> Self:
        """Return a new cache whose prefix is extended by `tokens`."""
        longer = copy(self)
        longer._cache, longer.tokens = self.cache(1), (*self.tokens, *tokens)
        if tokens:
            ids = torch.tensor([list(tokens)], device=self._model.device)
            decoder_of(self._model)(input_ids=ids, past_key_values=longer._cache, use_cache=True)
        return longer

    def cache(self, n_rows: int, grows: bool = True) -> Any:
        """Return a cache for `n_rows` sequences that share the memory of the prefix.

        If `grows` is false, the cache can be used for only one pass.
        """
        from extract.signals.one_pass import OnePassLayer

        cache = copy(self._cache)
        cache.layers = [copy(layer) if grows else OnePassLayer() for layer in self._cache.layers]
        for layer, of_prefix in zip(cache.layers, self._cache.layers, strict=True):
            if of_prefix.is_initialized:
                layer.lazy_initialization(of_prefix.keys, of_prefix.values)
                layer.keys, layer.values = (
                    one.expand(n_rows, -1, -1, -1) for one in (of_prefix.keys, of_prefix.values)
                )
        return cache


def read_prefix(
    model: Any,
    prompts: Sequence[Sequence[int]],
    start: SharedPrompt | None = None,
    previous: SharedPrompt | None = None,
) -> SharedPrompt | None:
    """Process the common prefix of several prompts once, instead of once per prompt.

    Args:
        model: Causal language model in evaluation mode.
        prompts: Token ids of one or more prompts.
        start: Cache of a shorter common prefix. Only the rest of the prefix is processed.
        previous: Result of an earlier call, which is returned if the prefix is the same.

    Returns:
        Cache of the prefix. `start` is returned if sharing saves fewer than `LEAST_SAVED` tokens, or if the model's
        cache can't be shared.
    """
    prefix = common_prefix(prompts)
    rest = prefix[0 if start is None else len(start.tokens) :]
    if len(rest) * (len(prompts) - 1) < LEAST_SAVED or not can_share(model):
        return start
    if previous is not None and previous.tokens == tuple(prefix):
        return previous
    return (start or SharedPrompt(model)).then(rest)


def can_share(model: Any) -> bool:
    """Whether sequences can share a prefix. Sharing requires a cache without sliding windows or recurrent states."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=model.config)
    config = model.config.get_text_config().to_dict()
    windowed = any(config.get(name) for name in ("sliding_window", "attention_chunk_size"))
    windowed |= "local" in config.get("attention_layers", ())  # GPT-Neo's windows depend on the cache index
    return not windowed and bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)
