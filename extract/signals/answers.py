"""Reading answers: one teacher-forced pass over prompt and answer, from which every signal of the answers is taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from extract.models import check_prompts
from extract.sampling.local import common_prefix
from extract.signals.batches import by_length, right_padded
from extract.signals.capture import AnswerCapture, decoder_of
from extract.signals.shared_prompt import SharedPrompt, shares


@dataclass(frozen=True)
class Answer:
    """Tokens of an answer and of the prompt before it.

    Attributes:
        prompt: Prompt token ids.
        content: The answer's content tokens, see `content_tokens`; may be empty.
    """

    prompt: tuple[int, ...]
    content: tuple[int, ...]


@dataclass(frozen=True)
class AnswerPass:
    """A batch of answers that the model has just read.

    Attributes:
        model: The model.
        output: What its decoder returned; `last_hidden_state` [row, token, d_model] is after the final norm.
        n_prompt: Prompt tokens of each row in this pass, at least one; those before them were read for several rows.
        n_answer: Content tokens of each row, at least one. What follows them is padding.
        states: [row, position, d_model] by layer, in the order of `ANSWER_POSITIONS`, of the layers that were asked for.
    """

    model: Any
    output: Any
    n_prompt: list[int]
    n_answer: list[int]
    states: dict[int, Tensor]


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


@torch.inference_mode()
def read_answers(
    model: Any,
    answers: Sequence[Answer],
    signals: dict[str, Callable[[AnswerPass], dict[str, Tensor]]],
    layers: Sequence[int] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Signals of answers, all taken from the same passes.

    Equal answers to the same prompt are read once, a prompt once for all its answers, and what all prompts begin with
    once, where the model's cache allows it. An answer without content is not read: its rows are NaN.

    Args:
        model: Causal language model in evaluation mode.
        answers: The answers.
        signals: Functions of the answers by the signals' names.
        layers: Layers whose hidden states the functions find in `AnswerPass.states`.
        batch_tokens: Most tokens, padding included, in one batch of several answers.
        progress: Called with the answers and tokens done after each batch.

    Returns:
        For each signal, tensors [row, …] on the CPU by key, rows in the order of `answers`.

    Raises:
        InputError: Tokens that the model can't read, or more than it has positions for.
    """
    rows: dict[Answer, list[int]] = defaultdict(list)
    for row, answer in enumerate(answers):
        if answer.content:
            rows[answer].append(row)
    if not rows and answers:  # what a signal's tensors look like shows from any token
        rows[Answer(answers[0].prompt, answers[0].prompt[-1:])] = []
    distinct = list(rows)
    sequences = [answer.prompt + answer.content for answer in distinct]
    check_prompts(model, sequences)
    results: dict[str, dict[str, Tensor]] = {name: {} for name in signals}
    with ExitStack() as stack:
        capture = stack.enter_context(AnswerCapture(model, layers)) if layers else None
        for shared, batch in _batches(model, distinct, batch_tokens):
            read = _read(model, [distinct[i] for i in batch], shared, capture)
            for name, signal in signals.items():
                for key, tensor in signal(read).items():
                    if key not in results[name]:
                        shape = (len(answers), *tensor.shape[1:])
                        results[name][key] = torch.full(shape, torch.nan, dtype=tensor.dtype)
                    places = [(row, j) for j, i in enumerate(batch) for row in rows[distinct[i]]]
                    to, of = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).unbind(1)
                    results[name][key][to] = tensor.cpu()[of]
            if progress is not None:
                progress(sum(len(rows[distinct[i]]) for i in batch), sum(len(sequences[i]) for i in batch))
    n_empty = sum(not answer.content for answer in answers)
    if progress is not None and n_empty:
        progress(n_empty, 0)
    return results


def _batches(
    model: Any, answers: Sequence[Answer], batch_tokens: int
) -> Iterator[tuple[SharedPrompt | None, list[int]]]:
    """Indices of answers that are read together, with what was read for all of them before.

    Prompts with several answers come one by one, the others together. The tokens that are shared count for a batch as
    if they were read again, because their keys and values are there for every row.
    """
    lengths = [len(answer.prompt) + len(answer.content) for answer in answers]
    if not shares(model):
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


def _read(
    model: Any, answers: Sequence[Answer], shared: SharedPrompt | None, capture: AnswerCapture | None
) -> AnswerPass:
    n_shared = 0 if shared is None else len(shared)
    ids = right_padded([answer.prompt[n_shared:] + answer.content for answer in answers], model.device)
    n_prompt = [len(answer.prompt) - n_shared for answer in answers]
    n_answer = [len(answer.content) for answer in answers]
    cache = None if shared is None else shared.cache(len(answers))
    if capture is not None:
        capture.look_at(n_prompt, n_answer)
    output = decoder_of(model)(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
    return AnswerPass(model, output, n_prompt, n_answer, capture.take() if capture is not None else {})
