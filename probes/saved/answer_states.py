"""Collect the hidden states of answers during generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from extract.store.ragged import Ragged


class AnswerStates:
    """Token ids that the model reads after the prompt, and their hidden states.

    The lists `tokens` and `states` have one tensor per step. The tensors in `tokens` are [row, token] int64, and those
    in `states` are [row, token, d_model].
    """

    def __init__(self, model: Any) -> None:
        self._model, self.tokens, self.states = model, list[Tensor](), list[Tensor]()

    def of(self, drawn: Tensor, mask: Tensor, cache: Any, lengths: Sequence[int]) -> Ragged | None:
        """Return the states of the answers' content tokens, [row, token, d_model] on the CPU.

        `drawn` [row, token] int64 contains the generated tokens. `mask` is the prompts' attention mask. `cache` is the
        key/value cache after generation. `lengths` contains the number of content tokens of each answer.

        The last token of each row of `drawn` was not read during generation. If its state is needed, the model reads
        that token now. The result is None if the recorded tokens do not match `drawn`, for example after beam search.
        It is also None if the last state is needed, but `cache` is None or does not end directly before the last token.
        """
        read = torch.cat(self.tokens, 1)
        n = read.shape[1]
        if not torch.equal(read, drawn[:, :n]):
            return None
        if max(lengths) > n:
            if n != drawn.shape[1] - 1 or cache is None or cache.get_seq_length() != mask.shape[1] + n:
                return None
            self._read_last(drawn, mask, cache)
        states = torch.cat(self.states, 1).cpu()
        return Ragged.of([row[:length] for row, length in zip(states, lengths, strict=True)])

    def _read_last(self, drawn: Tensor, mask: Tensor, cache: Any) -> None:
        from extract.signals.model_parts import decoder_of

        every = torch.cat([mask, mask.new_ones(drawn.shape)], 1)
        place = every.sum(1, keepdim=True) - 1
        decoder_of(self._model)(
            input_ids=drawn[:, -1:], attention_mask=every, position_ids=place, past_key_values=cache, use_cache=True
        )


@contextmanager
def captured_answers(model: Any, layer: int, n_prompt: int) -> Iterator[AnswerStates]:
    """During generation, collect a layer's hidden states at all tokens after the prompt."""
    from extract.signals.hidden import HiddenCapture
    from extract.signals.model_parts import decoder_of

    found, n_seen = AnswerStates(model), 0

    def before(decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal n_seen
        ids = args[0] if args else kwargs.get("input_ids")
        if ids is None:  # embeddings were passed; −1 is not a token id
            embeds = kwargs["inputs_embeds"]
            ids = torch.full(embeds.shape[:2], -1, device=embeds.device)
        first = max(0, n_prompt - n_seen)
        n_seen += ids.shape[1]
        found.tokens.append(ids[:, first:])
        capture.select = lambda hidden: hidden[:, first:]

    def after(*_: Any) -> None:
        found.states.append(capture.finish()[layer])

    with HiddenCapture(model, [layer]) as capture, ExitStack() as hooks:
        hooks.callback(decoder_of(model).register_forward_pre_hook(before, with_kwargs=True).remove)
        hooks.callback(decoder_of(model).register_forward_hook(after).remove)  # runs after the hooks of `capture`
        yield found
