"""Grade a store: the answers that a grader has not graded, and those that it could not decide."""

from collections import Counter
from collections.abc import Sequence

from extract.errors import InputError
from extract.grading.base import Counts, Grade, GradeAll, Grader, Known
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.store.fill import fill, missing_shards
from extract.store.samples import REJECTED
from extract.store.shards import SampleRange
from extract.store.store import Store


def fill_grades(store: Store, grader: Grader, worker: Worker) -> None:
    """Grade what this grader has not graded, and what it may decide by now. Other grades stay.

    Args:
        store: The store.
        grader: The grader.
        worker: Whose blocks.

    Raises:
        InputError: The existing grades were given by another rule, or the grader can't grade.
    """
    name, ranges = grader.name, store.samples.ranges()
    missing = missing_shards(
        store, ranges, worker, lambda samples: store.grades.file(name, samples), lambda x: store.grades.read(name, x)
    )
    graded = [samples for samples in ranges if worker.has(samples.block) and samples not in missing]
    undecided: dict[SampleRange, int] = {}
    if grader.may_decide_later:
        for samples in graded:
            if store.grades.rule(name, samples) != grader.rule:
                folder = str(store.grades.file(name, samples).parent)
                option = ", or give another --judge.name" if name.startswith("judge-") else ""
                raise InputError(
                    f"Expected the grades in {folder!r} to be by the rule of this run, but they are by another, which "
                    f"their metadata holds. Delete that folder to grade anew{option}."
                )
            n_unknown = int(store.grades.read(name, samples)["right"].null_count)
            if n_unknown:  # the server may have rejected the question
                n_unknown -= store.samples.read(samples)["finish_reason"].to_pylist().count(REJECTED)
            if n_unknown:
                undecided[samples] = n_unknown
    if not missing and not undecided:
        say(f"grade: all answers are graded by {name}")
        return
    verdicts: Counter[str] = Counter()
    known: dict[int, Known] = {}  # of the block that is being graded
    with grader.running() as grade_all:

        def make(samples: SampleRange, progress: Progress) -> None:
            if samples.block not in known:
                known.clear()
                finished = [other for other in graded if other.block == samples.block]
                known[samples.block] = _decided(store, grader, finished)
            again, of_block = samples in undecided, known[samples.block]
            verdicts.update(_grade_range(store, grader, samples, grade_all, of_block, progress, again))

        to_grade = sorted((*missing, *undecided))
        fill("grade", "answers", to_grade, lambda x: undecided.get(x) or store.questions.n_rows(x), make, worker)
    n_unknown, n_rejected = verdicts["unknown"] + verdicts["rejected"], verdicts["rejected"]
    say(
        f"grade: {verdicts.total()} answers graded by {name}, {verdicts['right']} right, {n_unknown} unknown"
        f"{f' ({n_rejected} rejected by the server)' if n_rejected else ''}, "
        f"{verdicts['unread']} without an answer that can be read, which is wrong"
    )


def _grade_range(
    store: Store, grader: Grader, samples: SampleRange, grade_all: GradeAll, known: Known, count: Counts, again: bool
) -> list[str]:
    """Grade the answers of a range, or those that were undecided, write the grades, and name the new verdicts."""
    old = store.grades.read(grader.name, samples).to_pylist() if again else []
    rows = {(row["question_id"], row["sample"]): row for row in old if row["right"] is not None}
    questions = {question.id: question for question in store.questions.block(samples)}
    answers = store.samples.read(samples).select(["question_id", "sample", "text", "finish_reason"]).to_pylist()
    by_key = {(answer["question_id"], answer["sample"]): answer for answer in answers}
    rejected = {key: Grade(None, None) for key, answer in by_key.items() if answer["finish_reason"] == REJECTED}
    new = [key for key in by_key if key not in rows and key not in rejected]
    grades = grade_all([(questions[key[0]], by_key[key]["text"]) for key in new], known, count)
    for (question_id, sample), grade in (rejected | dict(zip(new, grades, strict=True))).items():
        rows[question_id, sample] = {"question_id": question_id, "sample": sample, **grade._asdict()}
    store.grades.write(grader.name, samples, [rows[key] for key in by_key], grader.rule)
    verdicts = [_verdict(grade) for grade in grades]
    if again:
        return verdicts
    count(len(rejected), 0)
    return [*verdicts, *["rejected"] * len(rejected)]


def _verdict(grade: Grade) -> str:
    if grade.right is None:
        return "unknown"
    return "unread" if grade.answer is None else "right" if grade.right else "wrong"


def _decided(store: Store, grader: Grader, graded: Sequence[SampleRange]) -> Known:
    """What a grader whose decisions are expensive has decided about the answers of ranges."""
    if not grader.may_decide_later:
        return {}
    rows = (row for samples in graded for row in store.grades.read(grader.name, samples).to_pylist())
    return {
        (row["question_id"], row["answer"]): Grade(row["right"], row["answer"])
        for row in rows
        if row["right"] is not None and row["answer"] is not None
    }
