"""Scores of questions from what is known before any answer: the training split's accuracy, the group, the prompt."""

from collections import defaultdict

import torch
from torch import Tensor

from datamodules.features import FeatureDataModule
from datamodules.table import QuestionTable
from extract.errors import InputError
from probes.fitting.calibration import fit_platt


def mean_accuracy(table: QuestionTable, rows: Tensor) -> float:
    """Mean expected accuracy of some questions."""
    return float(torch.from_numpy(table.accuracy)[rows].mean())


def constant(data: FeatureDataModule, rows: dict[str, Tensor]) -> Tensor:
    """Mean accuracy of the training split, for every question."""
    return torch.full((len(data.table.ids),), mean_accuracy(data.table, rows["train"]), dtype=torch.float64)


def base_rate(data: FeatureDataModule, rows: dict[str, Tensor]) -> Tensor:
    """Mean training accuracy of the question's group; of all questions for a group without training questions."""
    table, rows_of = data.table, defaultdict(list)
    for row in rows["train"].tolist():
        rows_of[table.groups[row]].append(row)
    means = {group: mean_accuracy(table, torch.tensor(members)) for group, members in rows_of.items()}
    overall = mean_accuracy(table, rows["train"])
    return torch.tensor([means.get(group, overall) for group in table.groups], dtype=torch.float64)


def length(data: FeatureDataModule, rows: dict[str, Tensor]) -> Tensor:
    """Prompt length in tokens through a logistic curve fitted on the training split, in the direction that fits.

    Raises:
        InputError: If a server did not report the prompt lengths.
    """
    tokens, train = torch.from_numpy(data.table.prompt_tokens), rows["train"]
    if tokens.isnan().any():
        raise InputError("Expected the tokens of every prompt, but the server did not report all. Use other baselines.")
    right, known = torch.from_numpy(data.table.right)[train], torch.from_numpy(data.table.known)[train]
    falling, rising = fit_platt(-tokens[train], right, known), fit_platt(tokens[train], right, known)
    return rising(tokens) if rising.slope > 0 else falling(-tokens)
