"""Precision, recall, F1 and confusion matrix for answers that are classes, such as option letters."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from applications.intervals import estimate
from datamodules.table import QuestionTable
from extract.questions.question import Question
from extract.text import contains_answer
from probes.metrics.intervals import WeightedMetric

Values = NDArray[np.float64]
Labels = NDArray[np.int64]
#: Maximum number of classes.
MOST_CLASSES = 20
FIGURES = ("precision", "recall", "f1")


class Classes(NamedTuple):
    """Names of the classes, and the class index of each question's right answer, [question] int64."""

    names: list[str]
    truth: Labels


def find_classes(questions: Sequence[Question]) -> Classes | None:
    """Return the classes of the questions, or None if their answers are not classes.

    The class of a question is its first reference, such as the letter of the right option. Answers are treated as
    classes if there are 2 to 20 distinct classes and at least two questions per class on average. For private
    questions, the classes must also be option letters, because class names are displayed.
    """
    if any(question.private and question.kind != "choice" for question in questions):
        return None
    first = [question.references[0] for question in questions]
    letters = {chr(ord("A") + i) for question in questions for i in range(len(question.choices))}
    names = sorted({*first, *letters})
    if not 2 <= len(names) <= min(MOST_CLASSES, len(questions) // 2):
        return None
    number = {name: i for i, name in enumerate(names)}
    return Classes(names, np.array([number[name] for name in first]))


def answer_shares(table: QuestionTable, rows: Labels, questions: Sequence[Question], classes: Classes) -> Values:
    """Return the fraction of each question's graded answers in each class, [question, n_classes + 1] float64.

    A right answer is in the class of its question, and a wrong answer in the class that it names. The last column is
    for wrong answers that name no class, several classes or the class of their question. An answer names a class if it
    contains the class name or an alias as whole words. A one-letter name must be the entire answer, apart from
    punctuation.
    """
    n_classes, answers = len(classes.names), table.answers
    aliases: list[set[str]] = [{name} for name in classes.names]
    for question, truth in zip(questions, classes.truth, strict=True):
        if question.kind != "choice":
            aliases[truth] |= {*question.references}

    @cache
    def named_class(answer: str) -> int:
        found = [i for i, names in enumerate(aliases) if _names(answer, names)]
        return found[0] if len(found) == 1 else n_classes

    members_of = answers.rows_by_question(len(table.ids), answers.known > 0)
    shares = np.zeros((len(rows), n_classes + 1))
    for number, row in enumerate(rows):
        for member in members_of[row]:
            truth, right = classes.truth[number], answers.right[member]
            found = truth if right else named_class(answers.answer[member] or "")
            shares[number, n_classes if found == truth and not right else found] += 1 / len(members_of[row])
    return shares


def _names(answer: str, names: set[str]) -> bool:
    """Return whether an answer matches one of `names`.

    A one-letter name must be the entire answer, apart from punctuation. A longer name may occur anywhere in the answer,
    as whole words.
    """
    letters = {name for name in names if len(name) == 1 and name.isalpha()}
    return answer.strip(" .():") in letters or contains_answer(answer, names - letters)


def class_record(classes: Classes, shares: Values, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute the metrics of each class, and their macro averages. `shares` is the result of `answer_shares`.

    Precision is None for a class without answers. Recall and F1 are None for a class without questions. The macro
    average of a metric is its mean over the classes with questions, ignoring None.

    Returns:
        A dict with these entries:

        - `classes`: Name, number of questions and metrics of each class.
        - `macro`: Macro averages of the metrics.
        - `n_averaged`: Number of classes in each macro average.
        - `confusion`: Sums of `shares` over the questions of each class, [class, n_classes + 1].
    """
    n, n_classes = len(shares), len(classes.names)
    actual = np.eye(n_classes)[:, classes.truth]
    answered = shares[:, :-1].T
    hits = actual * answered
    parts = {"precision": (hits, answered), "recall": (hits, actual), "f1": (2 * hits, answered + actual)}
    sizes = actual.sum(1)

    def found(name: str, members: Sequence[int]) -> dict[str, Any] | None:
        above, below = (part[members] for part in parts[name])
        if not below.sum() or (name != "precision" and not sizes[members].sum()):
            return None
        return estimate(_mean_ratio(above, below), n, n_resamples, seed)

    members = np.flatnonzero(sizes)
    return {
        "classes": [
            {"name": name, "n_questions": int(sizes[i]), **{figure: found(figure, [i]) for figure in FIGURES}}
            for i, name in enumerate(classes.names)
        ],
        "macro": {figure: found(figure, members.tolist()) for figure in FIGURES},
        "n_averaged": {figure: int((parts[figure][1][members].sum(1) > 0).sum()) for figure in FIGURES},
        "confusion": (actual @ shares).tolist(),
    }


def _mean_ratio(above: Values, below: Values) -> WeightedMetric:
    """Return a function that maps resampling weights to the mean ratio over the classes.

    The numerator and the denominator are the weighted sums of `above` and `below` [class, question] over questions.
    """
    numerators, denominators = torch.from_numpy(above), torch.from_numpy(below)

    def metric(weights: torch.Tensor) -> torch.Tensor:
        sums = weights @ denominators.T
        defined = sums > 0
        ratios = torch.where(defined, (weights @ numerators.T) / sums.clamp_min(1e-9), 0.0)
        return ratios.sum(-1) / defined.sum(-1)

    return metric
