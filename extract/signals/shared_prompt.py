"""Keys and values of what several token sequences begin with, so that it is read once and not for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from extract.signals.capture import decoder_of


def shares(model: Any) -> bool:
    """Whether what a model remembers of a prompt is all of its keys and values, in transformers' plain cache.

    Not so with windows, whose caches forget, and with recurrent or compressed states.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=model.config)
    plain = model.config.get_text_config().to_dict()
    windowed = any(plain.get(name) for name in ("sliding_window", "attention_chunk_size"))
    return not windowed and bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)


class SharedPrompt:
    """The keys and values of some first tokens. Grows into longer ones without changing.

    Args:
        model: Causal language model that `shares`.

    Attributes:
        tokens: The tokens that were read.
    """

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self._model, self.tokens = model, tuple[int, ...]()
        self._cache: Any = DynamicCache(config=model.config)

    def __len__(self) -> int:
        return len(self.tokens)

    @torch.inference_mode()
    def then(self, tokens: Sequence[int]) -> SharedPrompt:
        """These tokens followed by others."""
        longer = SharedPrompt(self._model)
        longer._cache, longer.tokens = deepcopy(self._cache), (*self.tokens, *tokens)
        if tokens:
            ids = torch.tensor([list(tokens)], device=self._model.device)
            decoder_of(self._model)(input_ids=ids, past_key_values=longer._cache, use_cache=True)
        return longer

    def cache(self, n_rows: int) -> Any:
        """A cache that holds them for `n_rows` sequences, to be filled further; None of no tokens."""
        if not self.tokens:
            return None
        copy = deepcopy(self._cache)
        copy.batch_repeat_interleave(n_rows)
        return copy
