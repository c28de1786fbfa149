"""Filling a store: the samples that it still lacks, a worker's own blocks, one file at a time.

A finished file is left alone, unless it is damaged: then that is said, and it is made again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Counted, Progress, say
from extract.running.worker import Worker
from extract.store.fill import missing_shards
from extract.store.parquet import check_n_rows
from extract.store.shards import SampleRange
from extract.store.store import Store

if TYPE_CHECKING:
    from extract.policy import Decoding
    from extract.sampling.local.sampler import LocalSampler, Sample


def encode_questions(tokenizer: Any, prompt: PromptTemplate, questions: Sequence[Question]) -> list[list[int]]:
    """Prompt token ids of each question."""
    return [prompt.encode(tokenizer, question.prompt) for question in questions]


def prompt_of(store: Store) -> PromptTemplate:
    """How a store's questions become prompts."""
    return PromptTemplate.of(store.identity["policy"]["decoding"]["prompt"])


def fill_samples(stores: Mapping[float, Store], k: int, sampler: LocalSampler, worker: Worker) -> None:
    """Draw what is missing for k samples of every question: a part for all temperatures that lack it, together.

    Args:
        stores: The store of each temperature, which differ in nothing else.
        k: Samples of every question.
        sampler: The sampler.
        worker: Whose blocks.
    """
    missing: dict[SampleRange, dict[float, Store]] = defaultdict(dict)
    for temperature, store in stores.items():
        for part in _missing_samples(store, k, worker):
            missing[part][temperature] = store
    if not missing:
        say(f"sample: all {k} answers to each question are there")
        return
    total = sum(store.questions.n_rows(part) for part, lacking in missing.items() for store in lacking.values())
    with Progress(f"sample{worker.label}", total, "answers") as progress:
        for part in sorted(missing):
            _sample_part(missing[part], part, sampler, progress)


def _missing_samples(store: Store, k: int, worker: Worker) -> list[SampleRange]:
    return damaged_samples(store, worker) + [part for part in store.samples.missing(k) if worker.has(part.block)]


def _sample_part(stores: Mapping[float, Store], part: SampleRange, sampler: LocalSampler, progress: Progress) -> None:
    block = next(iter(stores.values())).questions.block(part)
    prompts = encode_questions(sampler.tokenizer, sampler.decoding.prompt, block)
    ids, samples = [question.id for question in block], range(part.start, part.stop)

    def draw(max_rows: int, counted: Counted) -> dict[float, list[Sample]]:
        sampler.max_rows = max_rows
        return sampler.sample_grid(ids, prompts, samples, list(stores), counted)

    drawn, max_rows = retry_with_smaller_batch(draw, sampler.max_rows, "answers", progress)
    for temperature, answers in drawn.items():
        stores[temperature].samples.write(part, [asdict(one) for one in answers], max_rows)


def damaged_samples(store: Store, worker: Worker) -> list[SampleRange]:
    """A worker's finished ranges whose samples are damaged or incomplete; says which."""

    def check(samples: SampleRange) -> None:
        check_n_rows(store.samples.file(samples), store.path, store.questions.n_rows(samples))

    return missing_shards(store, store.samples.ranges(), worker, store.samples.file, check)


def say_if_endless(decoding: Decoding) -> None:
    """Say where nothing ends an answer: after worked examples of plain text, a model goes on with questions of its own."""
    prompt = decoding.prompt
    if prompt.shots and not prompt.chat and not decoding.stop:
        say(
            f"sample: worked examples in plain text and no stop: after its answer a model goes on with the next question, and what it makes up is graded too. Give for example --policy.stop '{json.dumps([prompt.next_question])}'"
        )
