"""Filling a store: the samples that it still lacks, a worker's own blocks, one file at a time.

A finished file is left alone, unless it is damaged: then that is said, and it is made again.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Counted, Progress
from extract.running.worker import Worker
from extract.store.files import Damaged, check_file
from extract.store.parquet import check_n_rows
from extract.store.shards import Part
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
    missing: dict[Part, dict[float, Store]] = defaultdict(dict)
    for temperature, store in stores.items():
        for part in _missing_samples(store, k, worker):
            missing[part][temperature] = store
    if not missing:
        say(f"sample: all {k} answers to each question are there")
        return
    total = sum(store.n_rows(part) for part, lacking in missing.items() for store in lacking.values())
    with Progress(f"sample{worker.label}", total, "answers") as progress:
        for part in sorted(missing):
            _sample_part(missing[part], part, sampler, progress)


def _missing_samples(store: Store, k: int, worker: Worker) -> list[Part]:
    return damaged_samples(store, worker) + [part for part in store.missing_parts(k) if worker.has(part.block)]


def _sample_part(stores: Mapping[float, Store], part: Part, sampler: LocalSampler, progress: Progress) -> None:
    block = next(iter(stores.values())).block(part.block)
    prompts = encode_questions(sampler.tokenizer, sampler.decoding.prompt, block)
    ids, samples = [question.id for question in block], range(part.start, part.stop)

    def draw(max_rows: int, counted: Counted) -> dict[float, list[Sample]]:
        sampler.max_rows = max_rows
        return sampler.sample_grid(ids, prompts, samples, list(stores), counted)

    drawn, max_rows = retry_with_smaller_batch(draw, sampler.max_rows, "answers", progress)
    for temperature, answers in drawn.items():
        stores[temperature].write_samples(part, [asdict(one) for one in answers], max_rows)


def damaged_samples(store: Store, worker: Worker) -> list[Part]:
    """A worker's finished parts whose samples are not as they were written, or not all there; says so."""

    def look(part: Part) -> None:
        check_n_rows(store.samples_file(part), store.path, store.n_rows(part))

    own = (part for part in store.parts() if worker.has(part.block))
    return [part for part in own if is_damaged(store, store.samples_file(part), partial(look, part))]


def is_damaged(store: Store, path: Path, look: Callable[[], object] | None = None) -> bool:
    """Whether a finished file is not as it was written; says what is wrong with it. It stays until another is there.

    Args:
        store: The store.
        path: The file.
        look: Reads the file and raises `Damaged`; None compares its checksum and looks at nothing else.
    """
    try:
        check_file(path, store.path) if look is None else look()
    except Damaged as error:
        say(f"{error.path.relative_to(store.path)}: {error.problem}; making it again")
        return True
    return False


def say_if_endless(decoding: Decoding) -> None:
    """Say where nothing ends an answer: after worked examples of plain text, a model goes on with questions of its own."""
    prompt = decoding.prompt
    if prompt.shots and not prompt.chat and not decoding.stop:
        say(
            f"sample: worked examples in plain text and no stop: after its answer a model goes on with the next question, and what it makes up is graded too. Give for example --policy.stop '{json.dumps([prompt.next_question])}'"
        )


def say(line: str) -> None:
    """Tell whoever looks on, on standard error."""
    print(line, file=sys.stderr)
