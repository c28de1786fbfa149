"""Greedy search and sampling in the caller's thread, one token at a time.

A transformers streamer would need a second thread, in which small matrix products on a CPU take about a third longer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor


def drawn_tokens(
    model: Any, arguments: dict[str, Any], during_pass: Callable[[], AbstractContextManager[Any]]
) -> Generator[int]:
    """Yield the tokens of one answer, including the end-of-sequence token.

    Transformers' `generate` returns the same tokens. `arguments` are the arguments of `generate`. `during_pass` returns
    a new context manager for each forward pass.
    """
    from transformers import StopStringCriteria

    options = dict(arguments)
    tokenizer, stop = options.pop("tokenizer", None), options.pop("stop_strings", None)
    if stop:  # transformers does not pass the tokenizer on to a custom loop
        criteria = [*(options.get("stopping_criteria") or []), StopStringCriteria(tokenizer, stop)]
        options["stopping_criteria"] = criteria
    with torch.inference_mode():
        steps = model.generate(**options, custom_generate=partial(_steps, during_pass=during_pass))
    while True:
        with torch.inference_mode():  # not during `yield`, where it would affect the caller's code
            token = next(steps, None)
        if token is None:
            return
        yield token


def _steps(
    model: Any,
    input_ids: Tensor,
    logits_processor: Callable[[Tensor, Tensor], Tensor],
    stopping_criteria: Callable[[Tensor, Any], Tensor],
    generation_config: Any,
    during_pass: Callable[[], AbstractContextManager[Any]],
    **model_kwargs: Any,
) -> Generator[int]:
    """Generate tokens. The arguments and the order of operations are the same as in transformers' own loop."""
    with during_pass():
        outputs = model._prefill(input_ids, generation_config, model_kwargs)
    while True:
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
        logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=input_ids.device)
        scores = logits_processor(input_ids, logits)
        drawn = torch.multinomial(scores.softmax(-1), 1) if generation_config.do_sample else scores.argmax(-1)[:, None]
        input_ids = torch.cat([input_ids, drawn], dim=-1)
        is_complete = stopping_criteria(input_ids, None)
        yield int(drawn)
        if is_complete.all():
            return
        length = 1 if model_kwargs["use_cache"] else None
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=length, **model_kwargs)
        with during_pass():
            outputs = model(**inputs, return_dict=True)
