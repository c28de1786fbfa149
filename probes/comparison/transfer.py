"""Transfer: a probe trained on each of several sets of questions and tested on each, with record and page."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule
from extract.errors import InputError
from extract.hashing import differences
from probes.comparison.folds import VAL_SHARE, fit, folds, split_rows
from probes.registry import PROBES, ProbeMethod
from probes.report.evaluate import Scored, estimate
from probes.report.results import FORMAT_VERSION, versions
from probes.report.templates import render

#: Minimum number of questions of a set.
LEAST_QUESTIONS = 20
#: Minimum number of validation questions in a fold. It admits small sets, whose intervals are wide.
LEAST_VALIDATION = 4
#: Name of the training set that consists of all sets except the tested one.
OTHERS = "all others"


class QuestionSet(NamedTuple):
    """A named set of questions of a store: [question] int64 rows of its question table."""

    name: str
    data: FeatureDataModule
    questions: Tensor


def transfer_record(
    stores: Sequence[str], grader: str | None, probe: str, n_folds: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """The record of a transfer between stores, or between the groups of questions of a single store.

    On the set that it is trained on, a probe is tested out of fold. The groups of a single store are also tested by
    probes trained on all other groups.

    Args:
        stores: Folders of the stores.
        grader: Grader whose grades are used. Optional if the stores have a single grader.
        probe: Name of the probe.
        n_folds: Number of folds.
        n_resamples: Number of resamples for each interval.
        seed: Seed of the folds, training and resamples.

    Returns:
        ``cells``: one per pair of training and test set, with `n_questions`, `auroc` and `brier_skill` (relative to
        the mean accuracy of the tested questions); ``masked``: reasons why sets are left out, by name.

    Raises:
        InputError: If the probe is unknown, the stores are incompatible, fewer than two sets are large enough, or no
            probe can be trained on any set.
    """
    every = _question_sets(stores, grader, PROBES[probe])
    sets = [group for group in every if len(group.questions) >= LEAST_QUESTIONS]
    if len(sets) < 2:
        sizes = ", ".join(f"{group.name!r} of {len(group.questions)}" for group in every)
        raise InputError(
            f"Expected at least two sets of at least {LEAST_QUESTIONS} questions, but got {sizes}. Give several "
            "--stores, or one store whose questions have groups."
        )
    masked = {
        group.name: f"{len(group.questions)} questions, but at least {LEAST_QUESTIONS} are needed"
        for group in every
        if len(group.questions) < LEAST_QUESTIONS
    }
    data_of = {group.data.store_path: group.data for group in sets}
    cells: list[dict[str, Any]] = []

    def cell(train: str, test: QuestionSet, scored: Scored) -> dict[str, Any]:
        scored = scored.take(scored.usable)
        reference = float((scored.right / scored.known).mean())
        metrics = {name: estimate(scored, name, n_resamples, seed, reference) for name in ("auroc", "brier_skill")}
        return {"train": train, "test": test.name, "n_questions": scored.n_questions, **metrics}

    with tqdm(total=len(sets) * (2 if len(data_of) == 1 else 1), desc="transfer", unit=" sets") as progress:
        for own in sets:
            others = [group for group in sets if group is not own]
            try:
                cells.append(cell(own.name, own, _out_of_fold(own, probe, n_folds, seed)))
                scored = _train(probe, own.data, own.questions, seed)
                cells += [cell(own.name, group, scored(group)) for group in others]
            except InputError as error:
                masked[f"trained on {own.name}"] = str(error)
            progress.update()
            if len(data_of) == 1:
                rest = torch.cat([group.questions for group in others]).sort().values
                try:
                    cells.append(cell(OTHERS, own, _train(probe, own.data, rest, seed)(own)))
                except InputError as error:
                    masked[f"trained on all but {own.name}"] = str(error)
                progress.update()
    if not cells:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in masked.items())
        raise InputError(f"Expected a set that a probe can be trained on, but got none. {reasons}")
    return {
        "format_version": FORMAT_VERSION,
        "stores": [
            {"identity": data.store.sha256, "policy": data.store.identity["policy"], "grader": data.table.grader}
            for data in data_of.values()
        ],
        "probe": probe,
        "folds": n_folds,
        "n_resamples": n_resamples,
        "seed": seed,
        "versions": versions(),
        "masked": masked,
        "cells": cells,
    }


def _question_sets(stores: Sequence[str], grader: str | None, method: ProbeMethod) -> list[QuestionSet]:
    """One set per store, or per group of questions of a single store."""
    names = [Path(store).resolve().name for store in stores]
    if not stores:
        raise InputError(
            "Expected `stores` to name at least one store, but it is empty. Give --stores '[stores/facts]'."
        )
    if len(set(names)) < len(names):
        raise InputError(
            f"Expected `stores` with different names, because sets are named after stores, but got {', '.join(names)}. "
            "Rename a folder."
        )
    loaded: list[FeatureDataModule] = []
    for store in stores:
        data = FeatureDataModule(store, None, grader, method.target, method.signal, list(method.positions))
        data.load()
        for earlier in loaded:
            _check_compatible(earlier, data)
        loaded.append(data)
    if len(loaded) > 1:
        return [QuestionSet(name, data, data.every().question) for name, data in zip(names, loaded, strict=True)]
    (data,), of_group = loaded, defaultdict(list)
    for row in data.every().question.tolist():
        of_group[data.table.groups[row]].append(row)
    return [QuestionSet(group, data, torch.tensor(rows)) for group, rows in sorted(of_group.items())]


def _check_compatible(first: FeatureDataModule, other: FeatureDataModule) -> None:
    """Reject stores of different models or features, and stores that share questions."""
    pair = f"{other.store_path!r} and {first.store_path!r}"
    if wrong := list(differences(other.store.model, first.store.model)):
        raise InputError(
            f"Expected `stores` of one model, but {pair} differ in {'; '.join(wrong)}. A probe only reads states of "
            "the model it was trained on."
        )
    if (other.feature_names, other.pooled) != (first.feature_names, first.pooled):
        raise InputError(
            f"Expected `stores` with the same layers and positions, but {pair} have {len(other.feature_names)} and "
            f"{len(first.feature_names)} features that differ. Read both with the same --layers."
        )
    if shared := set(other.table.ids) & set(first.table.ids):
        raise InputError(
            f"Expected `stores` of different questions, but {pair} share {len(shared)}, for example {min(shared)!r}. A "
            "probe would be tested on its training questions. Use other questions."
        )


def _train(probe: str, data: FeatureDataModule, questions: Tensor, seed: int) -> Callable[[QuestionSet], Scored]:
    """Train, choose and calibrate a probe on some questions of a store; return a function that scores a set."""
    train, val = split_rows(data.table, questions, [1 - VAL_SHARE, VAL_SHARE], seed + 1)  # as in a comparison
    every = data.every().question
    rest = every[~torch.isin(every, questions)]
    data.use_split({"train": train.tolist(), "val": val.tolist(), "test": rest.tolist()})
    module = fit(PROBES[probe].load(), data, PROBES[probe].epochs, seed)

    @torch.no_grad()
    def scored(group: QuestionSet) -> Scored:
        every = group.data.every()
        batch = every.take(torch.isin(every.question, group.questions).nonzero()[:, 0])
        return Scored(module.predict(batch.features).double(), batch.right, batch.known)

    return scored


def _out_of_fold(own: QuestionSet, probe: str, n_folds: int, seed: int) -> Scored:
    """Out-of-fold confidences for a set."""
    parts = []
    for number, rows in enumerate(folds(own.data.table, own.questions, n_folds, seed, LEAST_VALIDATION)):
        train = torch.cat([rows["train"], rows["val"]]).sort().values
        scored = _train(probe, own.data, train, seed)(own._replace(questions=rows["test"]))
        parts.append((scored.confidence, scored.right, scored.known, torch.full_like(scored.right, number)))
    confidence, right, known, fold = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return Scored(confidence, right, known, fold=fold.long())


def sets_of(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the training and test sets of a record in the order of its cells, `OTHERS` last."""
    trains, tests = (list(dict.fromkeys(cell[end] for cell in record["cells"])) for end in ("train", "test"))
    trains.sort(key=lambda name: name == OTHERS)
    return trains, sorted(tests, key=lambda name: trains.index(name) if name in trains else len(trains))


def transfer_page(record: dict[str, Any]) -> str:
    """Markdown page of a transfer, from its record."""
    trains, tests = sets_of(record)
    cells = record["cells"]
    return render(
        "comparison/transfer.md.j2",
        record=record,
        trains=trains,
        tests=tests,
        cells={(cell["train"], cell["test"]): cell for cell in cells},
        n_questions={cell["test"]: cell["n_questions"] for cell in cells},
        own=[cell for cell in cells if cell["train"] == cell["test"]],
        transfers=[cell for cell in cells if cell["train"] not in (cell["test"], OTHERS)],
    )
