"""Sample answers in rounds, and stop sampling for a question as soon as a stopping rule is met.

The answers are saved in answer logs after each round. When sampling has stopped for a whole block, its tables are
written. They record why sampling stopped. Answers that were not drawn have the finish reason `skipped`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from extract.errors import InputError, at_least_one
from extract.grading import grader_of_kinds, load_grader
from extract.grading.base import GradeAll
from extract.grading.classes import AnswerClasses, Equal, equality
from extract.hashing import sha256_json
from extract.questions.question import Question
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.sampling.prior import Prior, read_priors
from extract.sampling.stopping import STOPPING_RULES, Answers
from extract.store.answer_log import finish_range, read_log, unfinished_ranges
from extract.store.fill import missing_shards
from extract.store.samples import REJECTED, SKIPPED
from extract.store.shards import Block, SampleRange
from extract.store.store import Store

#: A store, and a range of samples of one of its blocks.
StoreRange = tuple[Store, SampleRange]
#: The method `draw` of a sampler.
Draw = Callable[
    [Mapping[float, StoreRange], Sequence[str], range, Progress], Mapping[float, Sequence[Mapping[str, Any]]]
]


@dataclass(frozen=True)
class Stopping:
    """Settings of early stopping. Create an instance with `load_stopping`, which checks the options.

    Attributes:
        rule: Name of the stopping rule.
        threshold: Threshold of the rule.
        grader: Name of the grader that parses the answers, so that they can be compared.
        priors: Prior of each question by question id. Empty if the rule needs none.
        per_round: Number of answers to each question per round and temperature.
    """

    rule: str
    threshold: float
    grader: str
    priors: Mapping[str, Prior]
    per_round: int

    def record(self, budget: int) -> dict[str, Any]:
        """Return the settings that the decisions depend on, as recorded in the store.

        Args:
            budget: Largest number of answers to each question at each temperature.
        """
        priors = sha256_json({id_: list(prior) for id_, prior in self.priors.items()}) if self.priors else None
        settings = {"rule": self.rule, "threshold": self.threshold, "grader": self.grader}
        return {**settings, "budget": budget, "priors": priors}


def load_stopping(
    rule: str,
    threshold: float | None,
    priors: str | None,
    grader: str | None,
    per_round: int,
    questions: Sequence[Question],
    n_temperatures: int,
) -> Stopping:
    """Check the options of early stopping, and read the priors.

    Args:
        rule, threshold, priors, grader, per_round: See `sample_family`.
        questions: Questions of the store.
        n_temperatures: Number of temperatures of the grid, or 1.

    Raises:
        InputError: If the rule or the grader is unknown, the grader asks a model, the threshold is out of bounds, the
            rule needs several temperatures or priors that are missing, or priors are passed to another rule.
    """
    entry, needs_priors = STOPPING_RULES[rule], STOPPING_RULES[rule].needs == "prior"
    at_least_one("per_round", per_round, default=2)
    low, high = entry.bounds
    threshold = entry.threshold if threshold is None else threshold
    if not low <= threshold <= high:
        raise InputError(
            f"Expected `threshold` to be between {low:g} and {high:g} for the rule {rule}, but got {threshold:g}. The "
            f"default is {entry.threshold:g}."
        )
    if entry.needs == "temperatures" and n_temperatures == 1:
        raise InputError(
            f"Expected a grid of temperatures, because the rule {rule} compares them, but got one temperature. Pass "
            "--policy.temperature 0.4:1.2:0.4, for example, or another rule."
        )
    if needs_priors != (priors is not None):
        raise InputError(
            f"Expected `priors` to be {'a file' if needs_priors else 'omitted'} for the rule {rule}, but got "
            f"{priors!r}. {'Write it with `python -m probes priors`.' if needs_priors else 'Omit --priors.'}"
        )
    name = grader or grader_of_kinds(question.kind for question in questions)
    if name == "judge":
        raise InputError(
            "Expected `grader` to be a grader that parses answers without a model, but got 'judge'. Pass "
            "--grader short, for example. The answers can still be graded by judge afterwards."
        )
    load_grader(name)
    ids = [question.id for question in questions]
    return Stopping(rule, threshold, name, read_priors(priors, ids) if priors else {}, per_round)


def is_current(store: Store, samples: SampleRange, stopping: Stopping | None, budget: int) -> bool:
    """Whether a finished range was sampled with the early-stopping settings of this run."""
    recorded = store.samples.stopping(samples) or {}
    return stopping is not None and all(recorded.get(name) == value for name, value in stopping.record(budget).items())


def turns(temperatures: Collection[float], k: int) -> list[tuple[int, float]]:
    """List the sample index and the temperature of each answer to a question, in the order in which they are used.

    Answers are ordered by sample index, and then by temperature. In a grid, only one answer is used at temperature 0.

    >>> turns([0.0, 0.5], 3)
    [(0, 0.0), (0, 0.5), (1, 0.5), (2, 0.5)]
    """
    once = len(temperatures) > 1
    return [(j, t) for j in range(k) for t in sorted(temperatures) if j == 0 or t > 0 or not once]


def sample_in_rounds(draw: Draw, stores: Mapping[float, Store], k: int, stopping: Stopping, worker: Worker) -> None:
    """Draw up to k answers to each question at each temperature, and stop as soon as the rule is met.

    Args:
        draw: Function that draws answers and appends them to the answer logs, see `Sampler.draw`.
        stores: Dict from temperature to store.
        k: Largest number of answers to each question at each temperature.
        stopping: Settings of early stopping.
        worker: Worker whose blocks are sampled.

    Raises:
        InputError: If some samples could not be drawn. Samples drawn so far are kept.
    """
    open_ranges = dict[float, list[SampleRange]]()
    for temperature, store in stores.items():
        damaged = missing_shards(store, store.samples.ranges(), worker, store.samples.file)
        open_ranges[temperature] = unfinished_ranges(store, k, damaged, worker)
    blocks = sorted({samples.block for ranges in open_ranges.values() for samples in ranges})
    if not blocks:
        say("sample: sampling has already stopped for all questions")
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
        f"sample: the rule {stopping.rule} stopped {n_early} of {len(outcomes)} questions. Its decisions use "
        f"{used:.1f} of {len(turns(stores, k))} answers per question"
    )


class _Rounds:
    """Draws the answers to a block of questions in rounds.

    Args:
        ranges: Unfinished ranges of the block, by temperature.
        equal: Function that compares parsed answers.
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
        """Draw answers until sampling has stopped for all questions, and write the tables. Returns the outcomes."""
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
        record = {**self._stopping.record(self._k), "questions": self._outcomes}
        for t, store in self._stores.items():
            for part in self._ranges[t]:
                finish_range(store, part, absent, stopping=record)
        return self._outcomes

    def _next_sample(self, id_: str) -> int:
        """Return the sample index of the next answer to a question."""
        return self._turns[len(self._classes[id_])][0]

    def _add(self, temperature: float, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the texts of answers that have been drawn."""
        for row in rows:
            if row["finish_reason"] not in (SKIPPED, REJECTED):
                self._texts[row["question_id"], row["sample"], temperature] = row["text"]

    def _draw(self, draw: Draw, ids: Sequence[str], first: int, progress: Progress) -> None:
        """Draw a round of answers to some questions, beginning with the sample index `first`."""
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
        """Parse new answers, and apply the rule to the questions that have not been decided yet."""
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
