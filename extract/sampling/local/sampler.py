"""Local sampler: a transformers model that prefills each prompt once for all temperatures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from extract.models.store_model import encode_questions
from extract.policy import Decoding, ModelIdentity, Policy
from extract.questions.question import Question
from extract.running.progress import Count, Progress, say
from extract.running.worker import Lazy, Worker
from extract.sampling.base import Sampler, SamplingOptions
from extract.sampling.rounds import StoreRange
from extract.store.answer_log import AnswerLog, Row, read_log, unfinished_ranges
from extract.store.files import is_whole
from extract.store.fill import fill, missing_shards
from extract.store.questions import Questions
from extract.store.shards import SampleRange
from extract.store.store import Store

if TYPE_CHECKING:
    from extract.sampling.local.token_sampler import Sample


class GridRange(NamedTuple):
    """An unfinished range of samples, and the temperatures at which samples are missing."""

    samples: SampleRange
    temperatures: tuple[float, ...]

    @property
    def block(self) -> int:
        """Index of the block that contains the range."""
        return self.samples.block


class LocalSampler(Sampler):
    """Draws answers with a model in this process or in Ray actors. See `Sampler` for the interface."""

    _model: ModelIdentity

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None:
        self.options, self.decoding, self.worker = options, decoding, worker
        self._drawer = Lazy(partial(_Drawer, options, decoding))

    def known_policy(self, decoding: Decoding, model: Mapping[str, Any]) -> Policy:
        """Return the policy of this run. Model properties that the options do not set are copied from `model`."""
        folder, options = Path(self.options.model), self.options
        known: dict[str, Any] = {"id": folder.resolve().name if folder.is_dir() else options.model}
        if options.dtype != "auto":
            known["dtype"] = options.dtype
        if options.revision is not None and len(options.revision) == 40:  # commits only, as branches move
            known["revision"] = options.revision
        return Policy(ModelIdentity(**{**model, **known}), decoding)

    def prepare(self, questions: Questions, new: Sequence[Decoding]) -> None:
        """Load the model."""
        self._model = self.worker.once(partial(_identity, self._drawer))

    def policy(self, decoding: Decoding) -> Policy:
        """Return the policy of the loaded model."""
        return Policy(self._model, decoding)

    def fill(self, stores: Mapping[float, Store], k: int) -> None:
        """For each unfinished range of samples, draw the missing samples at all temperatures together."""
        lacking: dict[SampleRange, list[float]] = defaultdict(list)
        for temperature, store in stores.items():
            damaged = missing_shards(store, store.samples.ranges(), self.worker, store.samples.file)
            for samples in unfinished_ranges(store, k, damaged, self.worker):
                lacking[samples].append(temperature)
        if not lacking:
            say(f"sample: all {k} answers to each question already exist")
            return
        n_rows = next(iter(stores.values())).questions.n_rows
        items = [GridRange(samples, tuple(lacking[samples])) for samples in sorted(lacking)]
        start = partial(_completing, self._drawer, dict(stores))
        fill("sample", "answers", items, lambda it: n_rows(it.samples) * len(it.temperatures), start, self.worker)

    def draw(
        self, ranges: Mapping[float, StoreRange], question_ids: Sequence[str], samples: range, progress: Progress
    ) -> dict[float, list[Row]]:
        """Draw the given samples at all temperatures together. See `Sampler.draw`."""
        store, part = next(iter(ranges.values()))
        rows = self._drawer().draw(
            store.questions.block(part), question_ids, samples, list(ranges), progress, keep=True
        )
        for temperature, (store, part) in ranges.items():
            with closing(AnswerLog(store, part)) as log:
                log.append(rows[temperature])
        return rows


@contextmanager
def _completing(
    drawer: Lazy[_Drawer], stores: Mapping[float, Store]
) -> Iterator[Callable[[GridRange, Progress], None]]:
    """Yield a function that writes the missing files of a range."""

    def complete(item: GridRange, progress: Progress) -> None:
        missing = {temperature: stores[temperature] for temperature in item.temperatures}
        if not all(is_whole(store.samples.file(item.samples), store.path) for store in missing.values()):
            drawer().complete(missing, item.samples, progress)

    yield complete


def _identity(drawer: Lazy[_Drawer]) -> ModelIdentity:
    return drawer().identity


class _Drawer:
    """Loaded model that samples answers to one block of questions at a time."""

    def __init__(self, options: SamplingOptions, decoding: Decoding) -> None:
        from extract.models.loading import load_model, model_identity
        from extract.sampling.local.token_sampler import TokenSampler

        model, tokenizer = load_model(
            options.model, options.revision, options.dtype, options.device, options.device_map
        )
        self.identity, self.decoding = model_identity(model, tokenizer), decoding
        self._sampler = TokenSampler(model, tokenizer, decoding, options.max_rows)

    def complete(self, stores: Mapping[float, Store], samples: SampleRange, progress: Progress) -> None:
        """Write a range of samples at all temperatures. Answers logged by an earlier run are reused."""
        questions, rows = next(iter(stores.values())).questions.block(samples), dict[tuple[float, str, int], Row]()
        for temperature, store in stores.items():
            if store.samples.log_file(samples).is_file():
                logged = read_log(store, samples)
                rows |= {(temperature, row["question_id"], row["sample"]): row for row in logged}
        by_first: dict[int, list[str]] = defaultdict(list)
        for question in questions:
            there = (all((t, question.id, j) in rows for t in stores) for j in range(samples.start, samples.stop))
            by_first[samples.start + sum(takewhile(bool, there))].append(question.id)
        for first, group in by_first.items():
            progress(len(stores) * len(group) * (first - samples.start), 0)
            if first < samples.stop:
                left = range(first, samples.stop)
                drawn = self.draw(questions, group, left, list(stores), progress, keep=len(by_first) > 1)
                for temperature, new in drawn.items():
                    rows |= {(temperature, row["question_id"], row["sample"]): row for row in new}
        keys = [(question.id, j) for question in questions for j in range(samples.start, samples.stop)]
        for temperature, store in stores.items():
            store.samples.write(samples, [rows[temperature, *key] for key in keys], self._sampler.max_rows)
            store.samples.log_file(samples).unlink(missing_ok=True)

    def draw(
        self,
        block: Sequence[Question],
        question_ids: Collection[str],
        samples: range,
        temperatures: Sequence[float],
        progress: Progress,
        keep: bool,
    ) -> dict[float, list[Row]]:
        """Draw samples for some questions of a block.

        If `keep` is true and the block fits into one batch, later calls reuse the key/value cache of its prompts.
        """
        from extract.running.memory import retry_with_smaller_batch

        sampler, ids = self._sampler, [question.id for question in block if question.id in question_ids]
        encoded = encode_questions(sampler.tokenizer, self.decoding.prompt, block)
        prompts = [prompt for question, prompt in zip(block, encoded, strict=True) if question.id in question_ids]

        def draw(max_rows: int, counted: Count) -> dict[float, list[Sample]]:
            sampler.max_rows = max_rows
            return sampler.sample_grid(ids, prompts, samples, temperatures, counted, encoded if keep else None)

        drawn, sampler.max_rows = retry_with_smaller_batch(draw, sampler.max_rows, "answers", progress)
        return {temperature: [asdict(answer) for answer in answers] for temperature, answers in drawn.items()}
