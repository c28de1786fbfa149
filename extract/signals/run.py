"""Fills a store with signals of its questions or answers."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from extract.errors import Damaged, InputError
from extract.models.loading import end_tokens
from extract.models.store_model import encode_prompts
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.signals.base import Answer
from extract.signals.model_parts import n_layers
from extract.signals.reading import content_tokens, drawn_tokens, read_answers, read_questions
from extract.signals.registry import SIGNALS, load_signal
from extract.store.files import is_finished
from extract.store.fill import fill, missing_shards
from extract.store.grid import copy_known
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange, Scope, Shard
from extract.store.store import Store

#: Tokens in a batch. It shrinks if memory runs out.
BATCH_TOKENS = 2048


def fill_signals(
    store: Store,
    names: Sequence[str],
    load: Callable[[], tuple[Any, Any]],
    worker: Worker,
    scope: Scope = "question",
    layers: Sequence[int] | None = None,
) -> None:
    """Read the missing signals of questions or answers in a worker's blocks, and write them to the store.

    Args:
        load: Returns model and tokenizer. It is called only if something is missing.
        layers: Layers to keep; None keeps those in the store, or all.

    Raises:
        InputError: If `names` is empty, a signal is unknown or lacks the scope, the store has other layers, or it has
            no answers to read.
    """
    if not names:
        raise InputError(f"Expected `signals` to name at least one of {', '.join(SIGNALS)}, but it is empty.")
    for name in names:
        load_signal(name, scope)  # before a model is loaded
    layers_of = {name: _choose_layers(store, name, scope, layers) for name in names if SIGNALS[name].by_layer}
    if layers is not None and not layers_of:
        raise InputError(
            f"Expected no `layers` for {', '.join(names)}, because its layers can't be chosen. Leave `layers` out."
        )
    shards, unit = store.shards(scope), "answers" if scope == "sample" else "questions"
    if not shards:
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold answers, but it has none. Run `python -m extract sample`."
        )
    missing: dict[Shard, list[str]] = defaultdict(list)
    for name in names:
        file, check = partial(store.signals.file, name), partial(store.signals.shard_layout, name)
        for shard in missing_shards(store, shards, worker, file, check):
            missing[shard].append(name)
    if not missing:
        say(f"read: {', '.join(names)} is complete for all {unit}")
    elif scope == "question":
        missing = copy_known(store, missing, layers_of)
    if not missing:
        return
    reader = _ShardReader(store, *load(), layers_of)
    fill("read", unit, list(missing), store.questions.n_rows, lambda s, bar: reader.read(s, missing[s], bar), worker)
    if reader.n_unknown:
        say(f"read: {reader.n_unknown} answers after reasoning have no values: the server did not return their tokens")
    for name, n_nan in reader.n_nan.items():
        if n_nan:
            say(f"read: {name} is not finite for {n_nan} {unit}, which are stored as NaN")


def _choose_layers(store: Store, signal: str, scope: Scope, layers: Sequence[int] | None) -> list[int] | None:
    """Layers to keep of a signal: those in the store, which must include `layers`, else `layers`."""
    if layers is not None and not layers:
        raise InputError("Expected `layers` to name at least one layer, but got none. Leave it out for all.")
    held: list[int] = []
    for shard in store.shards(scope):
        if not held and is_finished(store.signals.file(signal, shard)):
            with contextlib.suppress(Damaged):
                held = sorted({int(key.split("/")[0]) for key in store.signals.shard_layout(signal, shard)})
    if held and not set(layers or ()) <= set(held):
        folder = store.signals.file(signal, store.shards(scope)[0]).parent
        raise InputError(
            f"Expected `layers` to be among the layers {held} of {signal!r} in {str(store.path)!r}, but got "
            f"{sorted(set(layers or ()))}. Leave it out to use them, or delete {str(folder)!r} to read other layers."
        )
    return held or (None if layers is None else sorted(set(layers)))


class _ShardReader:
    """Reads signals of shards and writes their files. `layers` are the layers to keep of each signal, None for all.

    `n_nan` counts rows with non-finite values, `n_unknown` counts answers whose tokens the server did not return.
    """

    def __init__(self, store: Store, model: Any, tokenizer: Any, layers: dict[str, list[int] | None]) -> None:
        self._store, self._model, self._tokenizer, self._layers = store, model, tokenizer, layers
        self.n_nan, self.n_unknown = Counter[str](), 0
        by_name = not store.samples.provides.weights  # the first samples of a block then give the prompt lengths
        self._first = {part.block: part for part in reversed(store.samples.ranges())} if by_name else {}

    def read(self, shard: Shard, names: Sequence[str], progress: Progress) -> None:
        """Read signals of a shard and write them. Batches shrink if memory runs out."""
        compute: Callable[..., dict[str, Any]]
        if isinstance(shard, Block):
            first = self._first.get(shard.block)
            samples = [] if first is None else self._store.samples.read(first).to_pylist()
            prompts = list(encode_prompts(self._store, self._tokenizer, shard, samples).values())
            compute, has_numbers = partial(read_questions, self._model, prompts), [True] * len(prompts)
        else:
            answers = self._answers(shard)
            compute, has_numbers = partial(read_answers, self._model, answers), [bool(a.content) for a in answers]
        every = range(n_layers(self._model) + 1)
        chosen = [self._layers[name] for name in names if name in self._layers]
        layers = sorted({layer for of_signal in chosen for layer in (every if of_signal is None else of_signal)})
        signals, batch_tokens = retry_with_smaller_batch(
            lambda size, counted: compute(names, layers, size, counted), BATCH_TOKENS, "tokens", progress
        )
        for name, tensors in signals.items():
            columns = [values.rows() if isinstance(values, Ragged) else values for values in tensors.values()]
            is_nan = [any(bool(row.isnan().any()) for row in rows) for rows in zip(*columns, strict=True)]
            self.n_nan[name] += sum(nan and numbers for nan, numbers in zip(is_nan, has_numbers, strict=True))
            self._store.signals.write(name, shard, tensors, batch_tokens)

    def _answers(self, part: SampleRange) -> list[Answer]:
        """Answers of a range of samples, in the order of its table."""
        samples = self._store.samples.read(part).to_pylist()
        prompts = encode_prompts(self._store, self._tokenizer, part, samples)
        end, answers = end_tokens(self._model, self._tokenizer), []
        for sample in samples:
            drawn = drawn_tokens(self._tokenizer, sample)
            self.n_unknown += not drawn and bool(sample["text"])
            content = content_tokens(self._tokenizer, end, drawn, sample["text"])
            answers.append(Answer(tuple(prompts[sample["question_id"]]), tuple(content)))
        return answers
