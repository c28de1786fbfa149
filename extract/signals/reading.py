"""Reads signals of questions and of answers: batches of teacher-forced passes, from which all signals are computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import check_prompts
from extract.sampling.local.batching import common_prefix
from extract.signals.base import Answer
from extract.signals.reader import Reader, SharedPrompt, by_length, can_share
from extract.signals.registry import SIGNALS, load_signal
from extract.store.ragged import Ragged


@torch.inference_mode()
def read_questions(
    model: Any,
    prompts: Sequence[Sequence[int]],
    signals: Sequence[str],
    layers: Sequence[int] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Signals of questions at the last token of the prompt, all computed from the same passes.

    Args:
        model: Causal language model in evaluation mode.
        prompts: Prompt token ids of each question, at least one.
        signals: Names of the signals.
        layers: Layers whose hidden states are kept.
        batch_tokens: Largest number of tokens, padding included, in one batch of several prompts.
        progress: Called with the questions and tokens done after each batch.

    Returns:
        For each signal, by key and on the CPU: [question] for the signals of tokens, [question, d_model] for hidden
        states, rows in the order of `prompts`. A row that is not all finite is NaN as a whole.

    Raises:
        InputError: If the model can't read a prompt, or a signal can't be read from the model.
    """
    check_prompts(model, prompts)
    functions = {name: load_signal(name, "question") for name in signals}
    found: dict[str, dict[str, list[Tensor]]] = {name: defaultdict(list) for name in signals}
    order: list[int] = []
    with Reader(model, _needs(signals), layers) as reader:
        for indices in by_length([len(prompt) for prompt in prompts], batch_tokens):
            batch = reader.questions([prompts[i] for i in indices])
            for name, function in functions.items():
                for key, values in function(batch).items():
                    found[name][key].append(values[:, 0].float().cpu() if SIGNALS[name].per_token else values.cpu())
            order += indices
            if progress is not None:
                progress(len(indices), sum(len(prompts[i]) for i in indices))
    place = torch.tensor(order).argsort()
    return {
        name: {key: _whole_rows(torch.cat(parts)[place]) for key, parts in by_key.items()}
        for name, by_key in found.items()
    }


def _needs(signals: Sequence[str]) -> set[str]:
    return {need for name in signals for need in SIGNALS[name].needs}


def _whole_rows(values: Tensor) -> Tensor:
    """Values [row, …], NaN as a whole in a row where one is not finite."""
    values[~values.isfinite().reshape(len(values), -1).all(1)] = torch.nan
    return values


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
    """Signals of answers, all computed from the same passes.

    Equal answers to the same prompt are read once, a prompt once for all its answers, and the common beginning of all
    prompts once for all, if the model's keys and values can be shared. Numbers of an answer that are not all finite are
    NaN as a whole; an answer without content has a row of NaN, or no tokens.

    Args:
        model: Causal language model in evaluation mode.
        answers: The answers with their prompts.
        signals: Names of the signals.
        layers: Layers whose hidden states are kept.
        batch_tokens: Largest number of tokens, padding included, in one batch of several answers.
        progress: Called with the answers and tokens done after each batch.
        left: Pad on the left, as generation does, and share no prompt. Changes the last bits only.

    Returns:
        For each signal, by key and on the CPU, tensors [row, …] or ragged ones of the tokens; rows in the order of
        `answers`.

    Raises:
        InputError: If there are no answers, a prompt is empty, the model can't read the tokens, or a signal can't be
            read from the model.
    """
    if not answers or not all(answer.prompt for answer in answers):
        raise InputError(
            "Expected `answers` to hold at least one, each with a prompt of at least one token, which its first token "
            "was drawn from. Leave the others out."
        )
    rows: dict[Answer, list[int]] = defaultdict(list)
    for row, answer in enumerate(answers):
        if answer.content:
            rows[answer].append(row)
    if not rows:  # any token shows which tensors a signal has
        rows[Answer(answers[0].prompt, answers[0].prompt[-1:])] = []
    distinct = list(rows)
    sequences = [answer.prompt + answer.content for answer in distinct]
    check_prompts(model, sequences)
    functions = {name: load_signal(name, "sample") for name in signals}
    found: dict[str, dict[str, dict[int, Tensor]]] = {name: defaultdict(dict) for name in signals}
    with Reader(model, _needs(signals), layers) as reader:
        for shared, indices in _batches(model, distinct, batch_tokens, not left and can_share(model)):
            batch = reader.answers([distinct[i] for i in indices], shared, left)
            for name, function in functions.items():
                for key, values in function(batch).items():
                    of_answers = list(values.float().cpu() if SIGNALS[name].per_token else values.cpu())
                    if SIGNALS[name].per_token:
                        of_answers = [row[:n] for row, n in zip(of_answers, batch.spans.n_tokens, strict=True)]
                    # part of an answer is no number of it
                    for i, row in zip(indices, of_answers, strict=True):
                        found[name][key][i] = row if bool(row.isfinite().all()) else torch.full_like(row, torch.nan)
            if progress is not None:
                progress(sum(len(rows[distinct[i]]) for i in indices), sum(len(sequences[i]) for i in indices))
    n_empty = sum(not answer.content for answer in answers)
    if progress is not None and n_empty:
        progress(n_empty, 0)
    answer_of = {row: i for i, places in enumerate(rows.values()) for row in places}
    return {
        name: {
            key: _assemble([answer_of.get(row) for row in range(len(answers))], values, SIGNALS[name].per_token)
            for key, values in by_key.items()
        }
        for name, by_key in found.items()
    }


def _assemble(answer_of: Sequence[int | None], values: Mapping[int, Tensor], per_token: bool) -> Tensor | Ragged:
    """One tensor of all rows from those of the distinct answers; `answer_of` is None for rows without content."""
    missing = values[0][:0] if per_token else torch.full_like(values[0], torch.nan)
    parts = [missing if i is None else values[i] for i in answer_of]
    return Ragged.of(parts) if per_token else torch.stack(parts)


def _batches(
    model: Any, answers: Sequence[Answer], batch_tokens: int, sharing: bool
) -> Iterator[tuple[SharedPrompt | None, list[int]]]:
    """Indices of answers that are read together, with the beginning of their prompts that was read before.

    Prompts with several answers come one by one, the others together. The tokens that are shared count for a batch as
    if they were read again, because their keys and values are in memory for every row.
    """
    lengths = [len(answer.prompt) + len(answer.content) for answer in answers]
    if not sharing:
        yield from ((None, batch) for batch in by_length(lengths, batch_tokens))
        return
    of_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, answer in enumerate(answers):
        of_prompt[answer.prompt].append(i)
    beginning = SharedPrompt(model).then(common_prefix(list(of_prompt)))
    groups = [(prompt, indices) for prompt, indices in of_prompt.items() if len(indices) > 1]
    single = [indices[0] for indices in of_prompt.values() if len(indices) == 1]
    for prompt, indices in groups:
        shared = beginning.then(prompt[len(beginning.tokens) : -1])
        for batch in by_length([lengths[i] for i in indices], batch_tokens):
            yield shared, [indices[j] for j in batch]
    for batch in by_length([lengths[i] for i in single], batch_tokens):
        yield beginning, [single[j] for j in batch]


# Tokens of an answer


def content_tokens(tokenizer: Any, end: Sequence[int], token_ids: Sequence[int], text: str) -> list[int]:
    """The content tokens of an answer: without its end token, and without tokens that hold nothing but its stop text.

    A sample's `token_ids` contain the end token where there is one, and all of the stop text; its `text` is cut before
    the stop text. A token in which the text ends and the stop text begins is content.

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


def drawn_tokens(tokenizer: Any, sample: Mapping[str, Any]) -> list[int]:
    """Token ids of a sample in a store, the end token included where there is one.

    If a server returned none, they are those of the text, which may differ from the tokens that were drawn; none if
    thinking came before the answer, whose tokens are unknown.
    """
    if sample["token_ids"] is not None:
        return list(sample["token_ids"])
    return [] if sample["reasoning"] else list(tokenizer(sample["text"], add_special_tokens=False)["input_ids"])
