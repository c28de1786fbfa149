"""Most likely next tokens after a prompt."""

from typing import Any, NamedTuple

import torch

from extract.errors import InputError
from extract.models.loading import check_prompts


class NextToken(NamedTuple):
    """A token, its text and its probability at temperature 1."""

    token: int
    text: str
    probability: float


@torch.inference_mode()
def next_tokens(model: Any, tokenizer: Any, prompt: str, top_k: int) -> list[NextToken]:
    """Return the `top_k` most likely next tokens after a plain-text prompt, most likely first.

    Raises:
        InputError: If the prompt is empty or too long, or `top_k` is not between 1 and the size of the vocabulary.
    """
    ids = tokenizer(prompt)["input_ids"]
    check_prompts(model, [ids], 1)
    logits = model(input_ids=torch.tensor([ids], device=model.device), logits_to_keep=1).logits[0, -1]
    if not 1 <= top_k <= len(logits):
        raise InputError(f"Expected `top_k` to be between 1 and {len(logits)}, but got {top_k}. Pass 10, for example.")
    best = logits.float().softmax(-1).topk(top_k)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [NextToken(token, tokenizer.decode([token]), probability) for token, probability in rows]
