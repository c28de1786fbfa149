"""Reads signals of questions and answers. All signals are computed from the same batches of teacher-forced passes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import check_prompts
from extract.sampling.local.batching import common_prefix
from extract.signals.base import Answer, Pass
from extract.signals.reader import Reader, SharedPrompt, by_length, can_share
from extract.signals.registry import SIGNALS, load_signal
from extract.store.ragged import Ragged
from extract.store.shards import Scope


@torch.inference_mode()
def read_questions(
    model: Any,
    prompts: Sequence[Sequence[int]],
    signals: Sequence[str],
    layers: Sequence[int] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], object] = lambda n_rows, n_tokens: None,
) -> dict[str, dict[str, Tensor]]:
    """Read signals of questions at the last token of the prompt, all from the same passes.

    Args:
        model: Causal language model in evaluation mode.
        prompts: Prompt token ids of each question, at least one.
        signals: Names of the signals.
        layers: Layers whose hidden states are kept.
        batch_tokens: Maximum number of tokens, with padding, in a batch of several prompts.
        progress: Callback with the numbers of questions and tokens of each finished batch.

    Returns:
        Tensors on the CPU by signal and key, rows in the order of `prompts`: [question] for token signals,
        [question, d_model] for hidden states. A row with a non-finite value is NaN as a whole.

    Raises:
        InputError: If the model can't read a prompt, or does not support a signal.
    """
    check_prompts(model, prompts)
    lengths = [len(prompt) for prompt in prompts]

    def passes(reader: Reader) -> Iterator[tuple[list[int], Pass]]:
        for indices in by_length(lengths, batch_tokens):
            yield indices, reader.questions([prompts[i] for i in indices])
            progress(len(indices), sum(lengths[i] for i in indices))

    found = _read(model, signals, "question", layers, passes, range(len(prompts)))
    return {
        name: {key: values.values if isinstance(values, Ragged) else values for key, values in by_key.items()}
        for name, by_key in found.items()
    }


def _read(
    model: Any,
    signals: Sequence[str],
    scope: Scope,
    layers: Sequence[int],
    passes: Callable[[Reader], Iterator[tuple[list[int], Pass]]],
    order: Sequence[int | None],
) -> dict[str, dict[str, Tensor | Ragged]]:
    """Values of signals by name and key, ragged for token signals.

    `passes` yields indices of sequences and the pass over them. `order` is the sequence index of each row, or None.
    """
    functions = {name: load_signal(name, scope) for name in signals}
    found: dict[str, dict[str, dict[int, Tensor]]] = {name: defaultdict(dict) for name in signals}
    with Reader(model, {need for name in signals for need in SIGNALS[name].needs}, layers) as reader:
        for indices, batch in passes(reader):
            for name, function in functions.items():
                for key, values in function(batch).items():
                    rows = list(values.cpu())
                    if SIGNALS[name].per_token:
                        rows = [row[:n].float() for row, n in zip(rows, batch.spans.n_tokens, strict=True)]
                    for i, row in zip(indices, rows, strict=True):  # a non-finite value makes the whole row NaN
                        found[name][key][i] = row if bool(row.isfinite().all()) else torch.full_like(row, torch.nan)

    whole: dict[str, dict[str, Tensor | Ragged]] = {name: {} for name in signals}
    for name, by_key in found.items():
        for key, of_sequence in by_key.items():
            missing = of_sequence[0][:0] if SIGNALS[name].per_token else torch.full_like(of_sequence[0], torch.nan)
            ordered = [missing if i is None else of_sequence[i] for i in order]
            whole[name][key] = Ragged.of(ordered) if SIGNALS[name].per_token else torch.stack(ordered)
    return whole


@torch.inference_mode()
def read_answers(
    model: Any,
    answers: Sequence[Answer],
    signals: Sequence[str],
    layers: Sequence[int] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], object] = lambda n_rows, n_tokens: None,
) -> dict[str, dict[str, Tensor | Ragged]]:
    """Read signals of answers, all from the same passes.

    Equal answers to the same prompt are read once. If keys and values can be shared, a prompt is read once for all its
    answers, and the common beginning of all prompts is read once. A non-finite value makes all values of the answer
    under the same key NaN. An answer without content has a row of NaN, or no tokens.

    Args:
        model, signals, layers, batch_tokens, progress: As in `read_questions`.
        answers: Answers with their prompts.

    Returns:
        Tensors on the CPU by signal and key, rows in the order of `answers`: ragged over tokens for token signals,
        [row, …] for others.

    Raises:
        InputError: If there are no answers, a prompt is empty, the model can't read the tokens, or it does not support
            a signal.
    """
    if not answers or not all(answer.prompt for answer in answers):
        raise InputError(
            "Expected `answers` to hold at least one answer, each with a prompt. Leave out answers without a prompt."
        )
    counts = Counter(answer for answer in answers if answer.content)
    if not counts:  # any token determines the tensors of a signal
        counts[Answer(answers[0].prompt, answers[0].prompt[-1:])] = 0
    distinct, n_empty = list(counts), len(answers) - counts.total()
    sequences = [answer.prompt + answer.content for answer in distinct]
    check_prompts(model, sequences)

    def passes(reader: Reader) -> Iterator[tuple[list[int], Pass]]:
        for shared, indices in _batches(model, distinct, batch_tokens):
            yield indices, reader.answers([distinct[i] for i in indices], shared)
            progress(sum(counts[distinct[i]] for i in indices), sum(len(sequences[i]) for i in indices))
        if n_empty:
            progress(n_empty, 0)

    index = {answer: i for i, answer in enumerate(distinct)}
    order = [index[answer] if answer.content else None for answer in answers]
    return _read(model, signals, "sample", layers, passes, order)


def _batches(
    model: Any, answers: Sequence[Answer], batch_tokens: int
) -> Iterator[tuple[SharedPrompt | None, list[int]]]:
    """Indices of answers that are read together, with the cached beginning of their prompts.

    Prompts with several answers are batched one by one, all others together. Shared tokens count toward the size of a
    batch, because every row holds their keys and values in memory.
    """

    def batches(indices: Sequence[int]) -> Iterator[list[int]]:
        lengths = [len(answers[i].prompt) + len(answers[i].content) for i in indices]
        return ([indices[j] for j in batch] for batch in by_length(lengths, batch_tokens))

    if not can_share(model):
        yield from ((None, batch) for batch in batches(range(len(answers))))
        return
    of_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, answer in enumerate(answers):
        of_prompt[answer.prompt].append(i)
    beginning = SharedPrompt(model).then(common_prefix(list(of_prompt)))
    for prompt, indices in of_prompt.items():
        if len(indices) > 1:
            shared = beginning.then(prompt[len(beginning.tokens) : -1])
            yield from ((shared, batch) for batch in batches(indices))
    single = [indices[0] for indices in of_prompt.values() if len(indices) == 1]
    yield from ((beginning, batch) for batch in batches(single))


def content_tokens(tokenizer: Any, end: Sequence[int], token_ids: Sequence[int], text: str) -> list[int]:
    """Content tokens of an answer: without its end token, and without tokens of nothing but stop text.

    The `token_ids` of a sample contain the end token, if drawn, and all of the stop text. Its `text` ends before the
    stop text. A token with the end of the text and the start of the stop text is content. `end` holds end token ids.
    """
    content = list(token_ids)
    if content and content[-1] in end:
        content.pop()
    if tokenizer.decode(content, skip_special_tokens=True) != text:
        while content and tokenizer.decode(content[:-1], skip_special_tokens=True).startswith(text):
            content.pop()
    return content


def drawn_tokens(tokenizer: Any, sample: Mapping[str, Any]) -> list[int]:
    """Token ids of a stored sample, including the end token if drawn.

    If the server returned no ids, the text is tokenized, which can differ from the drawn tokens. The result is empty
    if reasoning preceded the answer, because its tokens are unknown.
    """
    if sample["token_ids"] is not None:
        return list(sample["token_ids"])
    return [] if sample["reasoning"] else list(tokenizer(sample["text"], add_special_tokens=False)["input_ids"])
