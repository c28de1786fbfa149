"""Read stores that answer the same questions, and align their questions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from applications.confidences import read_confidence
from applications.stores import open_stores
from datamodules.table import QuestionTable, load_table
from extract.errors import InputError, nearest
from extract.hashing import sha256_json
from extract.questions.question import Question
from extract.store.store import Store

Values = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Panel:
    """Several stores, and the questions with a known grade in all of them.

    Attributes:
        names: Names of the stores.
        stores: The stores.
        tables: Question tables of the stores.
        rows: [store, question] int64 row of each question in each store's question table.
        n_shared: Number of questions that all stores have.
    """

    names: list[str]
    stores: list[Store]
    tables: list[QuestionTable]
    rows: Labels
    n_shared: int

    @property
    def right(self) -> Labels:
        """[store, question] numbers of right answers."""
        return np.stack([table.right[rows] for table, rows in zip(self.tables, self.rows, strict=True)])

    @property
    def known(self) -> Labels:
        """[store, question] numbers of answers graded right or wrong, at least 1."""
        return np.stack([table.known[rows] for table, rows in zip(self.tables, self.rows, strict=True)])

    @property
    def accuracy(self) -> Values:
        """[store, question] accuracies p̂."""
        return self.right / self.known

    @property
    def questions(self) -> list[Question]:
        """The questions."""
        questions = list(self.stores[0].questions)
        return [questions[row] for row in self.rows[0]]


def read_panel(paths: Sequence[str], shared: bool, grader: str | None) -> Panel:
    """Open two or more stores, and align their questions by content.

    Args:
        paths: Folders of stores or of temperature grids. A grid counts as one store for each temperature.
        shared: Whether to use the shared questions if the stores have different questions.
        grader: Name of the grader; None for the only grader of the first store.

    Raises:
        InputError: If there are fewer than two stores, two stores have the same identity, the questions differ and
            `shared` is False, the stores share no questions, grades are missing, or fewer than two questions have a
            known grade in every store.
    """
    stores = [store for path in paths for store in open_stores(path).values()]
    grader = stores[0].grades.choose(grader)
    tables = [load_table(store, grader) for store in stores]
    if len({store.sha256 for store in stores}) < max(2, len(stores)):
        raise InputError(
            f"Expected `stores` to contain at least two different stores, but got {', '.join(map(str, paths))}. Pass "
            "stores with different models, prompts or temperatures."
        )
    rows = shared_rows(stores)
    if not rows.size or (not shared and rows.shape[1] < max(len(table.ids) for table in tables)):
        sizes = " and ".join(f"{len(table.ids)} of '{store.path}'" for table, store in zip(tables, stores, strict=True))
        hint = "Pass --shared true to compare them on the shared questions." if rows.size else "Pass other stores."
        raise InputError(
            f"Expected the stores to have the same questions, but {rows.shape[1]} questions are shared, out of "
            f"{sizes}. {hint}"
        )
    known = np.stack([table.known[of_store] for table, of_store in zip(tables, rows, strict=True)]).min(0) > 0
    if known.sum() < 2:
        raise InputError(
            f"Expected at least two questions with a known grade by {grader!r} in every store, but got {known.sum()}. "
            "Grade the answers with another grader."
        )
    names = [store.path.resolve().name for store in stores]
    if len(set(names)) < len(names):
        names = [str(store.path) for store in stores]
    return Panel(names, stores, tables, rows[:, known], rows.shape[1])


def shared_rows(stores: Sequence[Store]) -> Labels:
    """Return the rows [store, question] of the questions that all stores have, in the order of the first store.

    Questions are the same if all their fields are the same, as in a store's identity.
    """
    if len({store.identity["questions"] for store in stores}) == 1:
        return np.tile(np.arange(len(stores[0].questions)), (len(stores), 1))
    rows_of = [{sha256_json(question.record()): row for row, question in enumerate(s.questions)} for s in stores]
    keys = [key for key in rows_of[0] if all(key in rows for rows in rows_of)]
    return np.array([[rows[key] for key in keys] for rows in rows_of], dtype=np.int64)


def clusters_of(questions: Sequence[Question], column: str) -> Labels:
    """Number the clusters of the questions, [question] int64.

    Args:
        questions: The questions.
        column: ``group``, ``dataset``, or ``meta.KEY`` for a key of `meta`.

    Raises:
        InputError: If a question has no such field, or all questions are in the same cluster.
    """
    names = [_field(question, column) for question in questions]
    if missing := names.count(""):
        known = ["group", "dataset", *sorted({f"meta.{key}" for question in questions for key in question.meta})]
        raise InputError(
            f"Expected `clusters` to be a field that every question has (of {', '.join(known)}), but got {column!r}, "
            f"which {missing} of {len(questions)} questions lack.{nearest(column, known)}"
        )
    number = np.unique(names, return_inverse=True)[1]
    if number.max() < 1:
        raise InputError(
            f"Expected `clusters` to divide the questions into at least two clusters, but {column!r} is {names[0]!r} "
            "for all of them. Leave out `clusters`, or pass another field."
        )
    return number.astype(np.int64)


def _field(question: Question, column: str) -> str:
    """Return the value of a field, or an empty string if the question does not have it."""
    fields = {"group": question.group, "dataset": question.dataset}
    fields |= {f"meta.{key}": str(value) for key, value in question.meta.items()}
    return fields.get(column, "")


def read_confidences(sources: Sequence[str], panel: Panel) -> Values:
    """Read the confidences [store, question], NaN where missing.

    Args:
        sources: One source for each store, or a single one for all stores (see `read_confidence`). May be empty.
        panel: The stores.

    Raises:
        InputError: If the number of sources is wrong, or a source cannot be read.
    """
    n = len(panel.stores)
    if len(sources) not in (0, 1, n):
        raise InputError(
            f"Expected `confidences` to contain one source, or one for each of the {n} stores in the same order, but "
            f"got {len(sources)}."
        )
    if not sources:
        return np.empty((0, panel.rows.shape[1]))
    of_stores = [*sources] * n if len(sources) == 1 else sources
    columns = zip(of_stores, panel.stores, panel.rows, strict=True)
    return np.array([read_confidence(source, store)[rows] for source, store, rows in columns])
