"""Tests of probes on question sets that were left out of training, with and without back-off."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from matplotlib.figure import Figure
from torch import Tensor

from probes.metrics.intervals import bootstrap
from probes.report.evaluate import Scored, difference, estimate
from probes.report.plots import BLUE, GREY, RED, new_figure, styled
from probes.saved.novelty import Confidences

#: Name of the row for all left-out sets together.
ALL_SETS = "all sets"
_METRICS = ("auroc", "brier", "ece_width")


class LeftOut(NamedTuple):
    """Confidences for the questions of a left-out set, from a probe trained on all other sets.

    Attributes:
        raw: Confidences without back-off, [question] float64.
        found: Novelty of the questions, and confidences after back-off, [question] each.
        right, known: Number of right answers and number of graded answers, [question].
        training_mean: Mean accuracy of the probe's training questions, [question] float64.
        own: Index of the set that contains the question, [question] int64.
    """

    raw: Tensor
    found: Confidences
    right: Tensor
    known: Tensor
    training_mean: Tensor
    own: Tensor

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the questions of several sets."""
        raw, found, *columns = zip(*parts, strict=True)
        return cls(
            torch.cat(raw), Confidences._make(map(torch.cat, zip(*found, strict=True))), *map(torch.cat, columns)
        )


def left_out_record(name: str, scores: LeftOut, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute the mean novelty of left-out questions, and metrics with and without back-off.

    The AUROC includes only pairs of questions from the same set.
    """
    resampling = {"n_resamples": n_resamples, "seed": seed}
    confidences = {"raw": scores.raw, "backed_off": scores.found.confidence.double()}
    scored = {how: Scored(values, scores.right, scores.known, fold=scores.own) for how, values in confidences.items()}
    novelty, n = scores.found.novelty.double(), len(scores.raw)
    figures = {
        how: {
            **{metric: estimate(one, metric, **resampling) for metric in _METRICS},
            "brier_skill": estimate(one, "brier_skill", reference=scores.training_mean, **resampling),
        }
        for how, one in scored.items()
    }
    paired = {
        metric: difference(scored["backed_off"], scored["raw"], metric, **resampling) for metric in ("auroc", "brier")
    }
    return {
        "test": name,
        "n_questions": n,
        "accuracy": float((scores.right / scores.known).mean()),
        "training_mean": float(scores.training_mean.mean()),
        "novelty": bootstrap(lambda weights: weights @ novelty / weights.sum(-1), n, **resampling),
        "is_novel": float(scores.found.is_novel.double().mean()),
        **figures,
        "difference": paired,
    }


@styled
def left_out_picture(rows: Sequence[dict[str, Any]]) -> Figure:
    """Plot the Brier scores of each left-out set with and without back-off, and their difference."""
    figure, (left, right) = new_figure(8.4, 1.4 + 0.42 * len(rows), ncols=2, sharey=True)
    for row, one in enumerate(rows):
        for how, colour, shift in (("raw", BLUE, -0.13), ("backed_off", RED, 0.13)):
            _interval(left, one[how]["brier"], row + shift, colour)
        _interval(right, one["difference"]["brier"], row, RED)
    for how, colour in (("raw", BLUE), ("backed off", RED)):
        left.plot([], [], color=colour, marker="o", ms=4.5, label=how)
    left.set_yticks(range(len(rows)), [f"{one['test']} ({one['n_questions']})" for one in rows], fontsize=8)
    left.set(xlabel="Brier score, 95 % interval", ylim=(len(rows) - 0.5, -0.5))
    right.axvline(0, color=GREY, lw=1, ls="--")
    right.set(xlabel="difference, backed off − raw, 95 % interval")
    right.locator_params(axis="x", nbins=5)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _interval(axes: Any, estimate: dict[str, float] | None, row: float, colour: str) -> None:
    if estimate is not None:
        axes.plot([estimate["low"], estimate["high"]], [row, row], color=colour, lw=1.6)
        axes.plot(estimate["value"], row, color=colour, marker="o", ms=4.5)
