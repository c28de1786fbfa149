"""Methods for allocating a budget to questions."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from applications.beta_priors import base_rates, beta_priors
from applications.budget.allocation import Array, beta_gains, hazards, plug_in_gains, uniform_gains
from applications.budget.evaluation import mean_cost
from datamodules.table import QuestionTable, split_rows
from extract.errors import InputError
from probes.baselines.registry import is_half
from probes.comparison.folds import fold_of_questions

#: Number of folds for base rates and concentrations.
N_FOLDS = 5
LEAST_QUESTIONS = 20
METHODS = UNIFORM, BASE_RATE, ORACLE = "uniform", "base_rate", "oracle"
PLUG_IN, BAYESIAN = "plug-in", "Bayesian"
#: A method: the names of its confidence and its gain.
Method = tuple[str, str]


class Setting(NamedTuple):
    """Answers that can be drawn for each question, and the gains of each method.

    Attributes:
        right: Number of right answers, [question].
        known: Number of graded answers, [question].
        gains: Gains by method, each [question, answer].
        online: Whether sampling for a question stops at the first right answer.
    """

    right: NDArray[np.int64]
    known: NDArray[np.int64]
    gains: dict[Method, Array]
    online: bool = False

    def limit(self, fold: NDArray[np.int64]) -> float:
        """Return the largest budget (mean number of answers per question) that is available in every fold.

        `fold` [question] is the fold of each question.
        """
        parts = [(self.right[fold == number], self.known[fold == number]) for number in np.unique(fold)]
        return min(mean_cost(*part) if self.online else float(part[1].mean()) for part in parts)


class Questions(NamedTuple):
    """Questions to which a budget is allocated.

    Attributes:
        rows: Rows of the question table, [question].
        fold: Fold of each question, [question]. Folds are stratified by question group and have separate budgets.
        settings: Settings by name: `all` (all answers can be drawn), `half` (only the answers with odd indices can be
            drawn) and `online` (all answers can be drawn, but sampling stops at the first right answer).
        concentration: Dict of mean concentrations of the beta priors. The keys are `base_rate` and the names of the
            confidences. The value is None if the concentration cannot be estimated.
    """

    rows: NDArray[np.int64]
    fold: NDArray[np.int64]
    settings: dict[str, Setting]
    concentration: dict[str, float | None]


def read_questions(table: QuestionTable, confidences: Mapping[str, Array], seed: int) -> Questions:
    """Select the questions to use, and compute the gains of all methods.

    Each array in `confidences` has one value per row of the question table. The value of a row without a confidence is
    NaN.

    A question is used if it has a confidence in every array, and graded answers at both even and odd indices. Some
    methods, such as the oracle, use the grades of the answers with even indices. These methods are included only in the
    `half` setting, which is evaluated on the answers with odd indices.
    """
    other_known = table.known - table.held_known
    rows = np.flatnonzero(
        np.isfinite([other_known, *confidences.values()]).all(axis=0) & (other_known > 0) & (table.held_known > 0)
    )
    if len(rows) < LEAST_QUESTIONS:
        raise InputError(
            f"Expected at least {LEAST_QUESTIONS} questions with confidences and with graded answers at both even and "
            f"odd indices, but got {len(rows)}. Use more questions, or sample and grade more answers."
        )
    right, known, held_right, held_known, other_known = (
        column[rows] for column in (table.right, table.known, table.held_right, table.held_known, other_known)
    )
    if not held_right.any():
        raise InputError(
            "Expected at least one of the graded answers with odd indices (1, 3, 5, …) to be right, but all of them "
            "are wrong. Use other questions."
        )
    tests = split_rows(table, torch.from_numpy(rows), [1 / N_FOLDS] * N_FOLDS, seed)  # same folds as in a comparison
    fold, most = fold_of_questions(tests, len(table.ids)).numpy()[rows], int(known.max())
    rates = base_rates(right / known, [table.groups[row] for row in rows], fold)
    of_all, of_half, online = ({(UNIFORM, ""): uniform_gains(len(rows), most)} for _ in range(3))
    priors = {}
    for name, mean in {BASE_RATE: rates, **{name: values[rows] for name, values in confidences.items()}}.items():
        priors[name] = prior = beta_priors(mean, right, known, fold)
        gains = {(name, PLUG_IN): plug_in_gains(mean, most)}
        if prior is not None:
            gains[name, BAYESIAN] = beta_gains(*prior, most)
        of_half |= gains
        if not is_half(name):
            of_all |= gains
            online |= {} if prior is None else {(name, BAYESIAN): hazards(*prior, most)}
    other_right = right - held_right
    of_half[ORACLE, PLUG_IN] = plug_in_gains(other_right / other_known, most)
    if prior := priors[BASE_RATE]:
        of_half[ORACLE, BAYESIAN] = beta_gains(prior[0] + other_right, prior[1] + other_known - other_right, most)
    settings = {
        "all": Setting(right, known, of_all),
        "half": Setting(held_right, held_known, of_half),
        "online": Setting(right, known, online, online=True),
    }
    return Questions(
        rows, fold, settings, {name: prior and float(np.mean(prior[0] + prior[1])) for name, prior in priors.items()}
    )
