"""Baselines: confidences that read no hidden states. Fitted on train, calibrated on validation, like a probe."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules import QuestionTable
from probes.calibration import fit_platt


@dataclass(frozen=True)
class Scored:
    """A method's confidences for some questions, and the answers that they are scored on.

    Attributes:
        confidence: [question] float64 in [0, 1].
        right: [question] right answers.
        known: [question] graded answers.
    """

    confidence: Tensor
    right: Tensor
    known: Tensor


def constant(table: QuestionTable, rows: dict[str, Tensor]) -> Tensor:
    """The training split's mean accuracy, for every question of the table."""
    return torch.full((len(table.ids),), mean_accuracy(table, rows["train"]), dtype=torch.float64)


def mean_accuracy(table: QuestionTable, rows: Tensor) -> float:
    """Mean expected accuracy of some rows."""
    return float(torch.from_numpy(table.accuracy)[rows].mean())


def base_rate(table: QuestionTable, rows: dict[str, Tensor]) -> Tensor:
    """The training split's mean accuracy of the question's group; of all questions for a group not seen there."""
    seen: dict[str, list[float]] = defaultdict(list)
    for row in rows["train"].tolist():
        seen[table.groups[row]].append(float(table.accuracy[row]))
    overall = mean_accuracy(table, rows["train"])
    return torch.tensor(
        [sum(seen[g]) / len(seen[g]) if seen[g] else overall for g in table.groups], dtype=torch.float64
    )


def length(table: QuestionTable, rows: dict[str, Tensor]) -> Tensor:
    """Prompt length in tokens, through a logistic curve fitted on train; shorter or longer may be the better."""
    tokens = torch.from_numpy(table.prompt_tokens).double()
    train = rows["train"]
    right, known = torch.from_numpy(table.right)[train], torch.from_numpy(table.known)[train]
    falling, rising = fit_platt(-tokens[train], right, known), fit_platt(tokens[train], right, known)
    return rising(tokens) if rising.slope > 0 else falling(-tokens)


def consistency(table: QuestionTable, rows: dict[str, Tensor]) -> Tensor:
    """Share of the most frequent answer in one half of the samples, calibrated on validation.

    To be scored on the other half only: `held_right` and `held_known` of the table. NaN without answers, and for every
    question where the other half of the validation answers is all right or all wrong.
    """
    share = torch.from_numpy(table.consistency)
    val = rows["val"][(torch.from_numpy(table.held_known)[rows["val"]] > 0) & share[rows["val"]].isfinite()]
    held_right, held_known = torch.from_numpy(table.held_right), torch.from_numpy(table.held_known)
    if not 0 < int(held_right[val].sum()) < int(held_known[val].sum()):
        return torch.full_like(share, torch.nan)
    return fit_platt(share[val], held_right[val], held_known[val])(share)


#: A baseline gives [question] confidences for the whole table from the table and the rows of each split.
BASELINES = {"constant": constant, "base_rate": base_rate, "length": length, "consistency": consistency}
#: Baselines whose confidence uses one half of the samples, and which are scored on the other.
HALF_SAMPLE = frozenset({"consistency"})


def scored(table: QuestionTable, confidence: Tensor, rows: Tensor, half: bool) -> Scored:
    """Confidences of some rows with all their answers, or the held-out half of them."""
    right, known = (table.held_right, table.held_known) if half else (table.right, table.known)
    return Scored(confidence[rows].double(), torch.from_numpy(right)[rows], torch.from_numpy(known)[rows])
