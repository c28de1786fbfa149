"""Out-of-fold confidences of a probe for different numbers of training questions and answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule
from datamodules.splits import LEAST_VALIDATION
from datamodules.table import AnswerTable
from extract.errors import InputError, at_least_one
from extract.registry import Registry
from probes.comparison.folds import VAL_SHARE, fit, fold_of_questions, folds
from probes.metrics.intervals import check_resampling
from probes.registry import PROBES

#: Probes with a closed-form solution, which are cross-fitted.
CLOSED_FORM = Registry(
    "probe", {name: PROBES[name] for name in ("layer_average", "logistic", "ridge", "difference_of_means")}
)
#: Minimum number of training questions in the default grid.
LEAST_QUESTIONS = round(LEAST_VALIDATION / VAL_SHARE)


@dataclass(frozen=True)
class Cell:
    """Out-of-fold confidences of probes that were trained on n questions with k answers each.

    Attributes:
        confidence: Confidences, [subset, question] float64; NaN for questions that are not tested.
        n_fits: Number of fits.
        n_base_rate: Number of fits in which the probe returns the same confidence for every question.
    """

    confidence: Tensor
    n_fits: int
    n_base_rate: int


def halvings(most: int) -> list[int]:
    """Halve `most` repeatedly while the result is at least `LEAST_QUESTIONS`. Return all values in ascending order.

    >>> halvings(384)
    [48, 96, 192, 384]
    """
    values = [most]
    while values[0] // 2 >= LEAST_QUESTIONS:
        values.insert(0, values[0] // 2)
    return values


def round_numbers(most: int) -> list[int]:
    """Return the numbers 1, 2, 5, 10, 20, 50, … below `most`, followed by `most`.

    >>> round_numbers(12)
    [1, 2, 5, 10, 12]
    """
    return [*sorted(i * 10**e for i in (1, 2, 5) for e in range(len(str(most))) if i * 10**e < most), most]


def random_ranks(answers: AnswerTable, rng: np.random.Generator) -> NDArray[np.int64]:
    """Shuffle the answers to each question and return their ranks. Ungraded answers come last.

    Ranks start at 0.
    """
    order = np.lexsort((rng.random(len(answers.question)), 1 - answers.known, answers.question))
    question, places = answers.question[order], np.arange(len(order))
    ranks = np.empty_like(places)
    ranks[order] = places - np.searchsorted(question, question)
    return ranks


@dataclass
class LearningCurve:
    """Train a probe on random subsets of the data outside each test fold, and score the test fold.

    A subset consists of n questions with up to k graded answers each. Larger subsets contain the smaller ones with the
    same index.

    Args:
        n: Numbers of training questions. The default is `halvings(N)`, where N is the number of questions outside the
            largest test fold.
        k: Numbers of graded answers per training question. The default is `round_numbers(K)`, where K is the largest
            number of graded answers to a question.

    Attributes:
        data, table: Datamodule of the store, and its question table with all grades.
        questions: Rows of the question table that are tested, [question] int64.
        folds: Test rows of each fold.
        cells: Dict from (n, k) to `Cell`, for all pairs without a failed fit.
        masked: Dict from (n, k) to the reason for the failure, for all other pairs.
    """

    store: str
    grader: str | None = None
    probe: str = "layer_average"
    n: Sequence[int] | None = None
    k: Sequence[int] | None = None
    n_folds: int = 5
    n_subsets: int = 5
    seed: int = 0
    cells: dict[tuple[int, int], Cell] = field(default_factory=dict, init=False)
    masked: dict[tuple[int, int], str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_resampling(self.seed)
        at_least_one("subsets", self.n_subsets, default=5)
        self.method = CLOSED_FORM[self.probe]
        self.data = FeatureDataModule(self.store, None, self.grader)
        self.data.load()
        self.table, self.questions = self.data.table, self.data.every().question
        parts = folds(self.table, self.questions, self.n_folds, self.seed, LEAST_VALIDATION)
        self.folds = [rows["test"] for rows in parts]
        self.n_most = len(self.questions) - max(map(len, self.folds))
        self.k_most = int(self.table.known[self.questions].max())
        self.n = _grid("n", self.n, halvings(self.n_most), LEAST_VALIDATION, "questions outside a test fold")
        self.k = _grid("k", self.k, round_numbers(self.k_most), 1, "graded answers per question")

    @property
    def fold(self) -> Tensor:
        """Test fold of each row of the question table, [question] int64; −1 if the row is not tested."""
        return fold_of_questions(self.folds, len(self.table.ids))

    def run(self) -> "LearningCurve":
        """Fit the probe for every pair of `n` and `k`, and fill `cells` and `masked`.

        Raises:
            InputError: If every cell is masked.
        """
        grid = [(n, k) for n in self.n or () for k in self.k or ()]
        n_fits = len(self.folds) * sum(self._n_subsets(n, k) for n, k in grid)
        with tqdm(total=n_fits, desc="curve", unit=" fits") as progress:
            for n, k in grid:
                progress.set_postfix_str(f"{n} questions, {k} answers")
                self._fill(n, k, progress)
        if not self.cells:
            raise InputError(
                f"Expected at least one pair of `n` and `k` for which all fits on {self.store!r} succeed, but every "
                f"pair has at least one failed fit. {next(iter(self.masked.values()))}"
            )
        return self

    def subsets(self, n: int, k: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each subset of a cell, draw a random order of the questions and the `random_ranks` of the answers."""
        generators = [np.random.default_rng([self.seed, subset]) for subset in range(self._n_subsets(n, k))]
        return [(rng.permutation(len(self.table.ids)), random_ranks(self.table.answers, rng)) for rng in generators]

    def _n_subsets(self, n: int, k: int) -> int:
        """Return the number of subsets to draw: 1 if `n` and `k` are the largest possible, else `n_subsets`."""
        return 1 if (n, k) == (self.n_most, self.k_most) else self.n_subsets

    def _fill(self, n: int, k: int, progress: tqdm) -> None:
        """Compute a cell and add it to `cells`. If a fit fails, add the reason to `masked` instead."""
        usable, answers = self.questions.numpy(), self.table.answers
        subsets = self.subsets(n, k)
        confidence = torch.full((len(subsets), len(self.table.ids)), torch.nan, dtype=torch.float64)
        fallbacks: list[bool] = []
        errors: list[InputError] = []
        for (order, ranks), values in zip(subsets, confidence, strict=True):
            for test in self.folds:
                train = order[np.isin(order, usable) & ~np.isin(order, test)][:n]
                kept = (ranks < k) | ~np.isin(answers.question, train)
                try:
                    values[test], fell_back = self._fit(torch.from_numpy(train), test, kept)
                    fallbacks.append(fell_back)
                except InputError as error:
                    errors.append(error)
                progress.update()
        if errors:
            n_fits = len(errors) + len(fallbacks)
            self.masked[n, k] = f"{len(errors)} of {n_fits} fits failed. The first error: {errors[0]}"
        else:
            self.cells[n, k] = Cell(confidence, len(fallbacks), sum(fallbacks))

    def _fit(self, train: Tensor, test: Tensor, kept: NDArray[np.bool_]) -> tuple[Tensor, bool]:
        """Fit the probe with the grades that the mask `kept` [answer] selects.

        Returns:
            The test confidences, [question] float64, and whether the probe returns the same confidence for all
            questions.
        """
        self.data.use_grades(self.table.with_grades(kept))
        unused = self.questions[~torch.isin(self.questions, torch.cat([train, test]))]
        parts = {"train": train, "val": train[:0], "test": test, "unused": unused}
        self.data.use_split({split: rows.tolist() for split, rows in parts.items()})
        module = fit(self.method.load(), self.data, self.method.epochs, self.seed)
        return module.predict(self.data.batch("test").features).double(), module.warning is not None


def _grid(option: str, values: Sequence[int] | None, default: list[int], least: int, unit: str) -> list[int]:
    """Check and sort the values of an option. The last value of `default` is the largest value allowed."""
    most = default[-1]
    if values is None:
        return default
    if not values or not least <= min(values) <= max(values) <= most:
        raise InputError(
            f"Expected `{option}` to contain numbers from {least} to {most} (the number of {unit}), but got "
            f"{list(values)}. To use the default ({', '.join(map(str, default))}), omit the option."
        )
    return sorted(set(values))
