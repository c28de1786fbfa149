"""Sample answers in rounds, and stop for each question once a stopping rule is met.

The answers are logged after each round. A block's tables are written once sampling has stopped for all its questions.
The tables record why sampling stopped. Answers that were not drawn have the finish reason `skipped`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from extract.grading import load_grader
from extract.grading.base import GradeAll
from extract.grading.classes import AnswerClasses, Equal, equality
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.sampling.stopping import STOPPING_RULES, Answers
from extract.sampling.stopping_settings import Stopping, turns
from extract.store.answer_log import delete_finished_logs, finish_range, read_log, reopen_range, unfinished_ranges
from extract.store.files import is_whole
from extract.store.fill import missing_shards
from extract.store.samples import REJECTED, SKIPPED
from extract.store.shards import Block, SampleRange, missing_ranges
from extract.store.store import Store

#: A store and a range of its samples.
StoreRange = tuple[Store, SampleRange]
#: The `draw` method of a sampler.
Draw = Callable[
    [Mapping[float, StoreRange], Sequence[str], range, Progress], Mapping[float, Sequence[Mapping[str, Any]]]
]


def reopen_ranges(stores: Mapping[float, Store], k: int, stopping: Stopping | None, worker: Worker) -> None:
    """Reopen the finished ranges to which this run may add answers. Their answers are moved back to logs.

    - A run without a stopping rule reopens ranges that contain skipped samples.
    - A run with a stopping rule reopens ranges that were sampled with a stopping rule. It leaves a block unchanged
      if the block is complete at all temperatures and was sampled with the same settings.

    Damaged ranges and ranges that begin after the first k samples are not changed.
    """
    recorded, undecided = list[tuple[Store, SampleRange, dict[str, Any]]](), set[int]()
    settings = None if stopping is None else stopping.record(stores, k)
    for store in stores.values():
        delete_finished_logs(store, worker)
    if not any(store.samples.stopping(part) for store in stores.values() for part in store.samples.ranges()):
        return  # without computing any checksums
    for store in stores.values():
        whole = [part for part in store.samples.ranges() if is_whole(store.samples.file(part), store.path)]
        missing = missing_ranges(whole, store.questions.n_blocks, k)
        undecided.update(part.block for part in missing)
        for part in whole:
            record = store.samples.stopping(part)
            if record is not None and part.start < k and worker.has(part.block):
                recorded.append((store, part, record))
                if settings != {name: record.get(name) for name in settings or {}}:
                    undecided.add(part.block)
    reopened = [
        (store, part)
        for store, part, record in recorded
        if (record["skipped"] if settings is None else part.block in undecided)
    ]
    for store, part in reopened:
        reopen_range(store, part)
    if any(store.grades.names() for store, _ in reopened):
        say(
            "sample: adding answers to blocks that have already been graded. Run `python -m extract grade` again "
            "afterwards"
        )


def sample_in_rounds(draw: Draw, stores: Mapping[float, Store], k: int, stopping: Stopping, worker: Worker) -> None:
    """Draw up to k answers per question and temperature, until the stopping rule is met."""
    open_ranges = dict[float, list[SampleRange]]()
    for temperature, store in stores.items():
        damaged = missing_shards(store, store.samples.ranges(), worker, store.samples.file)
        open_ranges[temperature] = unfinished_ranges(store, k, damaged, worker)
    blocks = sorted({samples.block for ranges in open_ranges.values() for samples in ranges})
    if not blocks:
        say(f"sample: nothing to do, because every question has {k} answers or was stopped earlier")
        return
    questions = next(iter(stores.values())).questions
    total = sum(len(questions.ids(Block(block))) for block in blocks) * len(turns(stores, k))
    outcomes: list[dict[str, Any]] = []
    with (
        load_grader(stopping.grader).running() as grade_all,
        equality(stopping.grader) as equal,
        Progress(f"sample{worker.label}", total, "answers") as progress,
    ):
        for block in blocks:
            ranges = {t: [part for part in parts if part.block == block] for t, parts in open_ranges.items()}
            rounds = _Rounds(stores, ranges, block, k, stopping, equal)
            outcomes += rounds.run(draw, grade_all, progress).values()
    n_early = sum(outcome["reason"] == "rule" for outcome in outcomes)
    used = np.mean([outcome["n_answers"] for outcome in outcomes])
    say(
        f"sample: the {stopping.rule} rule stopped sampling early for {n_early} of {len(outcomes)} questions. On "
        f"average, the rule used {used:.1f} answers per question (the maximum is {len(turns(stores, k))})"
    )


class _Rounds:
    """Draws the answers to a block of questions in rounds.

    `ranges` maps each temperature to the unfinished ranges of samples in its store.
    """

    def __init__(
        self,
        stores: Mapping[float, Store],
        ranges: Mapping[float, list[SampleRange]],
        block: int,
        k: int,
        stopping: Stopping,
        equal: Equal | None,
    ) -> None:
        self._stores, self._ranges, self._k, self._stopping = stores, ranges, k, stopping
        self._questions = {one.id: one for one in next(iter(stores.values())).questions.block(Block(block))}
        self._numbering = {id_: AnswerClasses(equal) for id_ in self._questions}
        self._classes: dict[str, list[int]] = {id_: [] for id_ in self._questions}  # in the order of the turns
        self._turns = turns(stores, k)
        self._temperatures = np.array([temperature for _, temperature in self._turns])
        self._texts: dict[tuple[str, int, float], str] = {}
        self._outcomes: dict[str, dict[str, Any]] = {}
        for t, store in stores.items():
            finished = (part for part in store.samples.ranges() if part.block == block and part not in ranges[t])
            for part in finished:
                self._add(t, store.samples.read(part).to_pylist())
            for part in (part for part in ranges[t] if store.samples.log_file(part).is_file()):
                self._add(t, read_log(store, part))

    def run(self, draw: Draw, grade_all: GradeAll, progress: Progress) -> dict[str, dict[str, Any]]:
        """Draw answers until sampling has stopped for all questions, and write the tables.

        Returns a dict from question id to outcome (`reason`, `n_answers`, `evidence` and `answer`).
        """
        self._decide(grade_all, progress)
        progress(sum(map(len, self._classes.values())), 0)
        while undecided := [id_ for id_ in self._questions if id_ not in self._outcomes]:
            first = min(map(self._next_sample, undecided))
            ids = [id_ for id_ in undecided if self._next_sample(id_) == first]
            self._draw(draw, ids, first, progress)
            self._decide(grade_all, progress)
            for id_ in ids:
                if id_ not in self._outcomes and self._next_sample(id_) == first:  # nothing was drawn
                    self._stop(id_, REJECTED, len(self._classes[id_]), None, None, progress)
        absent = {id_: REJECTED if one["reason"] == REJECTED else SKIPPED for id_, one in self._outcomes.items()}
        record = {**self._stopping.record(self._stores, self._k), "questions": self._outcomes}
        for t, store in self._stores.items():
            for part in self._ranges[t]:
                finish_range(store, part, absent, stopping=record)
        return self._outcomes

    def _next_sample(self, id_: str) -> int:
        """Return the sample index of the next answer to a question."""
        return self._turns[len(self._classes[id_])][0]

    def _add(self, temperature: float, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if row["finish_reason"] not in (SKIPPED, REJECTED):
                self._texts[row["question_id"], row["sample"], temperature] = row["text"]

    def _draw(self, draw: Draw, ids: Sequence[str], first: int, progress: Progress) -> None:
        """Draw one round of answers, starting at sample index `first`."""
        once = [t for t in self._stores if t == 0 and len(self._stores) > 1]
        for temperatures, n in (([t for t in self._stores if t not in once], self._stopping.per_round), (once, 1)):
            ranges = {
                t: (self._stores[t], part)
                for t in temperatures
                for part in self._ranges[t]
                if part.start <= first < part.stop and (first == 0 or t not in once)
            }
            if ranges:
                stop = min(first + n, self._k, *(part.stop for _, part in ranges.values()))
                for t, rows in draw(ranges, ids, range(first, stop), progress).items():
                    self._add(t, rows)

    def _decide(self, grade_all: GradeAll, progress: Progress) -> None:
        """Parse new answers, and apply the stopping rule to undecided questions."""
        undecided = [id_ for id_ in self._questions if id_ not in self._outcomes]
        new = []
        for id_ in undecided:
            for turn in self._turns[len(self._classes[id_]) :]:
                if (id_, *turn) not in self._texts:
                    break
                new.append((id_, self._texts[id_, *turn]))
        grades = grade_all([(self._questions[id_], text) for id_, text in new], {}, lambda answers, tokens: None)
        for (id_, _), grade in zip(new, grades, strict=True):
            self._classes[id_].append(self._numbering[id_].add(grade.answer))
        rule = STOPPING_RULES[self._stopping.rule]
        for id_ in undecided:
            if self._classes[id_]:
                answers = Answers(np.array([self._classes[id_]]), self._temperatures)
                found = rule.decide(answers, self._stopping.threshold, self._stopping.priors.get(id_))
                if found.reason:
                    answer = self._numbering[id_].first[found.leader]
                    self._stop(id_, found.reason, found.n_answers, found.evidence, answer, progress)

    def _stop(
        self, id_: str, reason: str, n_answers: int, evidence: float | None, answer: str | None, progress: Progress
    ) -> None:
        finite = evidence if evidence is not None and isfinite(evidence) else None
        self._outcomes[id_] = {"reason": reason, "n_answers": n_answers, "evidence": finite, "answer": answer}
        progress(len(self._turns) - len(self._classes[id_]), 0)
