"""Runs a forward pass over a batch with the hooks that the requested signals need, and returns a `Pass`."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from copy import copy, deepcopy
from typing import Any, Self, cast

import torch
from torch import Tensor

from extract.signals.attention_reader import AttentionReader
from extract.signals.base import Answer, Attention, Lens, Pass, TokenSpans
from extract.signals.hidden import HiddenCapture, position_ranges
from extract.signals.lens import LensReader
from extract.signals.model_parts import decoder_of

_LENS = {"logits", "lens", "exit", "divergence"}
_ATTENTION = {"attention_entropy", "attention_blocks", "attention_macs", "mixing"}


class SharedPrompt:
    """Keys and values of the common first `tokens` of several sequences, read once. Requires `can_share(model)`."""

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self._model, self.tokens = model, tuple[int, ...]()
        self._cache: Any = DynamicCache(config=model.config)

    @torch.inference_mode()
    def then(self, tokens: Sequence[int]) -> Self:
        """A cache of these tokens followed by `tokens`; this object is unchanged."""
        longer = copy(self)
        longer._cache, longer.tokens = deepcopy(self._cache), (*self.tokens, *tokens)
        if tokens:
            ids = torch.tensor([list(tokens)], device=self._model.device)
            decoder_of(self._model)(input_ids=ids, past_key_values=longer._cache, use_cache=True)
        return longer

    def cache(self, n_rows: int) -> Any:
        """Copy of the cache for `n_rows` sequences, which a pass can extend."""
        cache = deepcopy(self._cache)
        cache.batch_repeat_interleave(n_rows)
        return cache


class Reader(ExitStack):
    """Runs passes for signals. The model has the required hooks inside the context and none outside.

    Args:
        model: Causal language model in evaluation mode.
        needs: Needs of the signals, among `NEEDS`.
        layers: Layers whose hidden states are kept.

    Raises:
        InputError: If the model has no such layer, or does not support one of the needs.
    """

    def __init__(self, model: Any, needs: Collection[str], layers: Sequence[int] = ()) -> None:
        super().__init__()
        self._model, self._hidden = model, HiddenCapture(model, layers)
        lens, attention = _LENS.intersection(needs), _ATTENTION.intersection(needs)
        self._lens = LensReader(model, lens) if lens else None
        self._attention = AttentionReader(model, attention) if attention else None

    def __enter__(self) -> Self:
        for reader in (self._lens, self._attention, self._hidden):
            if reader is not None:
                self.enter_context(reader)
        return self

    def questions(self, prompts: Sequence[Sequence[int]]) -> Pass:
        """Read prompts. The only token of each row is the first one of its answer, which is not drawn yet."""
        n_prompt = [len(prompt) for prompt in prompts]
        self._hidden.start(position_ranges("question", n_prompt, [0] * len(prompts)))
        spans = TokenSpans([n - 1 for n in n_prompt], [1] * len(prompts))
        return self._pass(right_padded(prompts, self._model.device), spans, None)

    def answers(self, answers: Sequence[Answer], shared: SharedPrompt | None = None) -> Pass:
        """Read answers after their prompts.

        Args:
            answers: Answers with at least one content token each.
            shared: Common beginning of all prompts, which was read before; None reads the whole prompts.
        """
        n_before = 0 if shared is None else len(shared.tokens)
        n_prompt = [len(answer.prompt) - n_before for answer in answers]
        n_answer = [len(answer.content) for answer in answers]
        self._hidden.start(position_ranges("sample", n_prompt, n_answer))
        spans = TokenSpans([n - 1 for n in n_prompt], n_answer, n_before)
        ids = right_padded([answer.prompt[n_before:] + answer.content for answer in answers], self._model.device)
        drawn = right_padded([answer.content for answer in answers], torch.device("cpu"))
        options = {"past_key_values": shared.cache(len(answers)), "use_cache": True} if n_before and shared else {}
        return self._pass(ids, spans, drawn, **options)

    def _pass(self, ids: Tensor, spans: TokenSpans, drawn: Tensor | None, **options: Any) -> Pass:
        for reader in (self._lens, self._attention):
            if reader is not None:
                reader.start(spans)
        output = decoder_of(self._model)(**{"input_ids": ids, "use_cache": False} | options)
        return Pass(
            self._model,
            output,
            spans,
            drawn,
            self._hidden.finish(),
            Lens() if self._lens is None else self._lens.finish(output.last_hidden_state, drawn),
            cast("Attention", None if self._attention is None else self._attention.finish()),
        )


# Batches. A causal model never attends to the right, so padding there needs no mask and can have any value.


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Batches of sequence indices, shortest first: at most `batch_tokens` tokens with padding, or one sequence.

    >>> list(by_length([3, 1, 2, 9], batch_tokens=6))
    [[1, 2], [0], [3]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and lengths[i] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids [row, token] int64, padded with 0."""
    longest = max(map(len, sequences))
    return torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sequences], device=device)


def can_share(model: Any) -> bool:
    """Whether the model's cache holds all keys and values of a prompt, in transformers' plain form.

    False for sliding windows, which drop tokens, and for recurrent or compressed states.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=model.config)
    config = model.config.get_text_config().to_dict()
    windowed = any(config.get(name) for name in ("sliding_window", "attention_chunk_size"))
    return not windowed and bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)
