"""AUROC and Brier score of a probe as a function of the fraction of the answer that it has read."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from datamodules.features import FeatureDataModule
from probes.fitting.module import ProbeModule
from probes.report.evaluate import Scored, estimate
from probes.report.plots import BLUE, GREY, band, new_figure, styled
from probes.saved.prefixes import N_LENGTHS


@torch.no_grad()
def by_fraction(module: ProbeModule, data: FeatureDataModule, **resampling: Any) -> list[dict[str, Any]]:
    """Score a probe on prefixes of the test answers and on whole answers.

    Returns:
        A list with one dict per `fraction`. `auroc` and `brier` use the calibrator for that fraction. `brier_whole`
        uses the calibrator for whole answers. All three are computed by `estimate` with the options in `resampling`.
    """
    assert module.choice is not None
    batch, head, rows = data.batch("test", prefixes=True), module.head(), []
    scores = head(module.selected(batch.features, module.choice.features))
    calibrators = (*module.choice.prefixes, module.choice.calibrator)
    for fraction, calibrator in zip(data.feature_spec.fractions, calibrators, strict=True):
        of_fraction = batch.fraction == fraction

        def scored(calibrated: Tensor, rows: Tensor = of_fraction) -> Scored:
            return Scored(calibrated[rows].double(), batch.right[rows], batch.known[rows], batch.question[rows])

        own, whole = scored(calibrator(scores)), scored(module.choice.calibrator(scores))
        rows.append(
            {
                "fraction": fraction,
                **{name: estimate(own, name, **resampling) for name in ("auroc", "brier")},
                "brier_whole": estimate(whole, "brier", **resampling),
            }
        )
    return rows


def length_quantiles(data: FeatureDataModule) -> list[int]:
    """Return quantiles of answer lengths, in content tokens, over the training and validation splits."""
    n_tokens = data.feature_spec.n_tokens[data.batch("train", "val").row].double()
    levels = torch.linspace(0, 1, N_LENGTHS, dtype=torch.float64)
    return [int(n) for n in n_tokens.quantile(levels, interpolation="nearest")]


@styled
def prefix_curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot the results of `by_fraction` with 95 % bands."""
    figure, axes = new_figure(8.4, 3.2, ncols=2)
    percent = [round(100 * row["fraction"]) for row in rows]
    curves = (
        (0, "auroc", BLUE, "AUROC"),
        (1, "brier", BLUE, "calibrated by fraction"),
        (1, "brier_whole", GREY, "calibrated on whole answers"),
    )
    for column, name, colour, label in curves:
        band(axes[column], percent, [row[name] for row in rows], color=colour, lw=1.5, marker=".", label=label)
    for axis, label in zip(axes, ("AUROC", "Brier score"), strict=True):
        axis.set(xlabel="percent of the answer that was read", ylabel=label, xticks=percent)
    axes[1].legend(fontsize=8)
    figure.suptitle("Test split, 95 % intervals over questions", fontsize=10)
    return figure
