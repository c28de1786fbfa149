"""Compute signals of a store's questions or answers."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch

from extract.errors import Damaged, InputError
from extract.models.loading import check_prompts, end_tokens
from extract.models.store_model import encode_prompts
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.signals.base import Answer
from extract.signals.model_parts import n_layers
from extract.signals.reading import content_tokens, drawn_tokens, read_answers, read_questions
from extract.signals.registry import SIGNALS, load_signal
from extract.signals.shared_prompt import SharedPrompt, read_prefix
from extract.store.files import is_finished
from extract.store.fill import fill, is_written, missing_shards
from extract.store.grid import copy_known
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange, Scope, Shard
from extract.store.store import Store

#: Maximum number of tokens in a batch. Batches shrink if memory runs out.
BATCH_TOKENS = 2048
#: Keys of counts: answers whose tokens are unknown, and answers whose texts are tokenized.
_UNKNOWN, _RETOKENIZED = "answers of unknown tokens", "tokenized texts"


def fill_signals(
    store: Store,
    names: Sequence[str],
    load: Callable[[], tuple[Any, Any]],
    worker: Worker,
    scope: Scope = "question",
    layers: Sequence[int] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> None:
    """Compute the missing signals of the worker's blocks, and write them to the store.

    Args:
        load: Function that returns the model and the tokenizer. It is called only if a signal is missing.
        layers: Layers to keep. By default, the layers already stored, or `Signal.default_layers` if none are stored.
        dtype: Dtype in which `hidden_tokens` is stored.

    Raises:
        InputError: If `names` is empty, or a signal is unknown or does not support the scope. Also if a stored signal
            differs in version or dtype, or lacks some of the `layers`. Also if the scope is `sample` but the store has
            no answers, or if `layers` is given but no signal supports it.
    """
    if not names:
        raise InputError(f"Expected `signals` to contain at least one of {', '.join(SIGNALS)}, but it is empty.")
    settings = {name: _settings(name, dtype) for name in names}
    for name in names:
        load_signal(name, scope)  # before a model is loaded
        store.signals.check_settings(name, scope, settings[name])
    layers_of = {name: _choose_layers(store, name, scope, layers) for name in names if SIGNALS[name].by_layer}
    if layers is not None and not layers_of:
        raise InputError(
            f"Expected `signals` to contain a signal whose layers can be chosen, but got "
            f"{', '.join(names)}. Leave out --layers."
        )
    shards, unit = store.shards(scope), "answers" if scope == "sample" else "questions"
    if not shards:
        raise InputError(
            f"Expected the store {str(store.path)!r} to contain answers, but it has none. "
            "Run `python -m extract sample`."
        )
    missing: dict[Shard, list[str]] = defaultdict(list)
    for name in names:
        file, check = partial(store.signals.file, name), partial(store.signals.shard_layout, name)
        for shard in missing_shards(store, shards, worker, file, check):
            missing[shard].append(name)
    if not missing:
        say(f"read: these signals are already stored for all {unit}: {', '.join(names)}")
    elif scope == "question":
        missing = copy_known(store, missing, layers_of, settings)
    if not missing:
        return
    if store.model_is_unknown:
        worker.once(partial(_load, load))  # records the model's identity, which each actor checks
    start = partial(_reading, store, load, layers_of, settings)
    counts = sum(fill("read", unit, list(missing), store.questions.n_rows, start, worker), Counter[str]())
    if n_unknown := counts.pop(_UNKNOWN, 0):
        say(f"read: {n_unknown} answers with reasoning have no values, because their token ids are unknown")
    if n_retokenized := counts.pop(_RETOKENIZED, 0):
        say(f"read: tokenized the texts of {n_retokenized} answers, because their token ids are unknown")
    for name, n_nan in (+counts).items():
        say(f"read: {n_nan} {unit} have non-finite values of {name}, which are stored as NaN")


def _load(load: Callable[[], object]) -> None:
    load()


@contextlib.contextmanager
def _reading(
    store: Store,
    load: Callable[[], tuple[Any, Any]],
    layers: dict[str, list[int] | None],
    settings: dict[str, dict[str, Any]],
) -> Iterator[Callable[[Shard, Progress], Counter[str]]]:
    """Load the model, and yield a function that writes the missing signals of a shard."""
    reader = _ShardReader(store, *load(), layers, settings)

    def read(shard: Shard, progress: Progress) -> Counter[str]:
        missing = [name for name in settings if not is_written(partial(store.signals.shard_layout, name, shard))]
        return reader.read(shard, missing, progress) if missing else Counter()

    yield read


def _settings(name: str, dtype: str) -> dict[str, Any]:
    """Return the settings that a store records for a signal. `dtype` applies only to `hidden_tokens`."""
    signal = SIGNALS[name]
    other = dtype != "float32" and signal.per_token and signal.vectors
    return signal.settings | ({"dtype": dtype} if other else {})


def _choose_layers(store: Store, signal: str, scope: Scope, layers: Sequence[int] | None) -> list[int] | None:
    """Return a signal's stored layers (must include `layers`). If none are stored, return `layers`."""
    if layers is not None and not layers:
        raise InputError(
            "Expected at least one layer in `layers`, but got none. To use the default layers, omit the option."
        )
    held: list[int] = []
    for shard in store.shards(scope):
        if not held and is_finished(store.signals.file(signal, shard)):
            with contextlib.suppress(Damaged):
                held = sorted({int(key.split("/")[0]) for key in store.signals.shard_layout(signal, shard)})
    if held and not set(layers or ()) <= set(held):
        folder = store.signals.file(signal, store.shards(scope)[0]).parent
        raise InputError(
            f"Expected `layers` to be among {held}, the stored layers of {signal!r} in {str(store.path)!r}, but got "
            f"{sorted(set(layers or ()))}. Leave out `layers` to use the stored layers, or delete {str(folder)!r} "
            "to read other layers."
        )
    return held or (None if layers is None else sorted(set(layers)))


class _ShardReader:
    """Computes and writes the signals of each shard.

    `layers` maps each signal to its layers, or to None for the default.
    """

    def __init__(
        self,
        store: Store,
        model: Any,
        tokenizer: Any,
        layers: dict[str, list[int] | None],
        settings: dict[str, dict[str, Any]],
    ) -> None:
        self._store, self._model, self._tokenizer, self._settings = store, model, tokenizer, settings
        self._layers = {
            name: SIGNALS[name].default_layers(n_layers(model)) if chosen is None else chosen
            for name, chosen in layers.items()
        }
        # for a served model, compare prompt lengths with those of the first samples
        by_name = not store.samples.provides.weights
        self._first = {part.block: part for part in reversed(store.samples.ranges())} if by_name else {}
        self._prefix: SharedPrompt | None = None  # usually the same in all blocks

    def read(self, shard: Shard, names: Sequence[str], progress: Progress) -> Counter[str]:
        """Compute signals of a shard, and write them to the store.

        Returns the counts of answers with unknown tokens (key `_UNKNOWN`), texts that were tokenized (`_RETOKENIZED`),
        and rows with non-finite values (one key per signal).
        """
        compute: Callable[..., dict[str, Any]]
        counts = Counter[str]()
        if isinstance(shard, Block):
            first = self._first.get(shard.block)
            samples = [] if first is None else self._store.samples.read(first).to_pylist()
            prompts = list(encode_prompts(self._store, self._tokenizer, shard, samples).values())
            compute, has_numbers = partial(read_questions, self._model, prompts), [True] * len(prompts)
        else:
            answers = self._answers(shard, counts)
            prompts = [list(answer.prompt) for answer in answers]
            compute, has_numbers = partial(read_answers, self._model, answers), [bool(a.content) for a in answers]
        check_prompts(self._model, prompts)
        self._prefix = read_prefix(self._model, prompts, previous=self._prefix)
        layers = {name: chosen for name, chosen in self._layers.items() if name in names}
        signals, batch_tokens = retry_with_smaller_batch(
            lambda size, counted: compute(names, layers, size, counted, self._prefix), BATCH_TOKENS, "tokens", progress
        )
        for name, tensors in signals.items():
            columns = [values.rows() if isinstance(values, Ragged) else values for values in tensors.values()]
            is_nan = [any(bool(row.isnan().any()) for row in rows) for rows in zip(*columns, strict=True)]
            counts[name] += sum(nan and numbers for nan, numbers in zip(is_nan, has_numbers, strict=True))
            dtype = self._settings[name].get("dtype")
            stored = {key: values.to(getattr(torch, dtype)) for key, values in tensors.items()} if dtype else tensors
            self._store.signals.write(name, shard, stored, batch_tokens, self._settings[name])

        return counts

    def _answers(self, part: SampleRange, counts: Counter[str]) -> list[Answer]:
        """Return the answers in a range of samples, in row order."""
        samples = self._store.samples.read(part).to_pylist()
        prompts = encode_prompts(self._store, self._tokenizer, part, samples)
        end, answers = end_tokens(self._model, self._tokenizer), []
        for sample in samples:
            drawn = drawn_tokens(self._tokenizer, sample)
            counts[_UNKNOWN] += not drawn and bool(sample["text"])
            counts[_RETOKENIZED] += bool(drawn) and sample["token_ids"] is None
            content = content_tokens(self._tokenizer, end, drawn, sample["text"])
            answers.append(Answer(tuple(prompts[sample["question_id"]]), tuple(content)))
        return answers
