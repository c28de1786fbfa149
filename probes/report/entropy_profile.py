"""Entropy profile: the mean logit-lens entropy of right and of wrong answers at every layer."""

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from datamodules.table import AnswerTable, QuestionTable
from extract.errors import InputError
from extract.signals.pooling import pool
from extract.store.store import Store
from probes.metrics.functional.inputs import by_group
from probes.metrics.intervals import WeightedMetric, bootstrap, paired_bootstrap
from probes.report.plots import BLUE, GREY, INK, RED, band, new_figure, styled


def read_profile(store: Store, table: QuestionTable, n_resamples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Compute the `entropy_profile` of a store from the mean token entropy of each answer."""
    keys = [key for key in store.signals.keys("entropy_profile", "sample") if key.endswith("/entropy")]
    means = torch.stack([pool(store.signals.read_ragged("entropy_profile", key, "sample"), "mean") for key in keys])
    return entropy_profile([int(key.split("/")[0]) for key in keys], means, table.answers, n_resamples, seed)


def entropy_profile(
    layers: list[int], means: Tensor, answers: AnswerTable, n_resamples: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Compute the entropy profile from the mean entropy of each answer at each layer.

    `means` [layer, answer] contains the mean entropies in nats; NaN if missing.

    Returns:
        A dict. `right` and `wrong` contain the mean entropy in nats at each layer, with a pointwise 95 % interval.
        `difference` is `wrong` minus `right`. `n_answers` contains the number of right answers and the number of
        wrong answers. `n_questions` contains the number of questions with at least one right answer, and the number
        with at least one wrong answer. `n_missing` is the number of graded answers without entropies.

    Raises:
        InputError: If no right answer or no wrong answer has entropies.
    """
    right, known, question = map(torch.from_numpy, (answers.right, answers.known, answers.question))
    used = (known > 0) & means.isfinite().all(0)
    classes = used & (right > 0), used & (right == 0)
    n_answers = [int(rows.sum()) for rows in classes]
    if not all(n_answers):
        raise InputError(
            f"Expected at least one right and one wrong answer with entropies, but got {n_answers[0]} right and "
            f"{n_answers[1]} wrong answers. Use a store with more or different questions."
        )
    own, place = question[used].unique(return_inverse=True)

    def mean(values: Tensor, rows: Tensor) -> WeightedMetric:
        """Return the mean of the `values` selected by the mask `rows`, as a `WeightedMetric`."""
        included = rows[used].double()
        counts, sums = by_group(torch.stack([included, values[used].double() * included]), place, len(own))
        return lambda weights: (weights @ sums) / (weights @ counts)

    of_right, of_wrong = ([mean(values, rows) for values in means] for rows in classes)
    options: dict[str, Any] = {"n_questions": len(own), "n_resamples": n_resamples, "seed": seed}
    return {
        "layers": layers,
        "right": [bootstrap(metric, **options) for metric in of_right],
        "wrong": [bootstrap(metric, **options) for metric in of_wrong],
        "difference": [paired_bootstrap(*pair, **options) for pair in zip(of_wrong, of_right, strict=True)],
        "n_answers": n_answers,
        "n_questions": [len(question[rows].unique()) for rows in classes],
        "n_missing": int((known > 0).sum()) - sum(n_answers),
    }


@styled
def profile_picture(profile: dict[str, Any], model: str) -> Figure:
    """Plot the mean entropies of right and wrong answers by layer, and their difference, with 95 % bands."""
    figure, (left, right) = new_figure(8.4, 3.5, ncols=2)
    for number, name, colour, style in ((1, "wrong", RED, "--"), (0, "right", BLUE, "-")):
        n_answers, n_questions = profile["n_answers"][number], profile["n_questions"][number]
        label = f"{name}: {n_answers:,} answers to {n_questions:,} questions"
        band(left, profile["layers"], profile[name], color=colour, lw=1.6, ls=style, label=label)
    left.set(xlabel="layer", ylabel="mean entropy (nats)", ylim=(0, None))
    left.legend(fontsize=8)
    right.axhline(0, color=GREY, lw=1)
    band(right, profile["layers"], profile["difference"], color=INK, lw=1.6)
    right.set(xlabel="layer", ylabel="wrong − right (nats)")
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    missing = f" ({profile['n_missing']:,} answers without entropies are left out)" if profile["n_missing"] else ""
    figure.suptitle(f"{model}: entropy after every layer, pointwise 95 % bands over questions{missing}", fontsize=10)
    return figure
