"""The signal `hidden`: the residual stream at named positions of a prompt or of an answer, for every layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.models import check_prompts
from extract.signals.answers import AnswerPass
from extract.signals.batches import by_length, right_padded
from extract.signals.capture import HiddenCapture, decoder_of, n_layers
from extract.signals.positions import ANSWER_POSITIONS, question_position


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

    Prompts go through the decoder in batches by length; the head is not run.

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
    order: list[int] = []
    parts: list[Tensor] = []
    with HiddenCapture(model, wanted) as capture:
        for batch in by_length([len(prompt) for prompt in prompts], batch_tokens):
            ids = right_padded([prompts[i] for i in batch], model.device)
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


def hidden_signal(
    model: Any,
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int] | None = None,
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Layers at `last_prompt`: tensors [question, d_model] by key ``layer/last_prompt``; of every layer for None."""
    kept = range(n_layers(model) + 1) if layers is None else sorted(set(layers))
    states = read_hidden(model, prompts, kept, batch_tokens=batch_tokens, progress=progress)
    return {f"{layer}/last_prompt": states[:, i] for i, layer in enumerate(kept)}


def answer_signal(answers: AnswerPass) -> dict[str, Tensor]:
    """Layers at the positions of an answer: tensors [row, d_model] in the model's dtype by key ``layer/position``."""
    return {
        f"{layer}/{position}": states[:, i]
        for layer, states in answers.states.items()
        for i, position in enumerate(ANSWER_POSITIONS)
    }
