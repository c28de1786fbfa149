"""Read stores with answers to the same questions, and align the questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from applications.confidences import read_confidence
from applications.stores import open_stores
from datamodules.table import QuestionTable, load_table
from extract.errors import InputError, nearest
from extract.hashing import differences, sha256_json
from extract.questions.question import Question
from extract.store.store import Store
from extract.text import one_line

Values = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Panel:
    """Several stores, and the questions with a known grade in all of them.

    Attributes:
        names: Names of the stores.
        stores: The stores.
        tables: Question tables of the stores.
        rows: Row of each question in each store's question table, [store, question] int64.
        n_shared: Number of questions that all stores have.
    """

    names: list[str]
    stores: list[Store]
    tables: list[QuestionTable]
    rows: Labels
    n_shared: int

    @property
    def right(self) -> Labels:
        """Number of right answers, [store, question]."""
        return np.stack([table.right[rows] for table, rows in zip(self.tables, self.rows, strict=True)])

    @property
    def known(self) -> Labels:
        """Number of answers with a known grade, always at least 1, [store, question]."""
        return np.stack([table.known[rows] for table, rows in zip(self.tables, self.rows, strict=True)])

    @property
    def accuracy(self) -> Values:
        """Accuracies, [store, question]."""
        return self.right / self.known

    @property
    def questions(self) -> list[Question]:
        """The first store's questions that have a known grade in all stores."""
        questions = list(self.stores[0].questions)
        return [questions[row] for row in self.rows[0]]


def check_stores(paths: Sequence[str]) -> None:
    """Raise an InputError if the `stores` option is empty or not a list."""
    if isinstance(paths, str) or not paths:
        raise too_few_stores(repr(paths))


def too_few_stores(got: str) -> InputError:
    """Return the InputError for a `stores` option with fewer than two different stores."""
    return InputError(
        f"Expected `stores` to contain at least two different stores, but got {got}. Pass stores with different "
        "models, prompts or temperatures."
    )


def read_panel(paths: Sequence[str], shared: bool, grader: str | None) -> Panel:
    """Open two or more stores or temperature grids, and align their questions by content.

    Raises:
        InputError: If there are fewer than two different stores, if the questions differ and `shared` is False, if
            grades are missing, if grading rules differ, or if fewer than two questions have a known grade in every
            store.
    """
    stores = [store for path in paths for store in open_stores(path).values()]
    grader = stores[0].grades.choose(grader)
    tables = [load_table(store, grader) for store in stores]
    if len({store.sha256 for store in stores}) < max(2, len(stores)):
        raise too_few_stores(", ".join(map(str, paths)))
    _check_rules(stores, grader)
    rows = shared_rows(stores)
    if not rows.size or (not shared and rows.shape[1] < max(len(table.ids) for table in tables)):
        pairs = zip(stores, tables, strict=True)
        sizes = " and ".join(f"'{store.path}' has {len(table.ids)}" for store, table in pairs)
        hint = "Pass --shared true to compare them on the shared questions." if rows.size else "Pass other stores."
        raise InputError(
            f"Expected the stores to have the same questions, but only {rows.shape[1]} questions are shared "
            f"({sizes}).{'' if rows.size else _first_difference(stores)} {hint}"
        )
    known = np.stack([table.known[of_store] for table, of_store in zip(tables, rows, strict=True)]).min(0) > 0
    if known.sum() < 2:
        raise InputError(
            f"Expected at least two questions to have known grades from {grader!r} in every store, but found "
            f"{known.sum()}. Grade the answers with a different grader."
        )
    names = [store.path.resolve().name for store in stores]
    if len(set(names)) < len(names):
        names = [str(store.path) for store in stores]
    return Panel(names, stores, tables, rows[:, known], rows.shape[1])


def shared_rows(stores: Sequence[Store]) -> Labels:
    """Return the rows [store, question] of the shared questions, in the order of the first store."""
    if len({store.identity["questions"] for store in stores}) == 1:
        return np.tile(np.arange(len(stores[0].questions)), (len(stores), 1))
    rows_of = [{sha256_json(_content(question)): row for row, question in enumerate(s.questions)} for s in stores]
    keys = [key for key in rows_of[0] if all(key in rows for rows in rows_of)]
    return np.array([[rows[key] for key in keys] for rows in rows_of], dtype=np.int64)


def _content(question: Question) -> dict[str, Any]:
    """Return all fields of a question except `dataset`, which is a file name if the questions were imported."""
    return question.record() | {"dataset": ""}


def _first_difference(stores: Sequence[Store]) -> str:
    of_first = {question.id: _content(question) for question in stores[0].questions}
    for question in (question for store in stores[1:] for question in store.questions if question.id in of_first):
        if line := next(differences(_content(question), of_first[question.id]), ""):
            return f" Questions with the id {question.id!r} differ in `{line.partition(':')[0]}`."
    return ""


def _check_rules(stores: Sequence[Store], grader: str) -> None:
    """Check that the grader applied the same rule in all stores. Grades without a recorded rule are ignored."""
    store_of = {store.grades.rule(grader, part): store for store in stores for part in store.grades.ranges(grader)}
    store_of.pop("", None)
    if len(store_of) > 1:
        rules = "; ".join(f"'{store.path}': {rule}" for rule, store in store_of.items())
        raise InputError(
            f"Expected grader {grader!r} to apply the same rule in every store, but got {one_line(rules, 1000)}. Grade "
            "the answers in all stores again with this grader."
        )


def clusters_of(questions: Sequence[Question], column: str) -> Labels:
    """Return the index [question] int64 of each question's cluster.

    `column` is ``group``, ``dataset``, or ``meta.KEY`` for a key of `meta` whose values are strings or numbers.
    """
    names = [_field(question, column) for question in questions]
    if missing := names.count(""):
        known = ["group", "dataset", *sorted({f"meta.{key}" for question in questions for key in question.meta})]
        raise InputError(
            f"Expected `clusters` to name a field that all questions have, but {missing} of {len(questions)} questions "
            f"lack {column!r}.{nearest(column, known)} The known fields are {', '.join(known)}."
        )
    number = np.unique(names, return_inverse=True)[1]
    if number.max() < 1:
        raise InputError(
            f"Expected `clusters` to divide the questions into at least two clusters, but {column!r} is {names[0]!r} "
            "for all questions. Leave out `clusters`, or pass a different field."
        )
    return number.astype(np.int64)


def _field(question: Question, column: str) -> str:
    fields = {"group": question.group, "dataset": question.dataset}
    fields |= {f"meta.{key}": question.meta_label(key) for key in question.meta}
    return fields.get(column, "")


def read_confidences(sources: Sequence[str], panel: Panel) -> Values:
    """Read the confidences [store, question] from one source for all stores or one source per store.

    Missing confidences are NaN. If one file is used for all stores, its question ids are looked up in the first store.
    """
    n = len(panel.stores)
    if len(sources) not in (0, 1, n):
        raise InputError(
            f"Expected `confidences` to contain one source, or {n} sources in the order of the stores, but got "
            f"{len(sources)}."
        )
    if not sources:
        return np.empty((0, panel.rows.shape[1]))
    if len(sources) == 1 and not Path(sources[0]).is_dir():  # a table does not depend on the store
        others = {question.id for store in panel.stores[1:] for question in store.questions}
        values = np.tile(read_confidence(sources[0], panel.stores[0], others)[panel.rows[0]], (n, 1))
    else:
        of_stores = [*sources] * n if len(sources) == 1 else sources
        columns = zip(of_stores, panel.stores, panel.rows, strict=True)
        values = np.array([read_confidence(source, store)[rows] for source, store, rows in columns])
    if (n_found := np.isfinite(values).all(0).sum()) < 2:
        raise InputError(
            f"Expected at least two of the {values.shape[1]} compared questions to have a confidence in every store, "
            f"but found {n_found}. Pass confidences for the questions that the stores share."
        )
    return values
