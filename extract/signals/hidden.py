"""The signal `hidden`: the residual stream at a named position, for every layer, by one pass over the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.models import check_prompts
from extract.signals.capture import HiddenCapture, decoder_of, n_layers
from extract.signals.positions import question_position


@torch.inference_mode()
def read_hidden(
    model: Any,
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int] | None = None,
    position: str = "last_prompt",
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Hidden states at one position of each prompt.

    Prompts go through the decoder in batches by length, padded on the right: a causal model never looks there, so
    no mask is needed and the head is not run.

    Args:
        model: Causal language model in evaluation mode.
        prompts: Prompt token ids of each question.
        layers: Layers to keep; None keeps all L + 1.
        position: Named position.
        batch_tokens: Most tokens, padding included, in one batch of several prompts.
        progress: Called with the questions and tokens done after each batch.

    Returns:
        [question, layer, d_model] on the CPU, in the model's dtype, rows in the order of `prompts`.

    Raises:
        InputError: A prompt that the model can't read.
    """
    check_prompts(model, prompts)
    wanted = range(n_layers(model) + 1) if layers is None else layers
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    order: list[int] = []
    parts: list[Tensor] = []
    with HiddenCapture(model, wanted) as capture:
        for batch in _batches(by_length, [len(prompt) for prompt in prompts], batch_tokens):
            longest = len(prompts[batch[-1]])
            ids = torch.tensor([[*prompts[i], *[0] * (longest - len(prompts[i]))] for i in batch], device=model.device)
            capture.positions = torch.tensor(
                [question_position(position, len(prompts[i])) for i in batch], device=model.device
            )
            decoder_of(model)(input_ids=ids, use_cache=False)
            parts.append(capture.stacked())
            order += batch
            if progress is not None:
                progress(len(batch), sum(len(prompts[i]) for i in batch))
    result = torch.empty_like(read := torch.cat(parts))
    result[torch.tensor(order)] = read
    return result


def _batches(by_length: list[int], lengths: list[int], batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for i in by_length:
        if batches and lengths[i] * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def hidden_signal(
    model: Any,
    prompts: Sequence[Sequence[int]],
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Every layer at `last_prompt`: tensors [question, d_model] by key ``layer/last_prompt``."""
    states = read_hidden(model, prompts, batch_tokens=batch_tokens, progress=progress)
    return {f"{layer}/last_prompt": states[:, layer] for layer in range(states.shape[1])}
