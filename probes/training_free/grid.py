"""All scores of a store's answers, and the AUROC of each score on validation and test questions."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from datamodules.splits import LEAST_VALIDATION
from datamodules.table import QuestionTable, split_rows
from extract.errors import InputError
from extract.running.progress import Progress
from extract.store.store import Store
from probes.training_free.clustered_auroc import ClusteredAuroc, clustered_auroc, max_t
from probes.training_free.scores import TOKENS, UNWEIGHTED, Score, Scores

PARTS = {"val": "validation", "test": "test"}


class Part(NamedTuple):
    """Graded answers to the validation questions or to the test questions.

    Attributes:
        row: Row in the answer table, [answer] int64.
        right: Whether the answer is right, [answer] bool.
        question: Index of the question within the part, [answer] int64.
        sample: Sample index, [answer] int64.
        n_questions: Number of questions.
        n_unknown: Number of answers without a grade, which are left out.
    """

    row: Tensor
    right: Tensor
    question: Tensor
    sample: Tensor
    n_questions: int
    n_unknown: int


@dataclass(frozen=True)
class Grid:
    """All scores of a store's answers, and the AUROC of each score.

    Attributes:
        store, table: The store and its question table.
        parts: Dict with the `val` and `test` parts.
        names: Names of the scores.
        aurocs: AUROCs of the scores on each part.
        p: P-values from `max_t` on the test answers, [score] float64; NaN if undefined.
        scores: Scores of the test answers, [score, answer] float32; higher means more likely to be right.
        n_tokens: Number of content tokens of each answer in the answer table, [answer] int64.
        reference: Index of the mean token entropy among the scores, or None.
        masked: Dict from each missing signal to the reason why it is missing.
    """

    store: Store
    table: QuestionTable
    parts: dict[str, Part]
    names: list[Score]
    aurocs: dict[str, ClusteredAuroc]
    p: Tensor
    scores: Tensor
    n_tokens: Tensor
    reference: int | None
    masked: dict[str, str]

    def choose(self, rows: list[int]) -> int | None:
        """Return the row with the highest validation AUROC among `rows`, or None if no row qualifies.

        A row qualifies if its score is not constant and its AUROC is defined. Its number of scored answers must also be
        at least 95 % of the maximum over `rows`. Ties go to the first row.
        """
        if not rows:
            return None
        val = self.aurocs["val"]
        auroc, n = val.auroc[rows], val.n_answers[rows]
        usable = auroc.isfinite() & val.varies[rows] & (n >= 0.95 * n.max())
        return rows[int(auroc.where(usable, -1.0).argmax())] if usable.any() else None

    @cached_property
    def chosen(self) -> int:
        """Row of the score with the highest validation AUROC, ignoring scores that need several answers."""
        best = self.choose([row for row, name in enumerate(self.names) if not name.half])
        if best is None:
            raise InputError(
                f"Expected at least one usable score on the validation answers, but all {len(self.names)} are constant "
                f"or NaN. Check the store with `python -m extract verify --store {self.store.path}`."
            )
        return best

    def of_families(self) -> dict[str, int]:
        """For each family of scores, return the row with the highest validation AUROC.

        A weighted score is excluded if it ranks the validation answers exactly as an unweighted score does.
        """
        influence = self.aurocs["val"].influence
        unweighted: dict[tuple[str, ...], list[int]] = {}
        for row, name in enumerate(self.names):
            if name.weighting == UNWEIGHTED:
                unweighted.setdefault(name[:2], []).append(row)
        members: dict[str, list[int]] = {}
        for row, name in enumerate(self.names):
            rows = members.setdefault(name.family, [])
            others = influence[unweighted[name[:2]]]
            if name.weighting == UNWEIGHTED or (others - influence[row]).abs().amax(1).min() >= 1e-12:
                rows.append(row)
        best = {family: self.choose(rows) for family, rows in members.items()}
        return {family: row for family, row in best.items() if row is not None}

    @cached_property
    def row_of(self) -> dict[Score, int]:
        """Dict from each score to its row."""
        return {name: row for row, name in enumerate(self.names)}

    def as_table(self) -> pa.Table:
        """Return a table with one row per score."""
        val, test = self.aurocs["val"], self.aurocs["test"]
        low, high = test.interval()
        columns = {
            "auroc_val": val.auroc,
            "se_val": val.standard_error,
            "n_val": val.n_answers,
            "auroc_test": test.auroc,
            "se_test": test.standard_error,
            "low": low,
            "high": high,
            "p_corrected": self.p,
            "n_test": test.n_answers,
        }
        names = {field: [getattr(name, field) for name in self.names] for field in (*Score._fields, "family")}
        return pa.table(names | {name: pa.array(column.numpy(), from_pandas=True) for name, column in columns.items()})


def make_grid(
    store: Store, table: QuestionTable, test_fraction: float = 0.2, seed: int = 0, n_draws: int = 10_000
) -> Grid:
    """Compute all scores of a store's answers, their AUROCs, and their p-values from `n_draws` permutations.

    Raises:
        InputError: If token signals are missing, or if the validation or test split lacks questions, right answers or
            wrong answers.
    """
    scores = Scores(store, table.answers)
    parts = split(table, test_fraction, seed)
    aurocs: dict[str, list[ClusteredAuroc]] = {part: [] for part in PARTS}
    test_batches = []
    with Progress("signals", len(scores.names), "scores") as progress:
        for batch in scores.batches():
            for name, part in parts.items():
                aurocs[name].append(clustered_auroc(batch[:, part.row], part.right, part.question, part.n_questions))
            test_batches.append(batch[:, parts["test"].row])
            progress(len(batch), len(batch) * int(scores.n_tokens.sum()))
    test, test_scores, entropy = parts["test"], torch.cat(test_batches), scores.key_of("entropy")
    return Grid(
        store=store,
        table=table,
        parts=parts,
        names=scores.names,
        aurocs={part: ClusteredAuroc(*map(torch.cat, zip(*batches, strict=True))) for part, batches in aurocs.items()},
        p=max_t(test_scores, test.right, test.question, test.sample, n_draws, seed, progress=True),
        scores=test_scores,
        n_tokens=scores.n_tokens,
        reference=None if entropy is None else scores.names.index(Score(TOKENS, entropy, "mean")),
        masked=scores.masked,
    )


def split(table: QuestionTable, test_fraction: float, seed: int) -> dict[str, Part]:
    """Split the answers into a validation part and a test part. The test questions are the same as in `train.py`.

    Questions with fewer than two graded answers are left out.
    """
    if not 0 < test_fraction < 1:
        raise InputError(
            f"Expected `test_fraction` to be between 0 and 1, but got {test_fraction}. The default is 0.2."
        )
    usable, parts = torch.from_numpy(np.flatnonzero(table.known >= 2)), {}
    split_questions = split_rows(table, usable, [1 - test_fraction, test_fraction], seed)
    for (name, words), questions in zip(PARTS.items(), split_questions, strict=True):
        least = LEAST_VALIDATION if name == "val" else 2
        if len(questions) < least:
            raise InputError(
                f"Expected at least {least} {words} questions, but got {len(questions)}. Only {len(usable)} questions "
                "have at least two graded answers. Use a store with more questions, or change `test_fraction` "
                f"({test_fraction:g})."
            )
        index = np.full(len(table.ids), -1)
        index[questions] = np.arange(len(questions))
        question, known = index[table.answers.question], table.answers.known == 1
        rows = np.flatnonzero((question >= 0) & known)
        parts[name] = Part(
            row=torch.from_numpy(rows),
            right=torch.from_numpy(table.answers.right[rows] == 1),
            question=torch.from_numpy(question[rows]),
            sample=torch.from_numpy(table.answers.sample[rows]),
            n_questions=len(questions),
            n_unknown=int(((question >= 0) & ~known).sum()),
        )
        n_right, n = int(parts[name].right.sum()), len(rows)
        if n_right in (0, n):
            raise InputError(
                f"Expected the {words} split to contain right and wrong answers, but all {n} answers to its "
                f"{len(questions)} questions are {'right' if n_right else 'wrong'}. Use more questions, different "
                "questions or a different seed."
            )
    return parts
