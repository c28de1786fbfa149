"""Filling a store: the samples, grades and signals that it still lacks, a worker's own blocks, one file at a time.

A finished file is left alone, unless it is damaged: then that is said, and it is made again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.files import Damaged, check_file, is_finished
from extract.grading import Grader
from extract.memory import halving
from extract.parts import Part
from extract.progress import Counted, Progress
from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.store import Store
from extract.workers import Worker

if TYPE_CHECKING:
    from extract.sampling.local import LocalSampler, Sample

#: Prompt tokens that are read at the same time.
BATCH_TOKENS = 2048


def encode_questions(tokenizer: Any, prompt: PromptTemplate, questions: Sequence[Question]) -> list[list[int]]:
    """Prompt token ids of each question."""
    return [prompt.encode(tokenizer, question.text or question.messages) for question in questions]


def fill_samples(store: Store, k: int, sampler: LocalSampler, worker: Worker) -> None:
    """Draw what is missing for k samples of every question."""
    damaged = [
        part for part in store.parts() if worker.has(part.block) and _is_damaged(store, store.samples_file(part))
    ]
    missing = damaged + [part for part in store.missing_parts(k) if worker.has(part.block)]
    if not missing:
        _say(f"sample: all {k} answers to each question are there")
        return
    total = sum((part.stop - part.start) * len(store.block(part.block)) for part in missing)
    with Progress(f"sample{worker.label}", total, "answers") as progress:
        for part in missing:
            _sample_part(store, part, sampler, progress)


def _sample_part(store: Store, part: Part, sampler: LocalSampler, progress: Progress) -> None:
    block = store.block(part.block)
    prompts = encode_questions(sampler.tokenizer, sampler.decoding.prompt, block)

    def draw(max_rows: int, counted: Counted) -> list[Sample]:
        sampler.max_rows = max_rows
        return sampler.sample([question.id for question in block], prompts, range(part.start, part.stop), counted)

    samples, max_rows = halving(draw, sampler.max_rows, "answers", progress)
    store.write_samples(part, [asdict(one) for one in samples], max_rows)


def fill_grades(store: Store, grader: str, rule: Grader, worker: Worker) -> None:
    """Grade what this grader has not graded."""
    graded = [part for part in store.graded_parts(grader) if worker.has(part.block)]
    damaged = [part for part in graded if _is_damaged(store, store.grades_file(grader, part))]
    missing = damaged + [part for part in store.ungraded_parts(grader) if worker.has(part.block)]
    counts = Counter(right for part in missing for right in _grade_part(store, part, grader, rule))
    _say(f"grade: {counts.total()} answers graded by {grader}, {counts[True]} right, {counts[None]} unknown")


def _grade_part(store: Store, part: Part, grader: str, rule: Grader) -> list[bool | None]:
    questions = {question.id: question for question in store.block(part.block)}
    rows = []
    for answer in store.samples(part).to_pylist():
        right, parsed = rule.grade(questions[answer["question_id"]], answer["text"])
        rows.append(
            {"question_id": answer["question_id"], "sample": answer["sample"], "right": right, "answer": parsed}
        )
    store.write_grades(grader, part, rows, rule.rule)
    return [row["right"] for row in rows]


def fill_signals(
    store: Store,
    functions: dict[str, Callable[..., dict[str, Any]]],
    load: Callable[[], tuple[Any, Any]],
    worker: Worker,
) -> None:
    """Read what is missing of the signals.

    Args:
        store: The store.
        functions: The signals' functions by name.
        load: Gives model and tokenizer; called only if something is missing.
        worker: Whose blocks.
    """
    blocks = [(name, block) for name in functions for block in range(store.n_blocks) if worker.has(block)]
    files = {block: store.signal_file(*block) for block in blocks}
    missing = [block for block, file in files.items() if not is_finished(file) or _is_damaged(store, file)]
    if not missing:
        _say(f"read: {', '.join(functions)} is there for every question")
        return
    model, tokenizer = load()
    prompt = PromptTemplate(**store.identity["policy"]["decoding"]["prompt"])
    with Progress(f"read{worker.label}", sum(len(store.block(block)) for _, block in missing), "questions") as progress:
        for name, block in missing:
            prompts = encode_questions(tokenizer, prompt, store.block(block))
            _read_block(store, name, block, partial(functions[name], model, prompts), progress)


def _read_block(store: Store, name: str, block: int, signal: Callable[..., dict[str, Any]], progress: Progress) -> None:
    def read_with(batch_tokens: int, counted: Counted) -> dict[str, Any]:
        return signal(batch_tokens=batch_tokens, progress=counted)

    tensors, batch_tokens = halving(read_with, BATCH_TOKENS, "prompt tokens", progress)
    store.write_signal(name, block, tensors, batch_tokens)


def _is_damaged(store: Store, path: Path) -> bool:
    """Whether a finished file is not as it was written; says what is wrong with it. It stays until another is there."""
    try:
        check_file(path, store.path)
    except Damaged as error:
        _say(f"{path.relative_to(store.path)}: {error.problem}; making it again")
        return True
    return False


def _say(line: str) -> None:
    print(line, file=sys.stderr)
