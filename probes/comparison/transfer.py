"""Transfer: a probe trained on each set or kind of questions, tested on each. Its record, for machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule
from extract.errors import InputError
from extract.policy import differences
from probes.comparison.folds import VAL_SHARE, fit, folds, split_rows
from probes.metrics.intervals import Interval, bootstrap
from probes.registry import PROBES
from probes.report.evaluate import Scored, metric_of, usable
from probes.report.results import FORMAT_VERSION, versions

#: Questions that a set has to have to be trained on or tested on.
LEAST_QUESTIONS = 20
#: A kind of question may be small; its intervals say so.
LEAST_VALIDATION_OF_A_SET = 4
#: The row of probes that were trained on all other sets.
OTHERS = "all others"


class QuestionSet(NamedTuple):
    """Some questions of one store.

    Attributes:
        name: Name of the set.
        data: The store's data.
        questions: [question] rows of its question table.
    """

    name: str
    data: FeatureDataModule
    questions: Tensor


class Cell(NamedTuple):
    """How a probe that was trained on one set does on another.

    Attributes:
        train: Name of the training set, or `OTHERS`.
        test: Name of the test set.
        n_questions: Questions that were tested.
        auroc: AUROC with its interval.
        brier_skill: Skill over the mean accuracy of the tested questions.
    """

    train: str
    test: str
    n_questions: int
    auroc: Interval | None
    brier_skill: Interval | None


def question_sets(stores: Sequence[str], grader: str | None, probe: str) -> tuple[list[QuestionSet], dict[str, str]]:
    """The sets to go between: the stores, or the groups of the only one; and why others are left out.

    Raises:
        InputError: Unknown probe, stores between which a probe can't go, or less than two sets that are large enough.
    """
    method = PROBES[probe]
    if not stores:
        raise InputError(
            "Expected `stores` to name at least one store, but it is empty. Give --stores '[stores/facts]'."
        )
    names = [Path(store).resolve().name for store in stores]
    if len(set(names)) < len(names):
        raise InputError(
            f"Expected `stores` of different names, by which the sets are told apart, but got {', '.join(names)}. Rename a folder."
        )
    loaded = [
        FeatureDataModule(
            store, grader=grader, target=method.target, signal=method.signal, positions=list(method.positions)
        )
        for store in stores
    ]
    for i, data in enumerate(loaded):
        data.load()
        for earlier in loaded[:i]:
            _check_alike(earlier, data)
    if len(loaded) == 1:
        data, questions = loaded[0], loaded[0].every().question
        of_group: dict[str, list[int]] = {}
        for row in questions.tolist():
            of_group.setdefault(data.table.groups[row], []).append(row)
        sets = [QuestionSet(group, data, torch.tensor(rows)) for group, rows in sorted(of_group.items())]
    else:
        sets = [QuestionSet(name, data, data.every().question) for name, data in zip(names, loaded, strict=True)]
    large = [one for one in sets if len(one.questions) >= LEAST_QUESTIONS]
    if len(large) < 2:
        raise InputError(
            f"Expected at least two sets of {LEAST_QUESTIONS} questions, but got {', '.join(f'{one.name!r} of {len(one.questions)}' for one in sets)}. Give several --stores, or one whose questions have groups."
        )
    return large, {
        one.name: f"{len(one.questions)} questions, of which {LEAST_QUESTIONS} are needed"
        for one in sets
        if one not in large
    }


def _check_alike(first: FeatureDataModule, other: FeatureDataModule) -> None:
    """Refuse two stores between which a probe can't go, or would be tested on what it was trained on.

    Raises:
        InputError: Another model or other features, or questions that both have.
    """
    pair = f"{other.store_path!r} and {first.store_path!r}"
    wrong = list(differences(other.store.model, first.store.model))
    if wrong:
        raise InputError(
            f"Expected `stores` of one model, but {pair} differ in {'; '.join(wrong)}. A probe reads the states of the model that it was trained on."
        )
    if (other.feature_names, other.pooled) != (first.feature_names, first.pooled):
        raise InputError(
            f"Expected `stores` with the same layers and positions, but {pair} hold {len(other.feature_names)} and {len(first.feature_names)} that are not the same. Read both with the same --layers."
        )
    shared = set(other.table.ids) & set(first.table.ids)
    if shared:
        raise InputError(
            f"Expected `stores` of different questions, but {pair} share {len(shared)}, for example {min(shared)!r}: a probe would be tested on questions that it was trained on. Use other questions."
        )


def transfer_record(
    sets: Sequence[QuestionSet], masked: dict[str, str], probe: str, n_folds: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Everything that a transfer says: ``cells``, one a pair of training and test set, and ``masked``, what is left out and why.

    A set is tested by probes of its own out of fold. The groups of one store also get a row of probes that were trained
    on all other groups.
    """
    one_store = len({id(one.data) for one in sets}) == 1
    cells: list[Cell] = []
    masked = dict(masked)
    with tqdm(total=len(sets) * (2 + one_store), desc="transfer", unit=" sets") as progress:
        for own in sets:
            others = [one for one in sets if one is not own]
            rest = torch.cat([one.questions for one in others]).sort().values
            try:
                cells.append(_within(own, probe, n_folds, seed, n_resamples))
                progress.update()
                cells += _Trained(probe, own.data, own.questions, seed).cells(own.name, others, n_resamples)
            except InputError as error:
                masked[f"trained on {own.name}"] = str(error)
            progress.update()
            if one_store:
                try:
                    cells += _Trained(probe, own.data, rest, seed).cells(OTHERS, [own], n_resamples)
                except InputError as error:
                    masked[f"trained on all but {own.name}"] = str(error)
                progress.update()
    if not cells:
        raise InputError(
            f"Expected a set to train on, but there is none. {'; '.join(f'{k}: {v}' for k, v in masked.items())}"
        )
    stores = list({one.data.store_path: one.data for one in sets}.values())
    return {
        "format_version": FORMAT_VERSION,
        "stores": [
            {"identity": data.store.sha256, "policy": data.store.identity["policy"], "grader": data.table.grader}
            for data in stores
        ],
        "probe": probe,
        "folds": n_folds,
        "n_resamples": n_resamples,
        "seed": seed,
        "versions": versions(),
        "masked": masked,
        "cells": [cell._asdict() for cell in cells],
    }


class _Trained:
    """A probe trained, chosen and calibrated on some questions of a store."""

    def __init__(self, probe: str, data: FeatureDataModule, questions: Tensor, seed: int) -> None:
        part = split_rows(data.table, questions, [1 - VAL_SHARE, VAL_SHARE], seed + 1)  # as in a comparison
        every = data.every().question
        rest = every[~torch.isin(every, questions)]
        data.use_split({"train": part[0].tolist(), "val": part[1].tolist(), "test": rest.tolist()})
        self._seed = seed
        self._module = fit(PROBES[probe].load(), data, PROBES[probe].epochs, seed)

    @torch.no_grad()
    def scored(self, one: QuestionSet) -> Scored:
        """Its confidences in the questions of a set."""
        every = one.data.every()
        batch = every.take(torch.isin(every.question, one.questions).nonzero()[:, 0])
        return Scored(self._module.predict(batch.features).double(), batch.right, batch.known)

    def cells(self, name: str, sets: Sequence[QuestionSet], n_resamples: int) -> list[Cell]:
        """How it does on other sets."""
        return [_cell(name, one, self.scored(one), n_resamples, self._seed) for one in sets]


def _within(own: QuestionSet, probe: str, n_folds: int, seed: int, n_resamples: int) -> Cell:
    """The cell of a set with itself, out of fold."""
    data, found = own.data, []
    for fold in folds(data.table, own.questions, n_folds, seed, LEAST_VALIDATION_OF_A_SET):
        trained = _Trained(probe, data, torch.cat([fold.rows["train"], fold.rows["val"]]).sort().values, seed)
        one = trained.scored(QuestionSet(own.name, data, fold.rows["test"]))
        found.append((one.confidence, one.right, one.known, torch.full_like(one.right, fold.number)))
    confidence, right, known, number = (torch.cat(parts) for parts in zip(*found, strict=True))
    return _cell(own.name, own, Scored(confidence, right, known, fold=number.long()), n_resamples, seed)


def _cell(train: str, test: QuestionSet, scored: Scored, n_resamples: int, seed: int) -> Cell:
    one = scored.take(usable(scored))
    n, reference = one.n_questions, float((one.right / one.known).mean())
    auroc, skill = (
        bootstrap(metric_of(one, name, reference), n, n_resamples, seed) if n else None
        for name in ("auroc", "brier_skill")
    )
    return Cell(train, test.name, n, auroc, skill)
