"""Average a store's results over questions that have the same form and concern the same fact."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.questions.question import Question

Values = NDArray[np.float64]
Labels = NDArray[np.int64]
LIKELIHOOD = "likelihood"


class Cells(NamedTuple):
    """Results for each form and pair. A pair contains all questions about the same fact. A form is a kind of phrasing.

    Attributes:
        pairs: Values of ``meta.pair``, sorted.
        forms: Values of ``meta.form``, sorted.
        n_questions: Number of questions with a known grade, [form, pair].
        n_answers: Number of graded answers to these questions, [form, pair].
        accuracy: Mean accuracy on these questions, [form, pair]; NaN if there are none.
        likelihood: Mean log-probability per token of the correct continuation, in nats, [form, pair]; NaN if unknown.
        n_left_out: Number of questions without a pair, a form or a known grade.
    """

    pairs: list[str]
    forms: list[str]
    n_questions: Labels
    n_answers: Labels
    accuracy: Values
    likelihood: Values
    n_left_out: int


def read_cells(table: QuestionTable, questions: Sequence[Question]) -> Cells:
    """Average the accuracies and likelihoods of questions that have the same `meta.pair` and `meta.form`.

    Both fields must be strings or numbers. Questions with other values are left out.
    """
    labels = [(question.meta_label("pair"), question.meta_label("form")) for question in questions]
    rows = [row for row, (pair, form) in enumerate(labels) if pair and form and table.known[row]]
    pairs, pair = np.unique([labels[row][0] for row in rows], return_inverse=True)
    forms, form = np.unique([labels[row][1] for row in rows], return_inverse=True)
    if len(forms) < 2:
        raise InputError(
            f"Expected graded questions in at least two forms, but the forms are: {', '.join(forms) or 'none'}. Add "
            "`meta.pair` (the fact) and `meta.form` (the phrasing, such as exact or paraphrased) to each question."
        )

    def total(values: NDArray[np.generic]) -> Values:
        sums = np.zeros((len(forms), len(pairs)))
        np.add.at(sums, (form, pair), values)
        return sums

    asked = table.asked.get(LIKELIHOOD)
    likelihood = np.full(len(rows), np.nan) if asked is None else target_likelihoods(asked)[rows]
    n_questions = total(np.ones(len(rows)))
    with np.errstate(invalid="ignore"):
        accuracy = total(table.accuracy[rows]) / n_questions
        mean_likelihood = total(np.nan_to_num(likelihood)) / total(np.isfinite(likelihood))
    has = (n_questions > 0).astype(np.int64)
    if np.triu(has @ has.T, 1).max() < 2:
        raise InputError(
            f"Expected at least one pair of forms (from {', '.join(forms)}) to have two or more facts in common, but "
            "no pair does. Give all questions about the same fact the same `meta.pair`."
        )
    return Cells(
        pairs=pairs.tolist(),
        forms=forms.tolist(),
        n_questions=n_questions.astype(np.int64),
        n_answers=total(table.known[rows]).astype(np.int64),
        accuracy=accuracy,
        likelihood=mean_likelihood,
        n_left_out=len(labels) - len(rows),
    )


def target_likelihoods(asked: pa.Table) -> Values:
    """Return the mean log-probability per token of the correct continuation, in nats, [question]."""
    columns = (asked[name].to_pylist() for name in ("logprobs", "n_tokens", "target"))
    return np.array(
        [
            np.nan if target is None else logprobs[target] / n_tokens[target]
            for logprobs, n_tokens, target in zip(*columns, strict=True)
        ]
    )
