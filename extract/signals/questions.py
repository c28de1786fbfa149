"""Reading questions: passes over prompts, from which every signal of the questions is taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.models.loading import check_prompts
from extract.signals import SIGNALS, load_signal
from extract.signals.base import Reader
from extract.signals.batches import by_length


@torch.inference_mode()
def read_questions(
    model: Any,
    prompts: Sequence[Sequence[int]],
    signals: Sequence[str],
    layers: Sequence[int] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Signals of questions, all taken from the same passes, at the last token of the prompt.

    Args:
        model: Causal language model in evaluation mode.
        prompts: Prompt token ids of each question, at least one.
        signals: Names of the signals.
        layers: Layers whose hidden states are kept.
        batch_tokens: Most tokens, padding included, in one batch of several prompts.
        progress: Called with the questions and tokens done after each batch.

    Returns:
        For each signal, by key and on the CPU: [question] for the signals of tokens, [question, d_model] for hidden
        states, rows in the order of `prompts`.

    Raises:
        InputError: A prompt that the model can't read, or a model that a signal can't be read from.
    """
    check_prompts(model, prompts)
    functions = {name: load_signal(name, "question") for name in signals}
    needs = {need for name in signals for need in SIGNALS[name].needs}
    found: dict[str, dict[str, list[Tensor]]] = {name: defaultdict(list) for name in signals}
    order: list[int] = []
    with Reader(model, needs, layers) as reader:
        for batch in by_length([len(prompt) for prompt in prompts], batch_tokens):
            read = reader.questions([prompts[i] for i in batch])
            for name, function in functions.items():
                for key, tensor in function(read).items():
                    found[name][key].append(tensor[:, 0].float().cpu() if SIGNALS[name].per_token else tensor.cpu())
            order += batch
            if progress is not None:
                progress(len(batch), sum(len(prompts[i]) for i in batch))
    place = torch.tensor(order).argsort()
    return {
        name: {key: _whole(torch.cat(parts)[place]) for key, parts in by_key.items()} for name, by_key in found.items()
    }


def _whole(values: Tensor) -> Tensor:
    """Values [question, …], NaN as a whole where one of a question's is not finite."""
    values[~values.flatten(1).isfinite().all(1) if values.dim() > 1 else ~values.isfinite()] = torch.nan
    return values
