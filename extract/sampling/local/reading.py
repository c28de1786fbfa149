"""`PromptReader`, which prefills prompts and keeps their caches for later calls."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from extract.sampling.local.attention import using
from extract.sampling.local.batching import left_padded
from extract.sampling.local.cache import AnswerCache, smallest_window
from extract.sampling.local.shared_cache import SharedCache
from extract.sampling.local.slot_cache import SlotCache


def forward(
    model: Any, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: AnswerCache | SharedCache | SlotCache
) -> Tensor:
    """Run a model on token ids [row, token], and return the logits [row, vocab] after the last token."""
    with using(cache):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    return torch.as_tensor(output.logits[:, -1])


class PromptReader:
    """Prefills prompts with a model. Call its methods inside the with block of `shared_attention`."""

    def __init__(self, model: Any, max_new_tokens: int) -> None:
        self.model, self._max_new_tokens = model, max_new_tokens
        self._prefix: tuple[tuple[int, ...], AnswerCache | None] = ((), None)
        self._block: tuple[tuple[tuple[int, ...], ...], AnswerCache, Tensor] | None = None

    def read(self, prompts: Sequence[Sequence[int]], prefix: Sequence[int]) -> tuple[AnswerCache, Tensor]:
        """Prefill prompts that begin with `prefix`. The cache of the prefix is kept for the next call.

        Returns the cache of the prompts, and the logits [question, vocab] after their last tokens.
        """
        n_further = max(map(len, prompts)) - len(prefix) + self._max_new_tokens
        if len(prefix) + n_further > smallest_window(self.model):
            prefix = ()  # a sliding window would count the padding between prefix and prompt
        start = self._read_prefix(prefix) if prefix else None
        if start is None:
            prefix = ()
        ids, mask = left_padded([prompt[len(prefix) :] for prompt in prompts], pad=0, device=self.model.device)
        mask = torch.nn.functional.pad(mask, (len(prefix), 0), value=1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, len(prefix) :]
        cache = AnswerCache(self.model, mask, start)
        logits = forward(self.model, ids, mask, positions, cache)
        cache.check_read()
        return cache, logits

    def read_block(self, block: Sequence[Sequence[int]], prefix: Sequence[int]) -> tuple[AnswerCache, Tensor]:
        """Prefill the prompts of a block (see `read`), and keep the result until the next block."""
        key = tuple(map(tuple, block))
        if self._block is None or self._block[0] != key:
            self.forget_block()  # free the memory first
            self._block = (key, *self.read(block, prefix))
        return self._block[1:]

    def forget_block(self) -> None:
        """Free the memory of the last block."""
        self._block = None

    def _read_prefix(self, prefix: Sequence[int]) -> AnswerCache | None:
        """Return a one-row cache of the prefix, or None if the model can't use one."""
        if self._prefix[0] != tuple(prefix):
            ids = torch.tensor([prefix], device=self.model.device)
            mask, positions = torch.ones_like(ids), torch.arange(len(prefix), device=ids.device)[None]
            cache = AnswerCache(self.model, mask)
            forward(self.model, ids, mask, positions, cache)
            self._prefix = tuple(prefix), cache if cache.may_be_prefix else None
        return self._prefix[1]
