"""Cross-validation by question."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator

import lightning as L
import torch
from torch import Tensor

from datamodules import FeatureDataModule, QuestionTable
from datamodules.table import split_rows
from extract.errors import InputError
from probes.fitting.module import ProbeModule
from probes.fitting.quiet import quiet_lightning
from probes.registry import ProbeMethod

#: Fraction of the questions outside the test fold that are used for validation.
VAL_SHARE = 0.25


def data_of(method: ProbeMethod, store: str, grader: str | None) -> FeatureDataModule:
    """Return a datamodule of a store, with the target and the features of a method."""
    return FeatureDataModule(
        store,
        grader=grader,
        target=method.target,
        signal=method.signal,
        positions=list(method.positions),
        join=list(method.join) or None,
    )


def folds(
    table: QuestionTable, questions: Tensor, n_folds: int, seed: int, least_val: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the `train`, `val` and `test` rows of each fold. All splits are stratified by question group.

    `questions` are rows of the question table. Each fold needs at least `least_val` validation questions.
    """
    if n_folds < 2:
        raise InputError(f"Expected `folds` to be at least 2, but got {n_folds}. The default is 5.")
    least = max(4 * n_folds, math.ceil(least_val / VAL_SHARE * n_folds / (n_folds - 1)))
    if len(questions) < least:
        raise InputError(
            f"Expected at least {least} questions with at least two graded answers each, but got {len(questions)}. "
            f"Each of the {n_folds} folds needs {least_val} validation questions. Use fewer folds or more questions."
        )
    for test in split_rows(table, questions, [1 / n_folds] * n_folds, seed):
        rest = questions[~torch.isin(questions, test)]
        train, val = split_rows(table, rest, [1 - VAL_SHARE, VAL_SHARE], seed + 1)
        yield {"train": train, "val": val, "test": test}


def fold_of_questions(tests: Iterable[Tensor], n_questions: int) -> Tensor:
    """Return the test fold [question] of each row of the question table; −1 if there is none."""
    fold = torch.full((n_questions,), -1)
    for number, test in enumerate(tests):
        fold[test] = number
    return fold


def fit(make: Callable[[], ProbeModule], data: FeatureDataModule, epochs: int, seed: int) -> ProbeModule:
    """Fit a probe, choose its hyperparameters and calibrate it, using the training and validation splits."""
    with warnings.catch_warnings():
        quiet_lightning()
        L.seed_everything(seed, verbose=False)
        module = make()
        trainer = L.Trainer(
            max_epochs=epochs,
            check_val_every_n_epoch=min(10, epochs),
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, data)
    return module.cpu()
