"""Mean entropy after every layer of right and of wrong answers, and the difference between them, with its picture."""

from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.signals.pooling import pool
from extract.store.store import Store
from probes.metrics.functional.inputs import by_group
from probes.metrics.intervals import Interval, WeightedMetric, bootstrap, paired_bootstrap
from probes.report.plots import BLUE, GREY, INK, RED, band, new_figure, styled


class EntropyProfile(NamedTuple):
    """Mean entropies of answers after every layer in nats, [layer], with pointwise 95 % intervals over questions.

    Attributes:
        difference: Wrong − right, over the same resamples.
        n_answers: Number of right and of wrong answers.
        n_questions: Questions with a right answer, and questions with a wrong one.
        n_missing: Graded answers without entropies.
    """

    layers: list[int]
    right: list[Interval | None]
    wrong: list[Interval | None]
    difference: list[Interval | None]
    n_answers: tuple[int, int]
    n_questions: tuple[int, int]
    n_missing: int


def read_profile(store: Store, table: QuestionTable, n_resamples: int = 2000, seed: int = 0) -> EntropyProfile:
    """The profile of a store's answers: the mean over the tokens of an answer, then over answers.

    Raises:
        InputError: If the entropies are missing, or no right or no wrong answers have them.
    """
    keys = [key for key in store.signals.keys("entropy_profile", "sample") if key.endswith("/entropy")]
    means = torch.stack([pool(store.signals.read_ragged("entropy_profile", key, "sample"), "mean") for key in keys])
    layers, answers = [int(key.split("/")[0]) for key in keys], table.answers
    right, known, question = map(torch.from_numpy, (answers.right, answers.known, answers.question))
    return entropy_profile(layers, means, right, known, question, n_resamples, seed)


def entropy_profile(
    layers: list[int],
    means: Tensor,
    right: Tensor,
    known: Tensor,
    question: Tensor,
    n_resamples: int = 2000,
    seed: int = 0,
) -> EntropyProfile:
    """Means over right and over wrong answers, with intervals that resample questions with all their answers.

    Args:
        means: [layer, row] mean entropy of each answer in nats; NaN for none.
        right: [row] 1 if the answer is right.
        known: [row] 1 if it is graded right or wrong.
        question: [row] int64, its question.

    Raises:
        InputError: If there is no right or no wrong answer.
    """
    used = (known > 0) & means.isfinite().all(0)
    classes = used & (right > 0), used & (right == 0)
    n_answers = int(classes[0].sum()), int(classes[1].sum())
    if not all(n_answers):
        raise InputError(
            f"Expected right and wrong answers with an entropy profile, but {n_answers[0]} are right and "
            f"{n_answers[1]} wrong. Use a store of more or other questions."
        )
    own, place = question[used].unique(return_inverse=True)

    def mean(values: Tensor, rows: Tensor) -> WeightedMetric:
        """Mean over some answers, from their sums by question."""
        included = rows[used].double()
        counts, sums = by_group(torch.stack([included, values[used].double() * included]), place, len(own))
        return lambda weights: (weights @ sums) / (weights @ counts)

    of_right, of_wrong = ([mean(values, rows) for values in means] for rows in classes)
    options: dict[str, Any] = {"n_questions": len(own), "n_resamples": n_resamples, "seed": seed}
    return EntropyProfile(
        layers=layers,
        right=[bootstrap(metric, **options) for metric in of_right],
        wrong=[bootstrap(metric, **options) for metric in of_wrong],
        difference=[paired_bootstrap(*pair, **options) for pair in zip(of_wrong, of_right, strict=True)],
        n_answers=n_answers,
        n_questions=(len(question[classes[0]].unique()), len(question[classes[1]].unique())),
        n_missing=int((known > 0).sum()) - sum(n_answers),
    )


@styled
def profile_picture(profile: EntropyProfile, model: str) -> Figure:
    """Mean entropy by layer of right and of wrong answers, beside the difference between them."""
    figure, (left, right) = new_figure(8.4, 3.5, ncols=2)
    kinds = (("wrong", profile.wrong, RED, "--", 1), ("right", profile.right, BLUE, "-", 0))
    for name, intervals, colour, style, number in kinds:
        label = f"{name}: {profile.n_answers[number]:,} answers to {profile.n_questions[number]:,} questions"
        band(left, profile.layers, intervals, color=colour, lw=1.6, ls=style, label=label)
    left.set(xlabel="layer", ylabel="mean entropy (nats)", ylim=(0, None))
    left.legend(fontsize=8)
    right.axhline(0, color=GREY, lw=1)
    band(right, profile.layers, profile.difference, color=INK, lw=1.6)
    right.set(xlabel="layer", ylabel="wrong − right (nats)")
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    missing = f", {profile.n_missing:,} answers without entropies left out" if profile.n_missing else ""
    figure.suptitle(f"{model}: entropy after every layer, pointwise 95 % bands over questions{missing}", fontsize=10)
    return figure
