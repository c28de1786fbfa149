"""Read signals of questions and answers in teacher-forced forward passes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import check_prompts
from extract.sampling.local.batching import common_prefix
from extract.signals.base import Answer, Pass
from extract.signals.reader import Reader, by_length
from extract.signals.registry import SIGNALS, load_signal
from extract.signals.shared_prompt import SharedPrompt, can_share, read_prefix
from extract.store.ragged import Ragged
from extract.store.shards import Scope


@torch.inference_mode()
def read_questions(
    model: Any,
    prompts: Sequence[Sequence[int]],
    signals: Sequence[str],
    layers: Sequence[int] | Mapping[str, Sequence[int]] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], object] = lambda n_rows, n_tokens: None,
    shared: SharedPrompt | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Read signals at the last prompt token of each question.

    All signals are read in the same forward passes. A long prefix that all prompts share is processed only once.

    Args:
        model: Causal language model in evaluation mode.
        prompts: Prompt token ids of one or more questions.
        signals: Names of the signals.
        layers: Layers whose hidden states are kept, or a dict from signal to layers.
        batch_tokens: Maximum number of tokens in a batch, including padding. A longer prompt forms its own batch.
        progress: Callback that receives the numbers of questions and tokens in each finished batch.
        shared: Cache of a common prefix of the prompts, if one has already been read.

    Returns:
        Nested dict ``{signal: {key: tensor}}`` of CPU tensors, with rows in the order of `prompts`. Token signals have
        shape [question], and hidden states have shape [question, d_model]. If any value of a row is not finite, the
        whole row is NaN.

    Raises:
        InputError: If the model can't read a prompt, or does not support a signal.
    """
    check_prompts(model, prompts)
    lengths, shared = [len(prompt) for prompt in prompts], read_prefix(model, prompts, shared)
    n_before = 0 if shared is None else len(shared.tokens)

    def passes(reader: Reader) -> Iterator[tuple[list[int], Pass]]:
        for indices in by_length(lengths, batch_tokens, n_before):
            yield indices, reader.questions([prompts[i] for i in indices], shared)
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
    layers: Sequence[int] | Mapping[str, Sequence[int]],
    passes: Callable[[Reader], Iterator[tuple[list[int], Pass]]],
    order: Sequence[int | None],
) -> dict[str, dict[str, Tensor | Ragged]]:
    """Compute signals, and return their values as ``{signal: {key: values}}``.

    For each batch, `passes` yields the sequence indices and a `Pass`. `order` contains the sequence index of each
    result row, or None if the row has no values.
    """
    functions = {name: load_signal(name, scope) for name in signals}
    found: dict[str, dict[str, dict[int, Tensor]]] = {name: defaultdict(dict) for name in signals}
    layers_of = layers if isinstance(layers, Mapping) else dict.fromkeys(signals, layers)
    with Reader(model, {need for name in signals for need in SIGNALS[name].needs}, layers_of) as reader:
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
    layers: Sequence[int] | Mapping[str, Sequence[int]] = (),
    batch_tokens: int = 2048,
    progress: Callable[[int, int], object] = lambda n_rows, n_tokens: None,
    shared: SharedPrompt | None = None,
) -> dict[str, dict[str, Tensor | Ragged]]:
    """Read signals of answers.

    All signals are read in the same forward passes. Identical answers to the same prompt are processed once. If the
    model's key/value cache can be shared, each prompt is processed once for all its answers. The common prefix of all
    prompts is then also processed only once.

    Args:
        model, signals, layers, batch_tokens, progress, shared: See `read_questions`.
        answers: Answers with their prompts.

    Returns:
        As in `read_questions`, but with rows in the order of `answers`, and with ragged token signals. An answer
        without content tokens has an empty row in token signals and a row of NaN in other signals.

    Raises:
        InputError: If there are no answers, a prompt is empty, the model can't read a token, or the model does not
            support a signal.
    """
    if not answers or not all(answer.prompt for answer in answers):
        raise InputError(
            "Expected at least one answer, each with a non-empty prompt, but there are no answers or a prompt is "
            "empty. Leave out answers without a prompt."
        )
    counts = Counter(answer for answer in answers if answer.content)
    if not counts:  # all answers are empty: read one token to find out the keys and shapes of the signals
        counts[Answer(answers[0].prompt, answers[0].prompt[-1:])] = 0
    distinct, n_empty = list(counts), len(answers) - counts.total()
    sequences = [answer.prompt + answer.content for answer in distinct]
    check_prompts(model, sequences)

    def passes(reader: Reader) -> Iterator[tuple[list[int], Pass]]:
        for of_batch, indices in _batches(model, distinct, batch_tokens, shared):
            yield indices, reader.answers([distinct[i] for i in indices], of_batch)
            progress(sum(counts[distinct[i]] for i in indices), sum(len(sequences[i]) for i in indices))
        if n_empty:
            progress(n_empty, 0)

    index = {answer: i for i, answer in enumerate(distinct)}
    order = [index[answer] if answer.content else None for answer in answers]
    return _read(model, signals, "sample", layers, passes, order)


def _batches(
    model: Any, answers: Sequence[Answer], batch_tokens: int, beginning: SharedPrompt | None
) -> Iterator[tuple[SharedPrompt | None, list[int]]]:
    """Yield pairs of a cache and a batch of answer indices.

    The cache contains a prefix that all prompts in the batch share. `beginning` is a cache of a common prefix of all
    prompts, or None. This cache is reused and, where possible, extended. If a prompt has several answers, they are not
    batched with answers to other prompts. If the model's cache can't be shared, the yielded cache is None. Any answers
    can then be batched together.
    """

    def batches(indices: Sequence[int], shared: SharedPrompt | None) -> Iterator[tuple[SharedPrompt | None, list[int]]]:
        lengths = [len(answers[i].prompt) + len(answers[i].content) for i in indices]
        n_before = 0 if shared is None else len(shared.tokens)
        return ((shared, [indices[j] for j in batch]) for batch in by_length(lengths, batch_tokens, n_before))

    if not can_share(model):
        yield from batches(range(len(answers)), None)
        return
    of_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, answer in enumerate(answers):
        of_prompt[answer.prompt].append(i)
    if beginning is None:
        beginning = SharedPrompt(model).then(common_prefix(list(of_prompt)))
    for prompt, indices in of_prompt.items():
        if len(indices) > 1:
            yield from batches(indices, beginning.then(prompt[len(beginning.tokens) : -1]))
    yield from batches([indices[0] for indices in of_prompt.values() if len(indices) == 1], beginning)


def content_tokens(tokenizer: Any, end: Sequence[int], token_ids: Sequence[int], text: str) -> list[int]:
    """Return the tokens of an answer without its end-of-sequence token and its stop string.

    A token that spans the end of `text` and the start of the stop string is kept. `end` lists the ids of the end
    tokens.
    """
    content = list(token_ids)
    if content and content[-1] in end:
        content.pop()
    if tokenizer.decode(content, skip_special_tokens=True) != text:
        while content and tokenizer.decode(content[:-1], skip_special_tokens=True).startswith(text):
            content.pop()
    return content


def drawn_tokens(tokenizer: Any, sample: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a stored sample, including any end-of-sequence token.

    If the sample has no token ids, the result depends on whether it has reasoning. With reasoning, the list is empty.
    Without reasoning, the text is tokenized, which may not reproduce the sampled tokens.
    """
    if sample["token_ids"] is not None:
        return list(sample["token_ids"])
    return [] if sample["reasoning"] else list(tokenizer(sample["text"], add_special_tokens=False)["input_ids"])
