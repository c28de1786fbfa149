"""Every score of a store's answers against right and wrong: chosen on the one part of the questions, tested on the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from datamodules.features import LEAST_VALIDATION
from datamodules.splits import split_questions
from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.running.progress import Progress
from extract.store.store import Store
from probes.training_free.clustered_auroc import Clustered, clustered
from probes.training_free.correction import max_t
from probes.training_free.scores import PLAIN, TOKENS, Score, Scores

#: Scores are chosen among those that at least this share of the answers have that any has.
LEAST_COVERAGE = 0.95
PARTS = ("val", "test")


class SampleRange(NamedTuple):
    """The graded answers to some of the questions.

    Attributes:
        row: [answer] int64 rows of the answer table.
        right: [answer] whether each is right.
        question: [answer] int64, the question of each, counted from 0 within the part.
        sample: [answer] int64, the number of each answer to its question.
        n_questions: Number of questions.
        n_unknown: Answers to them that have no grade, and are left out.
    """

    row: Tensor
    right: Tensor
    question: Tensor
    sample: Tensor
    n_questions: int
    n_unknown: int


@dataclass(frozen=True)
class Grid:
    """All scores with their AUROCs.

    Attributes:
        store: The store.
        table: Its grades.
        parts: The answers that choose, `val`, and those that test.
        names: [score] the scores.
        found: AUROCs on each part.
        p: [score] p-values on the test answers, corrected for all scores (max-T); NaN where there is none.
        scores: [score, answer] of the test answers, higher = more likely right.
        n_tokens: [answer] over the answer table, content tokens.
        reference: Row of the mean token entropy; None where the store has none.
        masked: Signals that are left out, and why.
    """

    store: Store
    table: QuestionTable
    parts: dict[str, SampleRange]
    names: list[Score]
    found: dict[str, Clustered]
    p: Tensor
    scores: Tensor
    n_tokens: Tensor
    reference: int | None
    masked: dict[str, str]

    def choose(self, among: list[int]) -> int | None:
        """The score with the highest AUROC on validation, the first of equals; None where none has one.

        Scores that many answers lack are passed over, since they would be chosen for the answers that they have, and so are
        those that are the same for all answers.
        """
        rows, val = torch.tensor(among, dtype=torch.int64), self.found["val"]
        if not len(rows):
            return None
        auroc, n = val.auroc[rows], val.n_answers[rows]
        usable = auroc.isfinite() & val.varies[rows] & (n >= LEAST_COVERAGE * n.max())
        return among[int(auroc.where(usable, -1.0).argmax())] if usable.any() else None

    @cached_property
    def chosen(self) -> int:
        """The chosen score of all that take one answer; those from further answers are scored on half of them, and stand apart.

        Raises:
            InputError: There is none.
        """
        best = self.choose([row for row, name in enumerate(self.names) if not name.half])
        if best is None:
            raise InputError(
                f"Expected a score that the validation answers have, but all {len(self.names)} are NaN there. Look at the store with `python -m extract verify --store {self.store.path}`."
            )
        return best

    def of_families(self) -> dict[str, int]:
        """The chosen score of each family, by the family's name in the order of the scores.

        A weighted score that is on validation what one without weights is too is none of the weighted family: the largest value
        is the same, however the tokens are weighted.
        """
        members: dict[str, list[int]] = {}
        for row, name in enumerate(self.names):
            members.setdefault(name.family, []).append(row)
        for family, rows in members.items():
            if self.names[rows[0]].weighting != PLAIN:
                members[family] = [row for row, alike in zip(rows, self._as_unweighted(rows), strict=True) if not alike]
        best = {family: self.choose(rows) for family, rows in members.items()}
        return {family: row for family, row in best.items() if row is not None}

    def _as_unweighted(self, rows: list[int]) -> list[bool]:
        """Whether each weighted score moves with the validation questions just as one without weights, of the same key."""
        influence = self.found["val"].influence
        plain: dict[tuple[str, ...], list[int]] = {}
        for row, name in enumerate(self.names):
            if name.weighting == PLAIN:
                plain.setdefault((name.signal, name.key), []).append(row)
        return [
            bool(((influence[plain[self.names[row][:2]]] - influence[row]).abs().amax(1) < 1e-12).any()) for row in rows
        ]

    @cached_property
    def places(self) -> dict[Score, int]:
        """Row of every score."""
        return {name: row for row, name in enumerate(self.names)}

    def as_table(self) -> pa.Table:
        """One row a score; null where there is no number."""
        val, test = self.found["val"], self.found["test"]
        low, high = test.interval()
        columns = {
            "auroc_val": val.auroc,
            "se_val": val.error,
            "n_val": val.n_answers,
            "auroc_test": test.auroc,
            "se_test": test.error,
            "low": low,
            "high": high,
            "p_corrected": self.p,
            "n_test": test.n_answers,
        }
        named = {field: [getattr(name, field) for name in self.names] for field in (*Score._fields, "family")}
        return pa.table(named | {name: pa.array(one.numpy(), from_pandas=True) for name, one in columns.items()})


def make_grid(
    store: Store, table: QuestionTable, test_fraction: float = 0.2, seed: int = 0, n_draws: int = 10_000
) -> Grid:
    """Score all answers in all ways.

    Args:
        store: The store, with token signals of its answers.
        table: Its grades.
        test_fraction: Share of the questions that test.
        seed: Seed of the split and of the draws.
        n_draws: Draws behind the corrected p-values.

    Raises:
        InputError: No token signals, too few questions, or a part of the questions with right or wrong answers only.
    """
    scores = Scores(store, table.answers)
    parts = split(table, test_fraction, seed)
    found: dict[str, list[Clustered]] = {part: [] for part in PARTS}
    tested = []
    with Progress("signals", len(scores.names), "scores") as progress:
        for batch in scores.batches():
            for name, part in parts.items():
                found[name].append(clustered(batch[:, part.row], part.right, part.question, part.n_questions))
            tested.append(batch[:, parts["test"].row])
            progress(len(batch), len(batch) * int(scores.n_tokens.sum()))
    entropy = scores.key_of("entropy")
    test, of_test = parts["test"], torch.cat(tested)
    return Grid(
        store=store,
        table=table,
        parts=parts,
        names=scores.names,
        found={part: Clustered(*map(torch.cat, zip(*some, strict=True))) for part, some in found.items()},
        p=max_t(of_test, test.right, test.question, test.sample, n_draws, seed, progress=True),
        scores=of_test,
        n_tokens=scores.n_tokens,
        reference=None if entropy is None else scores.names.index(Score(TOKENS, entropy, "mean")),
        masked=scores.masked,
    )


def split(table: QuestionTable, test_fraction: float, seed: int) -> dict[str, SampleRange]:
    """The answers that choose and those that test, by question, the test questions those of `train.py`'s split.

    Nothing is trained, so that what is for training there chooses here too. Questions with fewer than two graded answers are
    in neither part.

    Raises:
        InputError: Too few questions, or a part with right or wrong answers only.
    """
    if not 0 < test_fraction < 1:
        raise InputError(
            f"Expected `test_fraction` to be between 0 and 1, but got {test_fraction}. 0.2 is the default."
        )
    usable = np.flatnonzero(table.known >= 2).tolist()
    ids, groups = [table.ids[row] for row in usable], [table.groups[row] for row in usable]
    numbers = split_questions(ids, groups, (1 - test_fraction, test_fraction), seed)
    parts = {}
    for number, name in enumerate(PARTS):
        chosen = [row for row, own in zip(usable, numbers, strict=True) if own == number]
        if len(chosen) < (least := LEAST_VALIDATION if name == "val" else 2):
            raise InputError(
                f"Expected at least {least} questions that {'choose (validation)' if name == 'val' else 'test'}, but got {len(chosen)} of {len(usable)} with two graded answers. Use a store of more questions, or another `test_fraction` than {test_fraction:g}."
            )
        parts[name] = _part(table, chosen)
        right, n = int(parts[name].right.sum()), len(parts[name].right)
        if right in (0, n):
            raise InputError(
                f"Expected the {name} part to have right and wrong answers, but all {n} answers to its {len(chosen)} questions are {'right' if right else 'wrong'}. Use more or other questions, or another seed."
            )
    return parts


def _part(table: QuestionTable, questions: list[int]) -> SampleRange:
    place = np.full(len(table.ids), -1)
    place[questions] = np.arange(len(questions))
    of_answer, known = place[table.answers.question], table.answers.known == 1
    rows = np.flatnonzero((of_answer >= 0) & known)
    return SampleRange(
        row=torch.from_numpy(rows),
        right=torch.from_numpy(table.answers.right[rows] == 1),
        question=torch.from_numpy(of_answer[rows]),
        sample=torch.from_numpy(table.answers.sample[rows]),
        n_questions=len(questions),
        n_unknown=int(((of_answer >= 0) & ~known).sum()),
    )
