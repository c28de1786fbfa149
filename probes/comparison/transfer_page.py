"""A transfer as a page and a heat map for people."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from probes.comparison.transfer import OTHERS
from probes.report.plots import INK, new_figure, styled
from probes.report.templates import interval as cell
from probes.report.templates import table


def transfer_page(record: dict[str, Any]) -> str:
    """The matrix as Markdown."""
    left_out = "".join(f"\n- Left out, `{name}`: {reason}" for name, reason in record["masked"].items())
    stores = record["stores"]
    return f"""# Where a probe holds that was trained elsewhere

Probe `{record["probe"]}` of `{stores[0]["policy"]["model"]["id"]}`, graded by `{"`, `".join(sorted({one["grader"] for one in stores}))}`. Rows are what it was trained, chosen and calibrated on, columns what it is tested on; the same set by
{record["folds"]} folds. 95 % intervals over the tested questions.

## AUROC

Of a right and a wrong answer to two different questions, how often the right one's question has the higher confidence. Exactly ½ is a probe that found nothing on validation and says the same of all.

{_matrix(record, "auroc")}

## Brier skill

1 − Brier / Brier of the tested questions' own mean accuracy; below 0 where the probe is worse than someone who knows that mean and nothing else, which a probe that ranks well but was calibrated
elsewhere easily is.

{_matrix(record, "brier_skill")}
{left_out}

![transfer](plots/transfer.png)

Store identities {", ".join(f"`{one['identity']}`" for one in stores)}, seed {record["seed"]}, {", ".join(f"{name} {number}" for name, number in record["versions"].items())}.
"""


def _names(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Training and test sets in the order of the cells, what was trained on all others last."""
    trains, tests = (list(dict.fromkeys(one[end] for one in record["cells"])) for end in ("train", "test"))
    return sorted(trains, key=lambda name: name == OTHERS), [name for name in trains if name in tests] + [
        name for name in tests if name not in trains
    ]


def _matrix(record: dict[str, Any], metric: str) -> str:
    of_pair = {(one["train"], one["test"]): one for one in record["cells"]}
    trains, tests = _names(record)
    n = {one["test"]: one["n_questions"] for one in record["cells"]}
    rows = [
        [train, *(cell(of_pair[train, test][metric]) if (train, test) in of_pair else "" for test in tests)]
        for train in trains
    ]
    return table(["trained on", *(f"{test} ({n[test]})" for test in tests)], rows)


@styled
def transfer_picture(record: dict[str, Any]) -> Figure:
    """AUROC of every pair as a heat map, bold where the interval does not hold ½."""
    trains, tests = _names(record)
    figure, axes = new_figure(1.6 + 0.85 * len(tests), 1.2 + 0.5 * len(trains))
    values = torch.full((len(trains), len(tests)), torch.nan)
    for one in record["cells"]:
        if one["auroc"] is not None:
            values[trains.index(one["train"]), tests.index(one["test"])] = one["auroc"]["value"]
    image = axes.imshow(values.numpy(), cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for one in record["cells"]:
        interval = one["auroc"]
        if interval is not None:
            sure = not interval["low"] <= 0.5 <= interval["high"]
            axes.text(
                tests.index(one["test"]),
                trains.index(one["train"]),
                f"{interval['value']:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                fontweight="bold" if sure else "normal",
                color="white" if abs(interval["value"] - 0.5) > 0.3 else INK,
            )
    axes.set_xticks(range(len(tests)), tests, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(trains)), trains, fontsize=8)
    axes.set(xlabel="tested on", ylabel="trained on")
    axes.set_title("AUROC (bold: interval without ½)", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure
