"""Filling a store with signals: what the model's inside says of each question, or of each answer, where it is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from extract.errors import InputError
from extract.models.store_model import check_lengths
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Counted, Progress, say
from extract.running.worker import Worker
from extract.sampling.run import encode_questions, prompt_of
from extract.signals.registry import SIGNALS, load_signal
from extract.store.files import Damaged, is_finished
from extract.store.fill import is_damaged
from extract.store.grid import copy_known
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange, Scope, Shard
from extract.store.store import Store

#: Tokens that are read at the same time.
BATCH_TOKENS = 2048


def fill_signals(
    store: Store,
    names: Sequence[str],
    load: Callable[[], tuple[Any, Any]],
    worker: Worker,
    scope: Scope = "question",
    layers: Sequence[int] | None = None,
) -> None:
    """Read what is missing of the signals.

    Args:
        store: The store.
        names: The signals' names.
        load: Gives model and tokenizer; called only if something is missing.
        worker: Whose blocks.
        scope: Whether to read the questions or their answers.
        layers: Layers to keep; None goes on with those that there are, and begins with all.

    Raises:
        InputError: Unknown signal, the store holds other layers, or no answers to read.
    """
    if not names:
        raise InputError(f"Expected `signals` to name at least one of {', '.join(SIGNALS)}, but it is empty.")
    for name in names:
        load_signal(name, scope)
    kept = {name: _layers(store, name, scope, layers) for name in names if SIGNALS[name].by_layer}
    if layers is not None and not kept:
        raise InputError(
            f"Expected `layers` with a signal that has some, but {', '.join(names)} has none. Leave `layers` out."
        )
    if not store.shards(scope):
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold answers, but it has none. Run `python -m extract sample`."
        )
    missing: dict[Shard, list[str]] = {}
    for place in store.shards(scope):
        if worker.has(place.block):
            lacking = [name for name in names if _is_missing(store, name, place)]
            missing |= {place: lacking} if lacking else {}
    if not missing:
        say(f"read: {', '.join(names)} is there for every {'answer' if scope == 'sample' else 'question'}")
        return
    if scope == "question":
        missing = copy_known(store, missing, kept)
        if not missing:
            return
    reader = _Reader(store, *load(), kept)
    n_rows = sum(map(store.questions.n_rows, missing))
    with Progress(f"read{worker.label}", n_rows, f"{scope}s".replace("sample", "answer")) as progress:
        for place, lacking in missing.items():
            if isinstance(place, Block):
                reader.read_block(place, lacking, progress)
            else:
                reader.read_part(place, lacking, progress)
    if reader.untold:
        say(
            f"read: {len(reader.untold)} answers came after thinking whose tokens the server did not tell, and have no numbers"
        )
    for name, n_broken in reader.broken.items():
        if n_broken:
            say(
                f"read: {name} is not finite for {n_broken} {'answers' if scope == 'sample' else 'questions'}, which are kept as NaN"
            )


def _layers(store: Store, signal: str, scope: Scope, layers: Sequence[int] | None) -> list[int] | None:
    """The layers that a signal is to have: those that are there, and what is asked for has to be among them. None stands for all.

    Raises:
        InputError: They don't.
    """
    wanted, held = None if layers is None else sorted(set(layers)), _held_layers(store, signal, scope)
    if wanted == []:
        raise InputError("Expected `layers` to name at least one layer, but got none. Leave it out for all.")
    if wanted is not None and held is not None and not set(wanted) <= set(held):
        folder = store.signals.file(signal, store.shards(scope)[0]).parent
        raise InputError(
            f"Expected `layers` to be among those that {str(store.path)!r} holds of {signal!r}, {held}, but got {wanted}. Leave it out to go on with them, or delete {str(folder)!r} to read others."
        )
    return held or wanted


def _held_layers(store: Store, signal: str, scope: Scope) -> list[int] | None:
    """Layers in the first file of a signal that is as it was written; None without any."""
    for place in store.shards(scope):
        if is_finished(store.signals.file(signal, place)):
            with contextlib.suppress(Damaged):
                return sorted({int(key.split("/")[0]) for key in store.signals.shard_layout(signal, place)})
    return None


def _is_nan(tensor: Any) -> list[bool]:
    """[row] whether the row of a tensor, or of a ragged one, is missing: NaN, or NaN in all of its tokens."""
    rows = tensor.rows() if isinstance(tensor, Ragged) else tensor
    return [bool(row.isnan().any()) for row in rows]


def _is_missing(store: Store, signal: str, place: Shard) -> bool:
    file = store.signals.file(signal, place)
    return not is_finished(file) or is_damaged(store, file, lambda: store.signals.shard_layout(signal, place))


@dataclass(frozen=True)
class _Reader:
    """Reads the files of some signals.

    Attributes:
        store: The store.
        model: Its model.
        tokenizer: Its tokenizer.
        layers: Layers to keep of the signals that have some; None stands for all.
        broken: Rows that were read and are not finite, by signal.
        untold: Question and sample of the answers after thinking whose tokens a server did not tell.
    """

    store: Store
    model: Any
    tokenizer: Any
    layers: dict[str, list[int] | None]
    broken: dict[str, int] = field(default_factory=dict)
    untold: list[tuple[str, int]] = field(default_factory=list)

    def read_block(self, block: Block, names: Sequence[str], progress: Progress) -> None:
        """Read signals of the questions of a block."""
        from extract.signals.reading import read_questions

        prompts = encode_questions(self.tokenizer, prompt_of(self.store), self.store.questions.block(block))
        if self.store.served and block.block in self._first_part:
            by_id = dict(zip(self.store.questions.ids(block), prompts, strict=True))
            check_lengths(self.store, by_id, self.store.samples.read(self._first_part[block.block]).to_pylist())
        self._write(partial(read_questions, self.model, prompts), block, names, [True] * len(prompts), progress)

    def read_part(self, part: SampleRange, names: Sequence[str], progress: Progress) -> None:
        """Read signals of the answers of a part."""
        from extract.signals.reading import read_answers

        answers = self._answers(part)
        has_content = [bool(answer.content) for answer in answers]
        self._write(partial(read_answers, self.model, answers), part, names, has_content, progress)

    def _write(
        self,
        read: Callable[..., dict[str, Any]],
        place: Shard,
        names: Sequence[str],
        has_numbers: Sequence[bool],
        progress: Progress,
    ) -> None:
        """Read signals, with fewer tokens at a time where memory does not suffice, and keep them."""

        def at_once(batch_tokens: int, counted: Counted) -> dict[str, Any]:
            return read(names, self._layers_of(names), batch_tokens, counted)

        signals, batch_tokens = retry_with_smaller_batch(at_once, BATCH_TOKENS, "tokens", progress)
        for name, tensors in signals.items():
            missing = [any(rows) for rows in zip(*map(_is_nan, tensors.values()), strict=True)]
            n_broken = sum(nan and numbers for nan, numbers in zip(missing, has_numbers, strict=True))
            self.broken[name] = self.broken.get(name, 0) + n_broken
            self.store.signals.write(name, place, tensors, batch_tokens)

    def _layers_of(self, names: Sequence[str]) -> list[int]:
        from extract.signals.model_parts import n_layers

        every = list(range(n_layers(self.model) + 1))
        chosen = (self.layers[name] for name in names if name in self.layers)
        return sorted({layer for layers in chosen for layer in (every if layers is None else layers)})

    def _answers(self, part: SampleRange) -> list[Any]:
        """Prompt and content tokens of the answers of a part, in the order of its table.

        Raises:
            InputError: The questions don't become the prompts that were answered.
        """
        from extract.models.loading import end_tokens
        from extract.signals.base import Answer
        from extract.signals.reading import content_tokens, drawn_tokens

        encoded = encode_questions(self.tokenizer, prompt_of(self.store), self.store.questions.block(part))
        prompts = dict(zip(self.store.questions.ids(part), map(tuple, encoded), strict=True))
        end, rows, answers = end_tokens(self.model, self.tokenizer), self.store.samples.read(part).to_pylist(), []
        check_lengths(self.store, prompts, rows)
        for row in rows:
            drawn = drawn_tokens(self.tokenizer, row)
            if not drawn and row["text"]:
                self.untold.append((row["question_id"], row["sample"]))
            content = content_tokens(self.tokenizer, end, drawn, row["text"])
            answers.append(Answer(prompts[row["question_id"]], tuple(content)))
        return answers

    @cached_property
    def _first_part(self) -> dict[int, SampleRange]:
        return {part.block: part for part in reversed(self.store.samples.ranges())}
