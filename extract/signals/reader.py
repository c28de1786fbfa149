"""Forward passes over questions or answers, with hooks that collect data for signals."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self, cast

import torch
from torch import Tensor

from extract.signals.attention_reader import AttentionReader
from extract.signals.base import Answer, Attention, Lens, Pass, TokenSpans
from extract.signals.hidden import HiddenCapture, position_ranges
from extract.signals.lens import LensReader
from extract.signals.model_parts import decoder_of
from extract.signals.shared_prompt import SharedPrompt

_LENS = {"logits", "lens", "exit", "divergence"}
_ATTENTION = {"attention_entropy", "attention_blocks", "attention_macs", "mixing"}
#: Number of cached tokens that need as much memory as one token that is not cached.
_CACHED_PER_TOKEN = 4


class Reader(ExitStack):
    """Context manager that runs forward passes for signals.

    Args:
        model: Causal language model in evaluation mode.
        needs: Data that the signals need, as keys of `NEEDS`.
        layers: Layers to keep for each of the `hidden` and `hidden_tokens` signals.

    Raises:
        InputError: If a layer does not exist, or if the model cannot provide some of the data in `needs`.
    """

    def __init__(self, model: Any, needs: Collection[str], layers: Mapping[str, Sequence[int]] | None = None) -> None:
        super().__init__()
        self._model = model
        self._hidden, self._tokens = (
            HiddenCapture(model, (layers or {}).get(need, ())) for need in ("hidden", "hidden_tokens")
        )
        lens, attention = _LENS.intersection(needs), _ATTENTION.intersection(needs)
        self._lens = LensReader(model, lens) if lens else None
        self._attention = AttentionReader(model, attention) if attention else None

    def __enter__(self) -> Self:
        for reader in (self._lens, self._attention, self._hidden, self._tokens):
            if reader is not None:
                self.enter_context(reader)
        return self

    def questions(self, prompts: Sequence[Sequence[int]], shared: SharedPrompt | None = None) -> Pass:
        """Run a forward pass over prompts. `shared` is a cache of their common prefix."""
        n_before = 0 if shared is None else len(shared.tokens)
        n_prompt = [len(prompt) - n_before for prompt in prompts]
        self._hidden.start(position_ranges("question", n_prompt, [0] * len(prompts)))
        spans = TokenSpans([n - 1 for n in n_prompt], [1] * len(prompts), n_before)
        return self._pass([prompt[n_before:] for prompt in prompts], spans, None, shared)

    def answers(self, answers: Sequence[Answer], shared: SharedPrompt | None = None) -> Pass:
        """Run a forward pass over prompts, each followed by a non-empty answer. For `shared`, see `questions`."""
        n_before = 0 if shared is None else len(shared.tokens)
        n_prompt = [len(answer.prompt) - n_before for answer in answers]
        n_answer = [len(answer.content) for answer in answers]
        self._hidden.start(position_ranges("sample", n_prompt, n_answer))
        self._tokens.start_tokens([range(n, n + content) for n, content in zip(n_prompt, n_answer, strict=True)])
        spans = TokenSpans([n - 1 for n in n_prompt], n_answer, n_before)
        drawn = right_padded([answer.content for answer in answers], torch.device("cpu"))
        return self._pass([answer.prompt[n_before:] + answer.content for answer in answers], spans, drawn, shared)

    def _pass(
        self, sequences: Sequence[Sequence[int]], spans: TokenSpans, drawn: Tensor | None, shared: SharedPrompt | None
    ) -> Pass:
        ids = right_padded(sequences, self._model.device)
        for reader in (self._lens, self._attention):
            if reader is not None:
                reader.start(spans)
        cache = shared.cache(len(ids), grows=False) if shared is not None and shared.tokens else None
        output = decoder_of(self._model)(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
        return Pass(
            self._model,
            output,
            spans,
            drawn,
            self._hidden.finish(),
            self._tokens.finish(),
            Lens() if self._lens is None else self._lens.finish(output.last_hidden_state, drawn),
            cast("Attention", None if self._attention is None else self._attention.finish()),
        )


# Batches. Causal models need no mask for padding on the right.


def by_length(lengths: Sequence[int], batch_tokens: int, n_before: int = 0) -> Iterator[list[int]]:
    """Yield batches of sequence indices, shortest sequences first.

    A batch has at most `batch_tokens` tokens, including padding. A sequence longer than that forms its own batch. Each
    sequence begins with `n_before` cached tokens. Four cached tokens count as one token, because they need as much
    memory as one uncached token.

    >>> list(by_length([3, 1, 2, 9], batch_tokens=6))
    [[1, 2], [0], [3]]
    """
    batch: list[int] = []
    n_saved = n_before - n_before // _CACHED_PER_TOKEN
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (lengths[i] - n_saved) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return token ids [row, token] int64, padded with 0 on the right."""
    longest = max(map(len, sequences))
    return torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sequences], device=device)
