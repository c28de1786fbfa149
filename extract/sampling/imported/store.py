"""Write the answers and grades of a log to a store."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from extract.grading.base import Grade
from extract.hashing import sha256_json
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions.question import questions_hash
from extract.running.progress import Progress
from extract.running.worker import Worker
from extract.samplers import SAMPLERS
from extract.sampling.imported.log import Log
from extract.store.fill import fill, missing_shards
from extract.store.identity import check_folder
from extract.store.samples import MISSING
from extract.store.shards import SampleRange, missing_ranges
from extract.store.store import Store
from extract.store.verify import write_manifest


def write_log(log: Log, folder: Path) -> Store:
    """Create a store from a log. If the store exists, restore its missing and damaged files.

    A killed import leaves a hidden folder. The next import of the same log completes it.

    Raises an `InputError` if `folder` contains other files or the store of a different log.
    """
    assert all(sample in range(log.k) for _, sample in log.answers), "a reader found an answer outside range(k)"
    check_folder(folder)
    identity = _identity(log)
    if (folder / "identity.json").is_file():
        _fill(folder, log, identity)
        return Store.open(folder)
    unfinished = folder.with_name(f".{folder.name}.{sha256_json(identity.as_dict())[:8]}.tmp")
    try:
        _fill(unfinished, log, identity)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Store.open(folder)


def _identity(log: Log) -> Identity:
    """Return the identity of a store created from a log. It includes a hash of the answers."""
    answers = [
        [*key, answer.text, answer.reasoning, answer.finish_reason, sorted(answer.grades.items())]
        for key, answer in sorted(log.answers.items())
    ]
    request = {**log.origin, "k": log.k, "answers": sha256_json(answers)}
    policy = Policy(ModelIdentity(log.model), log.decoding, request)
    return Identity(policy, questions_hash(log.questions), sampler=SAMPLERS["imported"].version)


def _fill(folder: Path, log: Log, identity: Identity) -> None:
    """Write the missing files of a store, and rewrite the damaged ones."""
    worker = Worker()
    with worker.writing(folder):
        store = Store.create(folder, identity, log.questions)
        ranges, n_rows = missing_ranges([], store.questions.n_blocks, log.k), store.questions.n_rows

        def write_samples(part: SampleRange, progress: Progress) -> None:
            store.samples.write(part, [_sample(store, log, *key) for key in _keys(store, part)])
            progress(n_rows(part), 0)

        @contextmanager
        def grading(name: str) -> Iterator[Callable[[SampleRange, Progress], None]]:
            yield partial(write_grades, name)

        def write_grades(name: str, samples: SampleRange, progress: Progress) -> None:
            rows = [_grade(log, name, *key) for key in _keys(store, samples)]
            store.grades.write(name, samples, rows, log.rules[name])
            progress(n_rows(samples), 0)

        fill(
            "import",
            "answers",
            missing_shards(store, ranges, worker, store.samples.file),
            n_rows,
            lambda: nullcontext(write_samples),
            worker,
        )
        for name in log.rules:
            file, check = partial(store.grades.file, name), partial(store.grades.read, name)
            if missing := missing_shards(store, ranges, worker, file, check):
                fill(f"import {name}", "grades", missing, n_rows, partial(grading, name), worker)
        write_manifest(store)


def _keys(store: Store, part: SampleRange) -> list[tuple[str, int]]:
    return [(id_, sample) for id_ in store.questions.ids(part) for sample in range(part.start, part.stop)]


def _sample(store: Store, log: Log, id_: str, sample: int) -> dict[str, Any]:
    """Return the row of the samples table for an answer, without token ids."""
    row, answer = store.samples.absent(id_, sample, MISSING), log.answers.get((id_, sample))
    if answer is None:
        return row
    return {**row, "text": answer.text, "reasoning": answer.reasoning, "finish_reason": answer.finish_reason}


def _grade(log: Log, name: str, id_: str, sample: int) -> dict[str, Any]:
    answer = log.answers.get((id_, sample))
    grade = Grade(None, None) if answer is None else answer.grades.get(name, Grade(None, answer.text))
    return {"question_id": id_, "sample": sample, **grade._asdict()}
