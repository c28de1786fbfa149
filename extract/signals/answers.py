"""Reading answers: teacher-forced passes over prompt and answer, from which every signal of the answers is taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import check_prompts
from extract.sampling.local.batching import common_prefix
from extract.signals import SIGNALS, load_signal
from extract.signals.base import Answer, Reader
from extract.signals.batches import by_length
from extract.signals.shared_prompt import SharedPrompt, shares
from extract.store.ragged import Ragged


def content_tokens(tokenizer: Any, end: Sequence[int], token_ids: Sequence[int], text: str) -> list[int]:
    """The tokens that say an answer: without its end token, and without those that hold nothing but its stop text.

    A sample's `token_ids` hold the end token where there is one, and all of the stop text; its `text` is cut before the
    stop text. A token in which the text ends and the stop text begins is content.

    Args:
        tokenizer: The model's tokenizer.
        end: Ids that end an answer.
        token_ids: Tokens of the sample.
        text: Text of the sample.
    """
    content = list(token_ids)
    if content and content[-1] in end:
        content.pop()
    if tokenizer.decode(content, skip_special_tokens=True) != text:
        while content and tokenizer.decode(content[:-1], skip_special_tokens=True).startswith(text):
            content.pop()
    return content


def drawn_tokens(tokenizer: Any, row: Mapping[str, Any]) -> list[int]:
    """Token ids of a row of a store's samples, the end token included where there is one.

    Where a server told none, they are those that the tokenizer makes of the text, which may be others than were drawn. Of
    an answer that thinking came before, whose tokens nobody knows, there are none.
    """
    if row["token_ids"] is not None:
        return list(row["token_ids"])
    return [] if row["reasoning"] else list(tokenizer(row["text"], add_special_tokens=False)["input_ids"])


@torch.inference_mode()
def read_answers(
    model: Any,
    answers: Sequence[Answer],
    signals: Sequence[str],
    layers: Sequence[int] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
    left: bool = False,
) -> dict[str, dict[str, Tensor | Ragged]]:
    """Signals of answers, all taken from the same passes.

    Equal answers to the same prompt are read once, a prompt once for all its answers, and what all prompts begin with
    once for all, where the model lets its keys and values be shared. Numbers of an answer that are not all finite are
    NaN as a whole; an answer without content has a row of NaN, or no tokens.

    Args:
        model: Causal language model in evaluation mode.
        answers: The answers with their prompts.
        signals: Names of the signals.
        layers: Layers whose hidden states are kept.
        batch_tokens: Most tokens, padding included, in one batch of several answers.
        progress: Called with the answers and tokens done after each batch.
        left: Pad on the left, as generation does, and share no prompt. Changes the last bits only.

    Returns:
        For each signal, by key and on the CPU, tensors [row, …] or ragged ones of the tokens; rows in the order of `answers`.

    Raises:
        InputError: No answers, an empty prompt, tokens that the model can't read, more than it has positions for, or a model that a signal can't be read from.
    """
    if not answers or not all(answer.prompt for answer in answers):
        raise InputError(
            "Expected `answers` to hold at least one, each with a prompt of at least one token, which its first token was drawn from. Leave the others out."
        )
    rows: dict[Answer, list[int]] = defaultdict(list)
    for row, answer in enumerate(answers):
        if answer.content:
            rows[answer].append(row)
    if not rows:  # what a signal's tensors look like shows from any token
        rows[Answer(answers[0].prompt, answers[0].prompt[-1:])] = []
    distinct = list(rows)
    sequences = [answer.prompt + answer.content for answer in distinct]
    check_prompts(model, sequences)
    functions = {name: load_signal(name, "sample") for name in signals}
    needs = {need for name in signals for need in SIGNALS[name].needs}
    found: dict[str, dict[str, dict[int, Tensor]]] = {name: defaultdict(dict) for name in signals}
    with Reader(model, needs, layers) as reader:
        for shared, batch in _batches(model, distinct, batch_tokens, not left and shares(model)):
            read = reader.answers([distinct[i] for i in batch], shared, left)
            for name, function in functions.items():
                for key, tensor in function(read).items():
                    of_answer = _tokens_of(tensor, read.rows.n_tokens) if SIGNALS[name].per_token else tensor.cpu()
                    for i, values in zip(batch, of_answer, strict=True):
                        found[name][key][i] = _whole(values)
            if progress is not None:
                progress(sum(len(rows[distinct[i]]) for i in batch), sum(len(sequences[i]) for i in batch))
    n_empty = sum(not answer.content for answer in answers)
    if progress is not None and n_empty:
        progress(n_empty, 0)
    return {
        name: {
            key: _assembled(list(rows.values()), of_answer, len(answers), SIGNALS[name].per_token)
            for key, of_answer in by_key.items()
        }
        for name, by_key in found.items()
    }


def _tokens_of(tensor: Tensor, n_tokens: Sequence[int]) -> list[Tensor]:
    """Of [row, token], the tokens of each row."""
    return [values[:n] for values, n in zip(tensor.float().cpu(), n_tokens, strict=True)]


def _whole(values: Tensor) -> Tensor:
    """Values of an answer, NaN as a whole where one of them is not finite: part of an answer is no number of it."""
    return values if bool(values.isfinite().all()) else torch.full_like(values, torch.nan)


def _assembled(
    rows: Sequence[Sequence[int]], of_answer: dict[int, Tensor], n_rows: int, per_token: bool
) -> Tensor | Ragged:
    """One tensor of all rows from those of the distinct answers, each of which stands in some rows."""
    missing = of_answer[0][:0] if per_token else torch.full_like(of_answer[0], torch.nan)
    parts = [missing] * n_rows
    for i, places in enumerate(rows):
        for row in places:
            parts[row] = of_answer[i]
    return Ragged.of(parts) if per_token else torch.stack(parts)


def _batches(
    model: Any, answers: Sequence[Answer], batch_tokens: int, sharing: bool
) -> Iterator[tuple[SharedPrompt | None, list[int]]]:
    """Indices of answers that are read together, with what was read for all of them before.

    Prompts with several answers come one by one, the others together. The tokens that are shared count for a batch as
    if they were read again, because their keys and values are there for every row.
    """
    lengths = [len(answer.prompt) + len(answer.content) for answer in answers]
    if not sharing:
        yield from ((None, batch) for batch in by_length(lengths, batch_tokens))
        return
    of_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, answer in enumerate(answers):
        of_prompt[answer.prompt].append(i)
    beginning = SharedPrompt(model).then(common_prefix(list(of_prompt)))
    several = {prompt: places for prompt, places in of_prompt.items() if len(places) > 1}
    for prompt, places in several.items():
        shared = beginning.then(prompt[len(beginning) : -1])
        for batch in by_length([lengths[i] for i in places], batch_tokens):
            yield shared, [places[j] for j in batch]
    single = [i for prompt, places in of_prompt.items() if prompt not in several for i in places]
    for batch in by_length([lengths[i] for i in single], batch_tokens):
        yield beginning, [single[j] for j in batch]
