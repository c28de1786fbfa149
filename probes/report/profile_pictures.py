"""How much entropy is left after every layer, for right and for wrong answers, and by how much they differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from datamodules import QuestionTable
from extract.errors import InputError
from extract.signals.pooling import pool
from extract.store.store import Store
from probes.metrics.intervals import Interval, WeightedMetric, bootstrap, paired_bootstrap
from probes.report.plots import BLUE, GREY, INK, RED, new_figure, styled


class Profile(NamedTuple):
    """Mean entropies of the answers after every layer, in nats, with 95 % intervals over questions, pointwise.

    Attributes:
        layers: Numbers of the layers.
        right: [layer] of the right answers; None where there is no interval.
        wrong: [layer] of the wrong answers.
        difference: [layer] wrong − right, over the same resamples.
        n_answers: Right and wrong answers.
        n_questions: Questions with a right answer, and questions with a wrong one.
        n_missing: Graded answers without a value: those without tokens, and those that could not be read.
    """

    layers: list[int]
    right: list[Interval | None]
    wrong: list[Interval | None]
    difference: list[Interval | None]
    n_answers: tuple[int, int]
    n_questions: tuple[int, int]
    n_missing: int

    def record(self) -> dict[str, Any]:
        """The profile as plain JSON types."""
        return dict(self._asdict())


def read_profile(store: Store, table: QuestionTable, n_resamples: int = 2000, seed: int = 0) -> Profile:
    """The profile of a store's answers: the mean over an answer's tokens, and then over answers.

    Raises:
        InputError: The entropies were not read, or no graded answers of both kinds have them.
    """
    keys = [key for key in store.signals.keys("entropy_profile", "sample") if key.endswith("/entropy")]
    means = torch.stack([pool(store.signals.read_ragged("entropy_profile", key, "sample"), "mean") for key in keys])
    answers = table.answers
    right, known, question = (torch.from_numpy(one) for one in (answers.right, answers.known, answers.question))
    layers = [int(key.split("/")[0]) for key in keys]
    return profile(layers, means, right, known, question, n_resamples, seed)


def profile(
    layers: list[int],
    means: Tensor,
    right: Tensor,
    known: Tensor,
    question: Tensor,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Profile:
    """Means of right and of wrong answers, whose intervals resample questions with all their answers.

    Args:
        layers: Numbers of the layers.
        means: [layer, row] mean entropy of each answer in nats; NaN for an answer without one.
        right: [row] 1 where the answer is right.
        known: [row] 1 where it is graded right or wrong.
        question: [row] int64, its question.
        n_resamples: Resamples of the questions.
        seed: Seed of the resamples, which are the same for every layer.

    Raises:
        InputError: No right answer, or no wrong one.
    """
    used = (known > 0) & means.isfinite().all(0)
    classes = used & (right > 0), used & (right == 0)
    if not all(one.any() for one in classes):
        raise InputError(
            f"Expected graded answers of both kinds with an entropy profile, but {int(classes[0].sum())} are right and {int(classes[1].sum())} wrong. Use a store of more or other questions."
        )
    place, n_questions = question[used].unique(return_inverse=True)[1], len(question[used].unique())

    def mean(layer: int, chosen: Tensor) -> WeightedMetric:
        """Mean over the chosen answers, by sums over the answers of each question."""
        mine = chosen[used]
        per_answer = torch.stack([mine.double(), means[layer, used].double() * mine])
        counts, sums = torch.zeros(2, n_questions, dtype=torch.float64).index_add_(1, place, per_answer)
        return lambda weights: (weights @ sums) / (weights @ counts)

    places = range(len(layers))
    options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    bands = [[bootstrap(mean(i, chosen), n_questions, **options) for i in places] for chosen in classes]
    between = [paired_bootstrap(mean(i, classes[1]), mean(i, classes[0]), n_questions, **options) for i in places]
    n_answers = int(classes[0].sum()), int(classes[1].sum())
    of_questions = len(question[classes[0]].unique()), len(question[classes[1]].unique())
    n_missing = int((known > 0).sum()) - sum(n_answers)
    return Profile(layers, bands[0], bands[1], between, n_answers, of_questions, n_missing)


@styled
def profile_picture(found: Profile, model: str) -> Figure:
    """Mean entropy by layer of right and of wrong answers, beside the difference between them."""
    figure, (left, right) = new_figure(8.4, 3.5, ncols=2)
    kinds = (("wrong", found.wrong, RED, "--", 1), ("right", found.right, BLUE, "-", 0))
    for name, bands, colour, style, number in kinds:
        label = f"{name}: {found.n_answers[number]:,} answers to {found.n_questions[number]:,} questions"
        _band(left, found.layers, bands, colour, style, label)
    left.set(xlabel="layer", ylabel="mean entropy (nats)", ylim=(0, None))
    left.legend(fontsize=8)
    right.axhline(0, color=GREY, lw=1)
    _band(right, found.layers, found.difference, INK, "-", None)
    right.set(xlabel="layer", ylabel="wrong − right (nats)")
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    missing = f", {found.n_missing:,} answers without entropies left out" if found.n_missing else ""
    figure.suptitle(f"{model}: entropy after every layer, pointwise 95 % bands over questions{missing}", fontsize=10)
    return figure


def _band(
    axis: Axes, layers: list[int], bands: list[Interval | None], colour: str, style: str, label: str | None
) -> None:
    held = [(layer, band) for layer, band in zip(layers, bands, strict=True) if band is not None]
    x = [layer for layer, _ in held]
    axis.fill_between(x, [band["low"] for _, band in held], [band["high"] for _, band in held], color=colour, alpha=0.2, lw=0)  # fmt: skip
    axis.plot(x, [band["value"] for _, band in held], color=colour, lw=1.6, ls=style, label=label)
