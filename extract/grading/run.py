"""Grade a store's ungraded answers, and retry undecided answers."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pyarrow.compute as pc

from extract.errors import Damaged, InputError
from extract.grading.base import Grade, Grader, Known
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.store.fill import fill, is_written, missing_shards
from extract.store.samples import MISSING, REJECTED, SKIPPED, WITHOUT_ANSWER
from extract.store.shards import SampleRange
from extract.store.store import Store


def fill_grades(store: Store, grader: Grader, worker: Worker) -> None:
    """Grade ungraded and undecided answers in a worker's blocks.

    Raises:
        InputError: If the existing grades follow a different rule, or the grader can't grade the questions.
    """
    name, ranges = grader.name, store.samples.ranges()
    missing = missing_shards(store, ranges, worker, partial(store.grades.file, name), partial(store.grades.read, name))
    graded = [samples for samples in ranges if worker.has(samples.block) and samples not in missing]
    by_other_rule = [samples for samples in graded if store.grades.rule(name, samples) != grader.rule]
    if by_other_rule:
        folder = str(store.grades.file(name, by_other_rule[0]).parent)
        if not missing and not grader.may_decide_later:
            say(
                f"grade: {name} has already graded all answers, but with a different rule; delete {folder!r} to grade "
                "them again"
            )
            return
        option = ", or pass a different --judge.name" if name.startswith("judge-") else ""
        raise InputError(
            f"Expected the grades in {folder!r} to follow this run's grading rule, but they follow a different "
            f"rule. Delete that folder to grade again{option}."
        )
    undecided = {samples: n for samples in graded if (n := _n_undecided(store, grader, samples))}
    if not missing and not undecided:
        say(f"grade: all answers have already been graded by {name}")
        return
    _check_references(store)
    to_grade = sorted((*missing, *undecided))
    start = partial(_grading, store, grader)
    verdicts = sum(
        fill("grade", "answers", to_grade, lambda x: undecided.get(x) or store.questions.n_rows(x), start, worker),
        Counter[str](),
    )
    n_unknown, n_rejected = verdicts["unknown"] + verdicts[REJECTED], verdicts[REJECTED]
    say(
        f"grade: {verdicts.total()} answers graded by {name}, {verdicts['right']} right, {n_unknown} unknown"
        f"{f' ({n_rejected} rejected by the server)' if n_rejected else ''}, "
        f"{verdicts['unread']} unreadable (counted as wrong)"
    )


@contextmanager
def _grading(store: Store, grader: Grader) -> Iterator[Callable[[SampleRange, Progress], Counter[str]]]:
    """Start the grader, and yield a function that grades a range of samples."""
    known: dict[int, Known] = {}  # by block; only the current block is kept
    with grader.running() as grade_all:

        def grade(samples: SampleRange, progress: Progress) -> Counter[str]:
            old = []
            if is_written(lambda: store.grades.read(grader.name, samples)):
                if not _n_undecided(store, grader, samples):
                    return Counter()
                old = store.grades.read(grader.name, samples).to_pylist()
            if samples.block not in known:
                known.clear()
                known[samples.block] = _decided(store, grader, samples.block)
            of_block = known[samples.block]
            new = _grade_range(store, grader, samples, old, lambda answers: grade_all(answers, of_block, progress))
            progress(sum(map(new.count, WITHOUT_ANSWER)), 0)
            return Counter(verdict for verdict in new if verdict not in (SKIPPED, MISSING))

        yield grade


def _check_references(store: Store) -> None:
    """Raise an error if any question has no references. Imported logs can contain such questions."""
    table = store.questions.table
    lacking = table["question_id"].filter(pc.equal(pc.list_value_length(table["references"]), 0))
    if len(lacking):
        raise InputError(
            f"Expected every question in {str(store.path)!r} to have references, but {len(lacking)} of {len(table)} "
            f"have none, for example {lacking[0].as_py()!r}. Instead of grading the answers, use the scores that "
            "were imported with them."
        )


def _n_undecided(store: Store, grader: Grader, samples: SampleRange) -> int:
    """Count the undecided answers that should be retried."""
    if not grader.may_decide_later:
        return 0
    n_unknown = int(store.grades.read(grader.name, samples)["right"].null_count)
    if not n_unknown:
        return 0
    reasons = store.samples.read(samples)["finish_reason"].to_pylist()
    return n_unknown - sum(reason in WITHOUT_ANSWER for reason in reasons)  # these answers stay unknown


def _grade_range(
    store: Store, grader: Grader, samples: SampleRange, old: list[dict[str, Any]], grade_all: Callable[..., list[Grade]]
) -> list[str]:
    """Grade ungraded and undecided answers, and write the grades of all answers in the range.

    `old` contains the existing grades. Returns the verdicts on the newly graded answers.
    """
    rows = {(row["question_id"], row["sample"]): row for row in old if row["right"] is not None}
    questions = {question.id: question for question in store.questions.block(samples)}
    answers = store.samples.read(samples).select(["question_id", "sample", "text", "finish_reason"]).to_pylist()
    by_key = {(answer["question_id"], answer["sample"]): answer for answer in answers}
    absent = {
        key: answer["finish_reason"] for key, answer in by_key.items() if answer["finish_reason"] in WITHOUT_ANSWER
    }
    new = [key for key in by_key if key not in rows and key not in absent]
    grades = grade_all([(questions[key[0]], by_key[key]["text"]) for key in new])
    for (question_id, sample), grade in (
        dict.fromkeys(absent, Grade(None, None)) | dict(zip(new, grades, strict=True))
    ).items():
        rows[question_id, sample] = {"question_id": question_id, "sample": sample, **grade._asdict()}
    store.grades.write(grader.name, samples, [rows[key] for key in by_key], grader.rule)
    return [*map(_verdict, grades), *([] if old else absent.values())]


def _verdict(grade: Grade) -> str:
    if grade.right is None:
        return "unknown"
    return "unread" if grade.answer is None else "right" if grade.right else "wrong"


def _decided(store: Store, grader: Grader, block: int) -> Known:
    """Load existing decisions on a block's answers. Returns {} for graders that never retry undecided answers."""
    known: Known = {}
    for samples in store.samples.ranges() if grader.may_decide_later else ():
        if samples.block == block:
            with suppress(Damaged):  # not graded yet
                for row in store.grades.read(grader.name, samples).to_pylist():
                    if row["right"] is not None and row["answer"] is not None:
                        known[row["question_id"], row["answer"]] = Grade(row["right"], row["answer"])
    return known
