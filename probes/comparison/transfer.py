"""Transfer between question sets: a probe is trained on each set and tested on every set."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule
from datamodules.batches import Batch
from datamodules.table import split_rows
from datamodules.union import UnionDataModule, check_features
from extract.errors import InputError
from probes.comparison.folds import VAL_SHARE, data_of, fit, folds
from probes.comparison.left_out import ALL_SETS, LeftOut, left_out_record
from probes.fitting.backoff import backed_off, fit_novelty
from probes.fitting.module import ProbeModule
from probes.registry import PROBES, ProbeMethod
from probes.report.evaluate import Scored, estimate
from probes.report.results import FORMAT_VERSION, versions
from probes.report.templates import render

#: Minimum number of questions in a question set.
LEAST_QUESTIONS = 20
#: Minimum number of validation questions in a fold.
LEAST_VALIDATION = 4
#: Name of the training set that combines all sets except the test set.
OTHERS = "all others"


class QuestionSet(NamedTuple):
    """A named set of questions in a store, with their rows in the question table."""

    name: str
    data: FeatureDataModule
    questions: Tensor


def transfer_record(
    stores: Sequence[str], grader: str | None, probe: str, n_folds: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Train a probe on each question set and test it on every set.

    Each store is a set. If there is only one store, each of its question groups is a set. On its own training set, a
    probe is tested out of fold. In addition, each set is left out in turn. A probe is trained on all other sets and
    tested on the left-out set, with and without back-off. Back-off shifts the confidences of novel questions towards
    the base rate.

    Returns:
        The content of transfer.json. `cells` contains a dict for each pair of a training set and a test set. Each dict
        contains `n_questions`, `auroc` and `brier_skill` (relative to the mean accuracy on the test questions).
        `left_out` contains the result of `left_out_record` for each set and for all sets together.
    """
    every = _question_sets(stores, grader, PROBES[probe])
    sets = [group for group in every if len(group.questions) >= LEAST_QUESTIONS]
    if len(sets) < 2:
        sizes = ", ".join(f"{group.name!r} ({len(group.questions)} questions)" for group in every)
        raise InputError(
            f"Expected at least two question sets with at least {LEAST_QUESTIONS} questions each, but got {sizes}. "
            "Pass several stores, or one store with several groups of questions."
        )
    masked = {
        group.name: f"it has {len(group.questions)} questions, but at least {LEAST_QUESTIONS} are needed"
        for group in every
        if len(group.questions) < LEAST_QUESTIONS
    }
    data_of = {group.data.store_path: group.data for group in sets}
    cells: list[dict[str, Any]] = []
    left_out: dict[str, LeftOut] = {}

    def cell(train: str, test: QuestionSet, scored: Scored) -> dict[str, Any]:
        scored = scored.take(scored.usable)
        reference = float((scored.right / scored.known).mean())
        metrics = {name: estimate(scored, name, n_resamples, seed, reference) for name in ("auroc", "brier_skill")}
        return {"train": train, "test": test.name, "n_questions": scored.n_questions, **metrics}

    with tqdm(total=2 * len(sets), desc="transfer", unit=" sets") as progress:
        for own in sets:
            others = [group for group in sets if group is not own]
            try:
                _check_grades(own)
                cells.append(cell(own.name, own, _out_of_fold(own, probe, n_folds, seed)))
                module = _train(probe, own.data, own.questions, seed)
                cells += [cell(own.name, group, _scored(module, group)) for group in others]
            except InputError as error:
                masked[f"trained on {own.name}"] = str(error)
            progress.update()
            try:
                left_out[own.name] = _leave_out(own, others, probe, len(left_out), seed)
                raw = left_out[own.name]
                cells.append(cell(OTHERS, own, Scored(raw.raw, raw.right, raw.known)))
            except InputError as error:
                masked[f"trained on all but {own.name}"] = str(error)
            progress.update()
    if not cells:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in masked.items())
        raise InputError(
            f"Expected training to succeed on at least one question set, but it failed on all question sets. {reasons}"
        )
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
        "left_out": [
            left_out_record(name, scores, n_resamples, seed)
            for name, scores in {**left_out, ALL_SETS: LeftOut.cat(list(left_out.values()))}.items()
        ]
        if left_out
        else [],
    }


def _question_sets(stores: Sequence[str], grader: str | None, method: ProbeMethod) -> list[QuestionSet]:
    """Return one question set for each store, or for each question group of a single store."""
    names = [Path(store).resolve().name for store in stores]
    if not stores:
        raise InputError(
            "Expected `stores` to contain at least one store, but it is empty. Example: --stores '[stores/facts]'."
        )
    if len(set(names)) < len(names):
        raise InputError(
            f"Expected `stores` to have different folder names, but got {', '.join(names)}. Each folder name "
            "is used as the name of a question set. Rename a folder."
        )
    loaded: list[FeatureDataModule] = []
    for store in stores:
        data = data_of(method, store, grader)
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


def _check_grades(group: QuestionSet) -> None:
    """Raise an InputError if the answers in a question set are all right or all wrong."""
    rows, table = group.questions.numpy(), group.data.table
    right, known = int(table.right[rows].sum()), int(table.known[rows].sum())
    if right in (0, known):
        raise InputError(
            f"Expected right and wrong answers, but all {known} answers are {'right' if right else 'wrong'}. Use "
            "more or different questions."
        )


def _check_compatible(first: FeatureDataModule, other: FeatureDataModule) -> None:
    """Raise an InputError if two stores differ in model or features, or share a question."""
    check_features(first, other, "stores")
    pair = f"{other.store_path!r} and {first.store_path!r}"
    if shared := set(other.table.ids) & set(first.table.ids):
        raise InputError(
            f"Expected `stores` to have no questions in common, but {pair} share {len(shared)} questions, for "
            f"example {min(shared)!r}. A probe would be tested on questions that it was trained on. "
            "Use stores with different questions."
        )


def _train(probe: str, data: FeatureDataModule, questions: Tensor, seed: int) -> ProbeModule:
    """Train and calibrate a probe on the given questions of a datamodule."""
    train, val = split_rows(data.table, questions, [1 - VAL_SHARE, VAL_SHARE], seed + 1)  # same split as in `folds`
    every = data.every().question
    rest = every[~torch.isin(every, questions)]
    data.use_split({"train": train.tolist(), "val": val.tolist(), "test": rest.tolist()})
    return fit(PROBES[probe].load(), data, PROBES[probe].epochs, seed)


def _rows_of(group: QuestionSet) -> Batch:
    """Return the features and grades of a question set."""
    every = group.data.every()
    return every.take(torch.isin(every.question, group.questions).nonzero()[:, 0])


def _scored(module: ProbeModule, group: QuestionSet) -> Scored:
    """Compute a probe's confidences for a question set, without back-off."""
    batch = _rows_of(group)
    return Scored(module.predict(batch.features).double(), batch.right, batch.known)


def _leave_out(own: QuestionSet, others: Sequence[QuestionSet], probe: str, number: int, seed: int) -> LeftOut:
    """Train a probe and its back-off on all sets in `others`, and score the left-out set `own`.

    `number` is the index of `own` among the left-out sets.
    """
    if own.data is others[0].data:  # groups of a single store
        data, questions = own.data, torch.cat([group.questions for group in others]).sort().values
    else:
        data = UnionDataModule([group.data for group in others])
        questions = data.every().question
    module, batch = _train(probe, data, questions, seed), _rows_of(own)
    found, fitted = backed_off(module, fit_novelty(module), batch.features), data.batch("train", "val")
    mean = torch.full((len(batch.row),), float((fitted.right / fitted.known).mean()), dtype=torch.float64)
    raw = module.predict(batch.features).double()
    return LeftOut(raw, found, batch.right, batch.known, mean, torch.full_like(batch.row, number))


def _out_of_fold(own: QuestionSet, probe: str, n_folds: int, seed: int) -> Scored:
    """Compute a probe's out-of-fold confidences for a question set."""
    parts = []
    for number, rows in enumerate(folds(own.data.table, own.questions, n_folds, seed, LEAST_VALIDATION)):
        train = torch.cat([rows["train"], rows["val"]]).sort().values
        scored = _scored(_train(probe, own.data, train, seed), own._replace(questions=rows["test"]))
        parts.append((scored.confidence, scored.right, scored.known, torch.full_like(scored.right, number)))
    confidence, right, known, fold = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return Scored(confidence, right, known, fold=fold.long())


def sets_of(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of a record's training sets (with `OTHERS` last) and test sets."""
    trains, tests = (list(dict.fromkeys(cell[end] for cell in record["cells"])) for end in ("train", "test"))
    trains.sort(key=lambda name: name == OTHERS)
    return trains, sorted(tests, key=lambda name: trains.index(name) if name in trains else len(trains))


def transfer_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the record as a Markdown page. `plots` contains the names of the plots."""
    trains, tests = sets_of(record)
    cells = record["cells"]
    return render(
        "comparison/transfer.md.j2",
        record=record,
        plots=plots,
        trains=trains,
        tests=tests,
        cells={(cell["train"], cell["test"]): cell for cell in cells},
        n_questions={cell["test"]: cell["n_questions"] for cell in cells},
        own=[cell for cell in cells if cell["train"] == cell["test"]],
        transfers=[cell for cell in cells if cell["train"] not in (cell["test"], OTHERS)],
    )
