"""Filling a store's grades: the answers that a grader has not graded, and those that it could not decide, a part at a time."""

from __future__ import annotations

from collections import Counter

from extract.errors import InputError
from extract.grading.base import Grade, GradeAll, Grader, Known
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.store.fill import is_damaged
from extract.store.shards import SampleRange
from extract.store.store import Store


def fill_grades(store: Store, grader: Grader, worker: Worker) -> None:
    """Grade what this grader has not graded, and what it may decide by now. Other grades stay.

    Args:
        store: The store.
        grader: The grader.
        worker: Whose blocks.

    Raises:
        InputError: The grades that there are were given by another rule, or the grader can't grade.
    """
    graded = [part for part in store.grades.ranges(grader.name) if worker.has(part.block)]
    damaged = {part for part in graded if _is_damaged(store, grader.name, part)}
    whole = [part for part in graded if part not in damaged]
    if grader.may_decide_later:
        _check_rule(store, grader, whole)
    undecided = [part for part in whole if grader.may_decide_later and _undecided(store, grader, part)]
    missing = [*damaged, *(part for part in store.grades.missing(grader.name) if worker.has(part.block))]
    if not missing and not undecided:
        say(f"grade: all answers are graded by {grader.name}")
        return
    _fill_parts(store, grader, worker, missing, undecided)


def _is_damaged(store: Store, grader: str, part: SampleRange) -> bool:
    """Whether grades are not as they were written, or of answers that others have replaced; says so."""
    return is_damaged(store, store.grades.file(grader, part), lambda: store.grades.read(grader, part))


def _fill_parts(
    store: Store, grader: Grader, worker: Worker, missing: list[SampleRange], undecided: list[SampleRange]
) -> None:
    total = sum(map(store.questions.n_rows, missing)) + sum(_undecided(store, grader, part) for part in undecided)
    counts: Counter[str] = Counter()
    with Progress(f"grade{worker.label}", total, "answers") as progress, grader.running() as grade_all:
        known: Known = {}
        block = -1
        for part in sorted((*missing, *undecided)):
            if part.block != block:
                known, block = _recalled(store, grader, part.block, missing), part.block
            grades = _grade_part(store, grader, part, grade_all, known, progress, again=part in undecided)
            counts.update(map(_verdict, grades))
    say(
        f"grade: {counts.total()} answers graded by {grader.name}, {counts['right']} right, {counts['unknown']} unknown, {counts['unread']} without an answer that can be read, which is wrong"
    )


def _verdict(grade: Grade) -> str:
    if grade.right is None:
        return "unknown"
    return "unread" if grade.answer is None else "right" if grade.right else "wrong"


def _grade_part(
    store: Store, grader: Grader, part: SampleRange, grade_all: GradeAll, known: Known, progress: Progress, again: bool
) -> list[Grade]:
    """Grade the answers of a part, or those of them that were undecided, and keep the grades."""
    kept = {}
    if again:
        rows = store.grades.read(grader.name, part).to_pylist()
        kept = {(row["question_id"], row["sample"]): row for row in rows if row["right"] is not None}
    questions = {question.id: question for question in store.questions.block(part)}
    answers = store.samples.read(part).select(["question_id", "sample", "text"]).to_pylist()
    new = [one for one in answers if (one["question_id"], one["sample"]) not in kept]
    grades = grade_all([(questions[one["question_id"]], one["text"]) for one in new], known, progress)
    for one, grade in zip(new, grades, strict=True):
        key = {"question_id": one["question_id"], "sample": one["sample"]}
        kept[one["question_id"], one["sample"]] = {**key, **grade._asdict()}
    store.grades.write(grader.name, part, [kept[one["question_id"], one["sample"]] for one in answers], grader.rule)
    return grades


def _undecided(store: Store, grader: Grader, part: SampleRange) -> int:
    """How many answers of a graded part are unknown."""
    return int(store.grades.read(grader.name, part)["right"].null_count)


def _recalled(store: Store, grader: Grader, block: int, missing: list[SampleRange]) -> Known:
    """What a grader decided about a block's answers in parts that it has graded, for one whose decisions are dear."""
    if not grader.may_decide_later:
        return {}
    parts = [part for part in store.grades.ranges(grader.name) if part.block == block and part not in missing]
    rows = (row for part in parts for row in store.grades.read(grader.name, part).to_pylist())
    return {
        (row["question_id"], row["answer"]): Grade(row["right"], row["answer"])
        for row in rows
        if row["right"] is not None and row["answer"] is not None
    }


def _check_rule(store: Store, grader: Grader, graded: list[SampleRange]) -> None:
    """Refuse to mix grades of two rules in a folder.

    Raises:
        InputError: The rule of the grades that there are is another one.
    """
    other = next((part for part in graded if store.grades.rule(grader.name, part) != grader.rule), None)
    if other is not None:
        folder = store.grades.file(grader.name, other).parent
        name = ", or give another --judge.name" if grader.name.startswith("judge-") else ""
        raise InputError(
            f"Expected the grades in {str(folder)!r} to be by the rule of this run, but they are by another, which their metadata holds. Delete that folder to grade anew{name}."
        )
