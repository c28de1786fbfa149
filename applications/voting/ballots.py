"""Read the answers of a store or a temperature grid as votes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from applications.stores import load_tables, open_stores
from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.grading.classes import AnswerClasses, Equal, equality
from extract.store.store import Store

_COLUMNS = ("n_tokens", "mean_nll")


@dataclass(frozen=True)
class Ballots:
    """All answers to one question. The answers are ordered so that the temperatures alternate.

    Attributes:
        classes: Class of each answer, [answer] int64. Equal answers have the same class.
        right: Whether most graded answers in the class are right, [class] bool.
        temperatures: Temperature of each answer, [answer] float64.
        n_tokens: Number of generated tokens, [answer] float64; NaN if a server did not report it.
        likelihood: Confidence in each answer, exp(−mean_nll), [answer] float64; NaN without log-probabilities.
    """

    classes: NDArray[np.int64]
    right: NDArray[np.bool_]
    temperatures: NDArray[np.float64]
    n_tokens: NDArray[np.float64]
    likelihood: NDArray[np.float64]

    def at(self, temperature: float) -> "Ballots":
        """Return the answers at one temperature."""
        kept = self.temperatures == temperature
        columns = (self.temperatures, self.n_tokens, self.likelihood)
        return Ballots(self.classes[kept], self.right, *(column[kept] for column in columns))


@dataclass(frozen=True)
class Poll:
    """The answers to all questions of a store or temperature grid.

    Attributes:
        stores: The stores by temperature, in increasing order.
        table: Question table of the first store.
        questions: Row of each included question in the question table, [question]. A question is left out if it has
            fewer than two answers, no answers at one of the temperatures, or a group of equal answers without a known
            grade.
        ballots: Answers to each included question.
    """

    stores: dict[float, Store]
    table: QuestionTable
    questions: NDArray[np.int64]
    ballots: list[Ballots]


def read_poll(path: str, grader: str | None = None) -> Poll:
    """Read the answers and grades of a store, or of a temperature grid.

    In a grid, only one answer per question is used at temperature 0.
    """
    stores = open_stores(path)
    tables = load_tables(stores, grader)
    first = next(iter(tables.values()))
    rows_of = {temperature: table.answers.rows_by_question(len(table.ids)) for temperature, table in tables.items()}
    with equality(first.grader) as equal:
        ballots = [
            _ballots(tables, {temperature: rows[question] for temperature, rows in rows_of.items()}, equal)
            for question in range(len(first.ids))
        ]
    kept = {row: one for row, one in enumerate(ballots) if one is not None}
    if not any(one.right.any() for one in kept.values()) and kept:
        raise InputError(
            f"Expected {path!r} to contain at least one right answer, but all answers are wrong. Use easier questions, "
            "or check the grades with `python -m extract inspect`."
        )
    if not kept:
        raise InputError(
            f"Expected {path!r} to contain a question with at least two graded answers, but there is none. Sample and "
            "grade more answers."
        )
    return Poll(stores, first, np.array(list(kept)), list(kept.values()))


def _ballots(
    tables: Mapping[float, QuestionTable], rows: Mapping[float, NDArray[np.int64]], equal: Equal | None
) -> Ballots | None:
    """Combine a question's answers at all temperatures. Returns None if the question must be left out."""
    drawn = {t: of[:1] if t == 0 and len(tables) > 1 else of for t, of in rows.items()}
    turns = sorted((turn, t, row) for t, of in drawn.items() for turn, row in enumerate(of.tolist()))
    if not all(map(len, drawn.values())) or len(turns) < 2:
        return None
    answers = [(tables[t].answers, row) for _, t, row in turns]
    numbering = AnswerClasses(equal)
    classes = np.array([numbering.add(table.answer[row]) for table, row in answers])
    known, right = (
        np.bincount(classes, [getattr(table, column)[row] for table, row in answers]) for column in ("known", "right")
    )
    if not known.all():
        return None
    n_tokens, nll = (np.array([getattr(table, column)[row] for table, row in answers]) for column in _COLUMNS)
    return Ballots(classes, right > known / 2, np.array([t for _, t, _ in turns]), n_tokens, np.exp(-nll))
